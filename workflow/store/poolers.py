"""Whether a pooler stands between a connection and its server.

Then the process id that the server reports is not the one that the connection was given. No notification comes through,
and nothing that a session keeps (settings, prepared statements) outlives a transaction.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

_WHO: Final = "SELECT pg_backend_pid()"


def is_direct(connection: psycopg.Connection[Any]) -> bool:
    """Whether nothing stands between. One round trip."""
    row = connection.execute(_WHO, prepare=False).fetchone()
    return row is not None and bool(row[0] == connection.info.backend_pid)


async def ais_direct(connection: psycopg.AsyncConnection[Any]) -> bool:
    """`is_direct`, for an asynchronous connection."""
    row = await (await connection.execute(_WHO, prepare=False)).fetchone()
    return row is not None and bool(row[0] == connection.info.backend_pid)
