"""The port through which the store's statements reach PostgreSQL: one connection of psycopg's, or Django's own.

Both run a list of statements as one transaction and return each one's rows. A worker uses
`AsyncPort`: all statements of a transaction go out in one pipeline and cost one round trip.
Commands, atomic actions and `workflow.testing` use `DjangoPort`, which joins whatever transaction
the caller is in.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import psycopg
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from workflow.conf import conf
from workflow.store.pipeline import Pipeline, Rows, Statement
from workflow.store.poolers import ais_direct
from workflow.store.trouble import is_in_the_way, is_refusal

logger = logging.getLogger("workflow")


BY_INDEX = (
    "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; "
    "SET plan_cache_mode = force_generic_plan; SET jit = off"
)
"""A prepared statement keeps the plan that was best when it was first planned: on empty tables that is to read
all of them, once or for each row of a batch. Every hot statement goes by a key from a few rows, so on a connection of
our own it is told to. It is told to plan once, too: arrays that are known to be short look cheaper than the plan that
is kept, and so each settling was planned anew, which took longer than running it. What is kept is planned anew every
few seconds (`pipeline.PLAN_AGE`). Behind a pooler nothing is prepared, and nothing is set.

A partial index that was nearly empty looks as cheap as a key, and is read as a whole for each row once there is a
backlog. So wherever rows are found by another key, a condition that such an index has too is written so that the
planner does not see it: `IS NOT DISTINCT FROM`, or `(x IS NULL)::int = 1`."""


LOCK_PATIENCE = 1.0
"""Seconds that a statement of a worker waits for a lock. Whoever holds a run's lock for longer (a user's transaction
that cancels, a process that was stopped) may keep that run waiting, and no other.

`statement_timeout` is off: what a project sets, for its role or in OPTIONS, is meant for its own queries. Statements of
a worker are bounded by their batches and by this patience, and one that is cut off would be cut off again."""
_LOCK_TIMEOUT = f"{LOCK_PATIENCE * 1000:.0f}"
_LOCALLY: Statement = (
    "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', '0', true)",
    (_LOCK_TIMEOUT,),
)


class Port(Protocol):
    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        """Runs the statements as one transaction; the rows of each. Raises what the driver raises."""
        ...


class DjangoPort:
    """Django's connection of this thread.

    Nothing in `run` ever suspends, so a coroutine on it can be driven by hand (see `workflow.store.drive`).
    """

    def __init__(self, using: str | None = None, patience: float | None = None) -> None:
        """`patience`: seconds that a statement waits for a lock; None for as long as the connection's settings say."""
        self.using = using or conf.DATABASE
        self.patience = patience

    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        return self.run_now(statements)

    def run_now(self, statements: Sequence[Statement]) -> list[Rows]:
        """The same, for synchronous callers."""
        results: list[Rows] = []
        joins = connections[self.using].in_atomic_block
        with transaction.atomic(using=self.using), connections[self.using].cursor() as cursor:
            before = _limit_patience(cursor, self.patience) if self.patience is not None else None
            for sql, parameters in statements:
                cursor.execute(sql, parameters)
                results.append(cursor.fetchall() if cursor.description else [])
            if joins and before is not None:  # the caller's own statements wait as before
                cursor.execute("SELECT set_config('lock_timeout', %s, true)", (before,))
        return results


def _limit_patience(cursor: CursorWrapper, seconds: float) -> str:
    """For the rest of the transaction; what it was."""
    milliseconds = f"{seconds * 1000:.0f}"
    cursor.execute(
        "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)", (milliseconds,)
    )
    return str(cursor.fetchone()[0])


def own_connections() -> Sequence[BaseDatabaseWrapper]:
    """Those of Django's connections that this thread has made. Around a handler that does nothing, to look for them
    takes longer than all the rest: to be asked once, and handed on.
    """
    return connections.all(initialized_only=True)


def refresh_connections(of_thread: Iterable[BaseDatabaseWrapper], *, aged: bool = True) -> None:
    """Closes those of this thread's connections that are broken or over `CONN_MAX_AGE`; never one inside a transaction.

    `aged` False: only those that are broken. One that the server has ended while it was idle is found without
    asking the server: nothing but its last words can have arrived on it.
    """
    for connection in of_thread:
        if connection.in_atomic_block:
            continue
        if aged or connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()
        if connection.connection is not None and _has_news(connection) and not connection.is_usable():
            connection.close()


def abandon_connection(connection: BaseDatabaseWrapper) -> None:
    """Ends a connection whatever it is in the middle of; Django opens another when it is used again."""
    if connection.connection is not None:
        connection.connection.close()
    connection.in_atomic_block = False  # or Django would keep the dead connection until that block is left
    connection.close()


def _has_news(connection: BaseDatabaseWrapper) -> bool:
    raw = connection.connection
    if not isinstance(raw, psycopg.Connection):
        return False
    if raw.closed:
        return True
    poll = select.poll() if hasattr(select, "poll") else None  # not on Windows
    if poll is None:
        return False
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))


_PATIENCE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""So that a database which is gone without a word is noticed in half a minute. libpq's own options: no pooler
gets to see them, and what the project's settings say goes before them."""


SILENCE: Final = 30.0
"""Seconds without an answer that are told of: the server is frozen, or something between swallows what it says."""


def connection_parameters(using: str | None = None) -> dict[str, Any]:
    """What psycopg needs to reach the database that Django's `DATABASES` names; Django's own options left out."""
    wrapper = connections[using or conf.DATABASE]
    wrapper.ensure_connection()  # an embedded server is started by Django's backend, on first use
    parameters = parameters_of(wrapper)
    wrapper.close()
    return parameters


def parameters_of(wrapper: BaseDatabaseWrapper) -> dict[str, Any]:
    """The same, without touching any connection of Django's."""
    parameters = {**_PATIENCE, **wrapper.get_connection_params()}
    for name in ("cursor_factory", "context", "prepare_threshold", "pool", "isolation_level"):
        parameters.pop(name, None)
    return parameters


class AsyncPort:
    """One asynchronous connection, opened when needed and again after a failure.

    Statements are prepared on the server unless a pooler stands between: then nothing may outlive a transaction.
    """

    def __init__(self, parameters: Callable[[], dict[str, Any]], name: str) -> None:
        self._parameters = parameters
        self._name = name
        self._connection: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._pipeline: Pipeline | None = None
        self._lock = asyncio.Lock()

    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        async with self._lock:
            pipeline = await self._open()
            complaint = asyncio.get_running_loop().call_later(SILENCE, self._complain)
            try:
                if pipeline.direct:
                    return await pipeline.run(statements)
                return (await pipeline.run([_LOCALLY, *statements]))[1:]
            except psycopg.Error as error:
                if not (is_refusal(error) or is_in_the_way(error)):
                    # Perhaps it is the connection. "Cached plan must not change result type": a migration ran
                    # meanwhile. Or the server is the primary no more: the next connection finds the one that is.
                    await self._drop()
                raise
            finally:
                complaint.cancel()
                if not pipeline.idle:
                    await self._drop()

    def _complain(self) -> None:
        """Nothing is cut off: a commit may rightly wait, for a lost standby. But whoever operates it has to know."""
        logger.warning("the database has not answered for %g s on the connection %r", SILENCE, self._name)

    async def _open(self) -> Pipeline:
        if self._connection is None or self._pipeline is None or self._connection.closed:
            await self._drop()
            parameters = {"application_name": self._name, **self._parameters()}
            connection = await psycopg.AsyncConnection.connect(**parameters, autocommit=True)
            direct = await ais_direct(connection)
            if direct:
                settings = f"{BY_INDEX}; SET lock_timeout = {_LOCK_TIMEOUT}; SET statement_timeout = 0"
                await connection.execute(settings, prepare=False)
            self._connection, self._pipeline = connection, Pipeline(connection, direct=direct)
        return self._pipeline

    async def _drop(self) -> None:
        connection, self._connection, self._pipeline = self._connection, None, None
        if connection is not None:
            await connection.close()

    async def close(self, patience: float | None = None) -> None:
        """Closes the connection; `run` opens a new one. What is under way may end first, for so many seconds: a server
        that does not answer (a commit that waits for a lost standby) would keep us for good.
        """
        try:
            async with asyncio.timeout(patience), self._lock:
                await self._drop()
        except TimeoutError:
            await self._drop()
