"""Many statements in one round trip, on libpq's pipeline mode through `psycopg.pq`.

psycopg's own pipeline sends and waits once for each statement, which costs this process more than
the server spends on them: here all of them go out in one write and their results are awaited once.
Between two syncs of a pipeline everything is one transaction; the sync commits it.

Parameters travel as text and take their types from the statement; results come back as text and are
read by their column's type.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg import pq

Parameter = str | int | float | bool | None
Statement = tuple[str, Sequence[Parameter]]
Rows = list[tuple[Any, ...]]


def _moment(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text)
    except ValueError:  # a DateStyle of the database's own, or infinity
        return text


_LOADERS: Final[dict[int, Callable[[str], Any]]] = {
    16: lambda text: text == "t",  # boolean
    20: int,  # bigint
    21: int,  # smallint
    23: int,  # integer
    26: int,  # oid
    700: float,  # real
    701: float,  # double precision
    1184: _moment,  # timestamptz
    1700: float,  # numeric
}
DISCARD_PLANS: Final = b"DISCARD PLANS"
PLAN_AGE: Final = (0.1, 0.4, 1.5, 5.0)
"""Seconds that a connection's plans are kept, at first and in the end. A plan is made for the tables as large
as they are, and a queue grows from nothing to a backlog in no time."""
_OK: Final = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_PLACEHOLDER: Final = re.compile(r"%s|%%")


class Pipeline:
    """One connection's pipeline. `direct`: no pooler stands before the server, so statements are kept prepared there,
    under names of our own.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any], *, direct: bool) -> None:
        self._pgconn = connection.pgconn
        self.direct = direct
        self._names: dict[str, bytes] = {}
        self._ages = iter(PLAN_AGE)
        self._age = next(self._ages)
        self._planned_at = time.monotonic()
        self.idle = True
        """False after an exchange that was cut off: what is still to come would be taken for the next one's."""

    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        """Runs the statements as one transaction; the rows of each. Raises psycopg's error of the first that fails.

        A parameter that PostgreSQL could not store is a `DataError`, and nothing is sent.
        """
        pgconn = self._pgconn
        encoded = [(sql, [_encode(value) for value in parameters]) for sql, parameters in statements]
        self.idle = False
        pgconn.enter_pipeline_mode()
        wanted: list[str | None] = []
        fresh = self.direct and self._are_plans_old()
        if fresh:
            pgconn.send_query_params(DISCARD_PLANS, None)
            wanted.append(None)
        names = dict(self._names)
        for sql, values in encoded:
            if not self.direct:
                pgconn.send_query_params(_native(sql), values)
            else:
                if sql not in names:
                    names[sql] = b"workflow_%d" % len(names)
                    pgconn.send_prepare(names[sql], _native(sql))
                    wanted.append(sql)
                pgconn.send_query_prepared(names[sql], values)
            wanted.append(None)
        pgconn.pipeline_sync()
        rows, error = await self._exchange(wanted, names)
        pgconn.exit_pipeline_mode()
        self.idle = True
        if error is not None:
            raise psycopg.errors.error_from_result(error)
        return rows[1:] if fresh else rows

    def _are_plans_old(self) -> bool:
        """Whether it is time to plan anew; tells so once."""
        now = time.monotonic()
        if now - self._planned_at < self._age:
            return False
        self._planned_at, self._age = now, next(self._ages, self._age)
        return True

    async def _exchange(
        self, wanted: list[str | None], names: dict[str, bytes]
    ) -> tuple[list[Rows], pq.abc.PGresult | None]:
        pgconn = self._pgconn
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        descriptor = pgconn.socket
        loop.add_reader(descriptor, ready.set)
        try:
            while pgconn.flush():
                loop.add_writer(descriptor, ready.set)
                ready.clear()
                await ready.wait()
                loop.remove_writer(descriptor)
                pgconn.consume_input()
            return await self._results(wanted, names, ready)
        finally:
            loop.remove_writer(descriptor)
            loop.remove_reader(descriptor)

    async def _results(
        self, wanted: list[str | None], names: dict[str, bytes], ready: asyncio.Event
    ) -> tuple[list[Rows], pq.abc.PGresult | None]:
        """The results up to the sync; a failed statement makes those after it come back as aborted."""
        pgconn = self._pgconn
        rows: list[Rows] = []
        error: pq.abc.PGresult | None = None
        position = 0
        while True:
            while pgconn.is_busy():
                ready.clear()
                await ready.wait()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                position += 1
                continue
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                return rows, error
            prepared = wanted[position] if position < len(wanted) else None
            if result.status not in _OK:
                if result.status == pq.ExecStatus.FATAL_ERROR:
                    error = error or result
            elif prepared is not None:
                self._names[prepared] = names[prepared]
            else:
                rows.append(_load(result))


def _encode(value: Parameter) -> bytes | None:
    """As text. What libpq would cut off, and what is no UTF-8, is refused here as the server would refuse it."""
    if value is None:
        return None
    if not isinstance(value, str):
        return str(value).encode()
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise psycopg.DataError(f"half a surrogate pair cannot be stored: {error}") from error
    if b"\0" in encoded:
        raise psycopg.DataError("a NUL character cannot be stored in a text")
    return encoded


@lru_cache(maxsize=512)
def _native(sql: str) -> bytes:
    """The statement with PostgreSQL's own placeholders."""
    count = 0

    def number(match: re.Match[str]) -> str:
        nonlocal count
        if match[0] == "%%":
            return "%"
        count += 1
        return f"${count}"

    return _PLACEHOLDER.sub(number, sql).encode()


def _load(result: pq.abc.PGresult) -> Rows:
    count = result.ntuples
    if not count:
        return []
    loaders = [_LOADERS.get(result.ftype(column), str) for column in range(result.nfields)]
    rows: Rows = []
    for row in range(count):
        values = []
        for column, loader in enumerate(loaders):
            raw = result.get_value(row, column)
            values.append(None if raw is None else loader(raw.decode()))
        rows.append(tuple(values))
    return rows
