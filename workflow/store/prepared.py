"""One statement on Django's connection, prepared on the server once a connection has run it a few times.

Django's cursors never prepare: the statement is written out, parsed and planned for each call, which for the dispatch
function is a fifth of its time. Here it goes through a cursor of psycopg's on the same raw connection, so in the
same transaction, with the checks and the translation of errors that Django's own cursors have.

Django's cursor is taken instead
* where somebody looks on: `connection.execute_wrapper`, and queries that are logged (DEBUG, `assertNumQueries`),
* for the first calls on a connection, since many live for one request only,
* behind a pooler, recognized as in `AsyncPort`, where a prepared statement outlives its transaction only by luck,
* with Django's own pool, which may discard what is prepared when a connection goes back,
* where the connection is none of psycopg's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg
from django.db import ProgrammingError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from workflow.store.poolers import is_direct

CALLS_UNPREPARED: Final = 4
"""Calls on a connection before the server is asked whether it is reached directly, which is a round trip."""

NEVER_REACHED: Final = 2**31
"""A threshold at which psycopg prepares nothing unasked, but looks out for `DISCARD ALL` and the like."""

Row = tuple[Any, ...]
_Raw = psycopg.Connection[Any]

_calls: WeakKeyDictionary[_Raw, int] = WeakKeyDictionary()
_NEVER: Final = -1


def fetch_one(using: str, sql: str, parameters: Sequence[Any]) -> Row:
    """Runs a statement that has one row; that row. Raises what Django's cursors raise."""
    connection = connections[using]
    raw = connection.connection
    if isinstance(raw, psycopg.Connection) and _may_prepare(connection, raw):
        try:
            return _run_prepared(connection, raw, sql, parameters)
        except ProgrammingError as error:
            if not isinstance(error.__cause__, psycopg.errors.InvalidSqlStatementName):
                raise
            _calls[raw] = _NEVER  # somebody discards what is prepared on this connection, unseen by psycopg
            if raw.info.transaction_status != TransactionStatus.IDLE:
                raise
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        row: Row = cursor.fetchone()
        return row


def _may_prepare(connection: BaseDatabaseWrapper, raw: _Raw) -> bool:
    calls = _calls.get(raw, 0)
    if calls == _NEVER or connection.execute_wrappers or connection.queries_logged:
        return False
    if calls < CALLS_UNPREPARED:
        _calls[raw] = calls + 1
        return False
    if calls == CALLS_UNPREPARED:
        with connection.wrap_database_errors:
            direct = not connection.settings_dict["OPTIONS"].get("pool") and is_direct(raw)
        _calls[raw] = calls + 1 if direct else _NEVER
        return direct
    return True


def _run_prepared(connection: BaseDatabaseWrapper, raw: _Raw, sql: str, parameters: Sequence[Any]) -> Row:
    connection.validate_thread_sharing()
    connection.validate_no_broken_transaction()
    if raw.prepare_threshold is None:  # Django's choice, which goes before `prepare=True`
        raw.prepare_threshold = NEVER_REACHED
    with connection.wrap_database_errors:
        cursor: psycopg.Cursor[Row] = psycopg.Cursor(raw)
        row = cursor.execute(sql, parameters, prepare=True).fetchone()
    assert row is not None
    return row
