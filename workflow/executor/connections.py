"""Django's connections around user code: they work when it begins, and what it leaves on them goes no further."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
from asgiref.sync import SyncToAsync
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from workflow.conf import conf
from workflow.store.ports import abandon_connection, refresh_connections


@contextmanager
def clean_connections() -> Iterator[None]:
    """Around user code: it finds connections of this thread that work, and what it leaves on them reaches nobody else.

    A transaction that it opened and did not close is abandoned with its connection; one that was
    open before (a test's) is the caller's.
    """
    refresh_connections()
    before = frozenset(c.alias for c in connections.all(initialized_only=True) if c.in_atomic_block)
    try:
        yield
    finally:
        _tidy_connections(before)


def _tidy_connections(before: frozenset[str]) -> None:
    for connection in connections.all(initialized_only=True):
        if connection.alias in before:
            continue
        if connection.in_atomic_block or _is_transacting(connection):
            abandon_connection(connection)
    refresh_connections()


def _is_transacting(connection: BaseDatabaseWrapper) -> bool:
    """Whether a transaction is open, also one that was begun with a plain BEGIN behind Django's back."""
    raw = connection.connection
    if raw is None or getattr(raw, "closed", False):
        return False
    if isinstance(raw, psycopg.Connection):
        return raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
    return not connection.get_autocommit()


async def refresh_ambient_connections() -> None:
    """`async` handlers use the ORM in a thread of asgiref's, which nobody else looks after; it may not exist yet."""
    executor = SyncToAsync.single_thread_executor
    if getattr(executor, "_threads", True):
        await asyncio.get_running_loop().run_in_executor(executor, partial(refresh_connections, aged=False))


def limit_idleness(using: str) -> None:
    """From here on the transaction holds the run's lock: should this process be stopped in the middle for longer than
    its lease lasts, the server ends the transaction, so that whoever takes over does not wait for it.
    """
    milliseconds = max(1000, int(conf.STALE_LEASE_THRESHOLD * 1000))
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', %s, true)",
            (str(min(milliseconds, 2**31 - 1)),),
        )
