"""An app for worker processes that are killed: workflows whose handlers write down that they were called."""
