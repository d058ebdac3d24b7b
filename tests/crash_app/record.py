"""What handlers did, written down as it happens, over a connection that is none of the engine's.

A call of a handler is a row in `crash_call`: made when user code is entered, ended when it is left. A
process that is killed inside leaves a call without an end. `crash_effect` is written through Django's
connection by `atomic=True` handlers: what must be there exactly once, however often workers die.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connections

from workflow.conf import conf
from workflow.context import Context

NAME = "crash recorder"
"""Its `application_name`: whoever terminates connections leaves this one alone."""
TABLES = """
CREATE TABLE IF NOT EXISTS crash_call (
    id uuid PRIMARY KEY,
    run_id uuid NOT NULL,
    path text NOT NULL,
    phase text NOT NULL,
    attempt int NOT NULL,
    pid int NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    how text
);
CREATE TABLE IF NOT EXISTS crash_effect (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id uuid NOT NULL,
    path text NOT NULL,
    phase text NOT NULL
);
"""
PATIENCE = 60.0
"""Seconds that a handler waits for a database that is being restarted."""

_lock = threading.Lock()
_connection: psycopg.Connection[Any] | None = None
_parameters: dict[str, Any] | None = None


def _where() -> dict[str, Any]:
    """psycopg's arguments for the database that Django uses. May be asked on an event loop."""
    parameters = dict(connections[conf.DATABASE].get_connection_params())
    for name in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(name, None)
    return {**parameters, "application_name": NAME}


def _execute(sql: str, parameters: tuple[Any, ...]) -> None:
    """Each statement may be repeated: its outcome is unknown when the connection dies."""
    global _connection, _parameters
    deadline = time.monotonic() + PATIENCE
    with _lock:
        while True:
            try:
                if _parameters is None:
                    _parameters = _where()
                if _connection is None or _connection.closed:
                    _connection = psycopg.connect(**_parameters, autocommit=True, prepare_threshold=None)
                _connection.execute(sql, parameters)
                return
            except psycopg.OperationalError:
                if _connection is not None:
                    _connection.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def begin(run_id: object, path: str, phase: str, attempt: int) -> uuid.UUID:
    """User code is entered. Committed when this returns."""
    call = uuid.uuid4()
    _execute(
        "INSERT INTO crash_call (id, run_id, path, phase, attempt, pid) VALUES (%s, %s, %s, %s, %s, %s) "
        "ON CONFLICT DO NOTHING",
        (call, run_id, path, phase, attempt, os.getpid()),
    )
    return call


def end(call: uuid.UUID, how: str) -> None:
    """User code is left."""
    _execute("UPDATE crash_call SET ended_at = clock_timestamp(), how = %s WHERE id = %s", (how, call))


@contextmanager
def call(ctx: Context, phase: str) -> Iterator[None]:
    """Around what a handler does. `phase` is `run`, `undo`, `step:<key>`, `unstep:<key>`, or `replay`."""
    known = begin(ctx.run_id, ctx.path, phase, ctx.attempt)
    try:
        yield
    except BaseException as error:
        end(known, type(error).__name__)
        raise
    end(known, "returned")


def effect(ctx: Context, phase: str) -> None:
    """A row in the handler's own transaction."""
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute(
            "INSERT INTO crash_effect (run_id, path, phase) VALUES (%s, %s, %s)",
            (ctx.run_id, ctx.path, phase),
        )
