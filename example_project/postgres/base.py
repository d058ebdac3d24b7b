"""Django's PostgreSQL backend, which first sees to it that the embedded server runs.

Everything that opens a connection asks ``get_connection_params()`` for its arguments: Django itself, the test
database's creation, and the worker for its own psycopg connections. So a command that never connects
(``help``, ``check``) never starts a server, and whatever connects first starts it.
"""

from typing import Any

from django.db.backends.postgresql import base

from example_project.embedded import embedded


class DatabaseWrapper(base.DatabaseWrapper):
    def get_connection_params(self) -> dict[str, Any]:
        """psycopg's arguments. Raises ``Unavailable`` (an ``OperationalError``) when no server can be had."""
        embedded.ensure_running()
        params: dict[str, Any] = super().get_connection_params()
        return params
