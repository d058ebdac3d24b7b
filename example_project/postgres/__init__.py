"""The database engine of the example project; see ``base``."""
