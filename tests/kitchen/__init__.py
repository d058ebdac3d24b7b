"""An app whose runs last as long as a test wants them to: for tests with workers in other processes."""
