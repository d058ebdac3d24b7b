"""Django's connections around user code: they work when it begins, and what it leaves on them goes no further."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import psycopg
from asgiref.sync import SyncToAsync
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from workflow.conf import conf
from workflow.executor.transactions import Blocks
from workflow.store.ports import abandon_connection, own_connections, refresh_connections

logger = logging.getLogger("workflow")


@contextmanager
def clean_connections(whose: str) -> Iterator[None]:
    """Around user code: it finds connections of this thread that work, and what it leaves on them reaches nobody else.

    A transaction that it opened and did not close is abandoned with its connection; one that was
    open before (a test's) is the caller's, and only the blocks that were opened inside are left. `whose`: what the log
    calls it.
    """
    found = own_connections()
    _forget_queries(found)
    refresh_connections(found)
    before = {c.alias: Blocks(c) for c in found if c.in_atomic_block}
    try:
        yield
    finally:
        left = own_connections()
        _tidy_connections(left, before, whose)
        refresh_connections(left)


def _tidy_connections(
    of_thread: Iterable[BaseDatabaseWrapper], before: Mapping[str, Blocks], whose: str
) -> None:
    for connection in of_thread:
        if connection.alias in before:
            before[connection.alias].leave()
        elif _is_transacting(connection):
            logger.warning("%s left a transaction open; what was done in it is undone", whose)
            abandon_connection(connection)
        elif (
            connection.connection is not None
            and connection.autocommit != connection.settings_dict["AUTOCOMMIT"]
        ):
            connection.close()  # whoever writes next would wait for a commit that never comes


def _is_transacting(connection: BaseDatabaseWrapper) -> bool:
    """Whether a transaction is open, also one that was begun with a plain BEGIN behind Django's back."""
    if connection.in_atomic_block:
        return True
    raw = connection.connection
    if raw is None or getattr(raw, "closed", False):
        return False
    if isinstance(raw, psycopg.Connection):
        return raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
    return not connection.get_autocommit()


def _forget_queries(of_thread: Iterable[BaseDatabaseWrapper]) -> None:
    """With DEBUG Django keeps the text of each query until a request begins, and here none ever does. What a test has
    asked for (`assertNumQueries`) is left to it."""
    for connection in of_thread:
        if not connection.force_debug_cursor and not connection.in_atomic_block:
            connection.queries_log.clear()


def clean_shared_connections(whose: str) -> None:
    """The same on the thread of asgiref's in which all `async` handlers of a process use the ORM; it may not exist yet.

    To be called before and after each of them. It does not wait for that thread, which takes one call after another:
    whatever is called there from now on comes after the tidying. And since it is between two calls, what is open on a
    connection then was left open; no neighbour can be in the middle of a block that it entered and will leave.
    """
    executor = SyncToAsync.single_thread_executor
    if getattr(executor, "_threads", True):
        with suppress(RuntimeError):  # the interpreter is shutting down
            executor.submit(_clean_here, whose)


def _clean_here(whose: str) -> None:
    try:
        left = own_connections()
        _forget_queries(left)
        _tidy_connections(left, {}, whose)
        # None is closed for its age: a neighbour may be reading from a cursor of the server's between two calls.
        refresh_connections(left, aged=False)
    except Exception:
        logger.exception("the connections that async handlers share could not be tidied up")


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
