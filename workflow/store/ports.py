"""The port through which the store's statements reach PostgreSQL: one connection of psycopg's, or Django's own.

Both run a list of statements as one transaction and return each one's rows. A worker uses
`AsyncPort`: all statements of a transaction go out in one pipeline and cost one round trip.
Commands, atomic actions and `workflow.testing` use `DjangoPort`, which joins whatever transaction
the caller is in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import psycopg
from django.db import connections, transaction

from workflow.conf import conf

logger = logging.getLogger("workflow")

Parameter = str | int | float | bool | None
Statement = tuple[str, Sequence[Parameter]]
Rows = list[tuple[Any, ...]]


class Port(Protocol):
    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        """Runs the statements as one transaction; the rows of each. Raises what the driver raises."""
        ...


class DjangoPort:
    """Django's connection of this thread.

    Nothing in `run` ever suspends, so a coroutine on it can be driven by hand (see `workflow.store.drive`).
    """

    def __init__(self, using: str | None = None) -> None:
        self.using = using or conf.DATABASE

    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        return self.run_now(statements)

    def run_now(self, statements: Sequence[Statement]) -> list[Rows]:
        """The same, for synchronous callers."""
        results: list[Rows] = []
        with transaction.atomic(using=self.using), connections[self.using].cursor() as cursor:
            for sql, parameters in statements:
                cursor.execute(sql, parameters)
                results.append(cursor.fetchall() if cursor.description else [])
        return results


def refresh_connections() -> None:
    """Closes this thread's connections that are broken or over `CONN_MAX_AGE`; never one inside a transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def connection_parameters(using: str | None = None) -> dict[str, Any]:
    """What psycopg needs to reach the database that Django's `DATABASES` names; Django's own options left out."""
    wrapper = connections[using or conf.DATABASE]
    wrapper.ensure_connection()  # an embedded server is started by Django's backend, on first use
    parameters = dict(wrapper.get_connection_params())
    for name in ("cursor_factory", "context", "prepare_threshold", "pool", "isolation_level"):
        parameters.pop(name, None)
    wrapper.close()
    return parameters


class AsyncPort:
    """One asynchronous connection, opened when needed and again after a failure.

    Statements are prepared on the server unless a pooler stands between: then the process id that
    the server reports is not the one that the connection was given, and nothing may outlive a transaction.
    """

    def __init__(self, parameters: Callable[[], dict[str, Any]], name: str) -> None:
        self._parameters = parameters
        self._name = name
        self._connection: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._lock = asyncio.Lock()
        self.pooled = False

    async def connection(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """The open connection, made if there is none. Raises `psycopg.OperationalError`."""
        if self._connection is None or self._connection.closed:
            parameters = {"application_name": self._name, **self._parameters()}
            connection = await psycopg.AsyncConnection.connect(**parameters, autocommit=True)
            cursor = await connection.execute("SELECT pg_backend_pid()", prepare=False)
            row = await cursor.fetchone()
            self.pooled = row is None or row[0] != connection.info.backend_pid
            connection.prepare_threshold = None if self.pooled else 0
            connection.prepared_max = 200
            self._connection = connection
        return self._connection

    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        async with self._lock:
            connection = await self.connection()
            try:
                return await self._pipeline(connection, statements)
            except (psycopg.OperationalError, psycopg.InterfaceError):
                if connection.closed or connection.broken:
                    await self._drop()
                raise
            except BaseException:
                # Cancelled in the middle: what the server made of it is unknown, and so is the connection's state.
                if connection.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    await self._drop()
                raise

    async def _pipeline(
        self, connection: psycopg.AsyncConnection[tuple[Any, ...]], statements: Sequence[Statement]
    ) -> list[Rows]:
        if len(statements) == 1:
            sql, parameters = statements[0]
            cursor = await connection.execute(sql, parameters)
            return [await cursor.fetchall() if cursor.description else []]
        cursors = []
        # Between two syncs of a pipeline everything is one transaction, committed by the sync.
        async with connection.pipeline():
            for sql, parameters in statements:
                cursors.append(await connection.execute(sql, parameters))
        return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        """Closes the connection; `run` opens a new one."""
        async with self._lock:
            await self._drop()
