"""The project around the example shop: settings, and a PostgreSQL that needs no installing."""
