"""What the pages read, each with one bounded statement."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from django.db import DatabaseError, connections, transaction
from django.db.models import DurationField, ExpressionWrapper, F
from django.db.models.functions import Now
from django.utils import timezone

from workflow import states
from workflow.conf import conf
from workflow.dashboard.filters import Filters
from workflow.models import Worker
from workflow.sql import dashboard as sql
from workflow.sql import lists
from workflow.sql.arrays import plain
from workflow.store.workers import silent_after

PAGE: Final = 50
PATIENCE_MS: Final = 3_000
"""Milliseconds that a list may take: no index serves every combination of filters."""
CAP: Final = 1_000
"""Runs of one status, and endings of one step, that are counted; past it they are estimated."""
WORKERS: Final = 50
WORKFLOWS: Final = 200
PAIRS: Final = 200
"""Queues and priorities in which the oldest due job is looked for."""

NAMES_AGE: Final = 10.0
"""Seconds for which the names of workflows are kept."""

T = TypeVar("T")
Row = dict[str, Any]


class TookTooLong(Exception):
    """The list was not found within `PATIENCE_MS`."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of runs, newest first, and whether there are others before and after it."""

    rows: list[Row]
    has_newer: bool
    has_older: bool


@dataclass(frozen=True, slots=True)
class Count:
    """How many runs have a status. `exact` is False where it was counted up to a bound, or estimated."""

    status: str
    number: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Bucket:
    """Runs that ended within one step of a chart. `at` in seconds since the epoch."""

    at: float
    ended: int
    failed: int


def runs(filters: Filters) -> Page:
    """One page of the list. Raises `TookTooLong`."""
    names, parameters = filters.conditions(timezone.now())
    if not sql.SEARCHES.keys().isdisjoint(names):
        parameters["names"] = plain(kept("workflows", NAMES_AGE, workflows_with_runs))
    upwards = filters.newer is not None
    statement = _statement(names, "ASC" if upwards else "DESC")
    try:
        with transaction.atomic(using=conf.DATABASE), connections[conf.DATABASE].cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {PATIENCE_MS}")
            rows = _fetch(cursor, statement, {**parameters, "limit": PAGE + 1})
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) == "57014":
            raise TookTooLong from error
        raise
    more, rows = len(rows) > PAGE, rows[:PAGE]
    if upwards:
        return Page(rows[::-1], has_newer=more, has_older=True)
    return Page(rows, has_newer=filters.older is not None, has_older=more)


def _statement(names: list[str], direction: str) -> str:
    """The list on which all of these conditions hold; of a search, one of those that it stands for."""
    for name, kinds in sql.SEARCHES.items():
        if name in names:
            others = [one for one in names if one != name]
            lists = ") UNION (".join(_statement([*others, kind], direction) for kind in kinds)
            return sql.EITHER.format(lists=f"({lists})", direction=direction)
    conditions = "".join(sql.RUN_CONDITIONS[name] for name in names)
    return sql.RUNS.format(conditions=conditions, direction=direction)


def workflows_with_runs() -> list[str]:
    return [row[0] for row in _rows(lists.RUN_WORKFLOWS, [WORKFLOWS])]


def counts() -> list[Count]:
    """By status, in the order of a run's life."""
    parameters = {"cap": CAP + 1, "statuses": plain(states.RUN_STATUSES)}
    found = dict(_rows(sql.COUNTS, parameters))
    estimates: dict[str, int] = {}
    if any(number > CAP for number in found.values()):
        estimates = dict(_rows(sql.ESTIMATES))
    return [
        Count(status, max(number, estimates.get(status, 0)) if number > CAP else number, number <= CAP)
        for status, number in ((status, found[status]) for status in states.RUN_STATUSES)
    ]


def endings(step: int, count: int) -> list[Bucket]:
    """Runs that ended in each of the last `count` steps of so many seconds, the oldest first."""
    return [Bucket(*row) for row in _rows(sql.ENDINGS, {"step": step, "count": count, "cap": CAP})]


def oldest_due() -> tuple[str, float, str] | None:
    """Queue, seconds overdue and kind of the job that has been due for longest."""
    rows = _rows(sql.OLDEST_DUE, {"pairs": PAIRS})
    return rows[0] if rows else None


def workers() -> list[Worker]:
    """Those that have not signed off and whose leases have not run out, by the database's clock: `silence` tells which
    of them may be gone.
    """
    lately = Now() - timedelta(seconds=conf.STALE_LEASE_THRESHOLD)
    alive = Worker.objects.using(conf.DATABASE).filter(stopped_at__isnull=True, seen_at__gt=lately)
    age = ExpressionWrapper(Now() - F("seen_at"), output_field=DurationField())
    return list(alive.with_held().annotate(unseen_for=age).order_by("hostname", "pid")[:WORKERS])


def silence(worker: Any) -> float | None:
    """For how many seconds one of `workers` had been silent; None for one that keeps up its heartbeats."""
    seconds: float = worker.unseen_for.total_seconds()
    return seconds if seconds > silent_after() else None


def moves(run_id: UUID, limit: int) -> list[tuple[str, str | None, float, bool]]:
    """(name, node, when in seconds since the epoch, of a compensation) of a run's history, in order."""
    rows: list[Any] = _rows(sql.MOVES, {"run": run_id, "limit": limit})
    return rows


def node_history(run_id: UUID, path: str, limit: int) -> list[Row]:
    """The last entries about one node, in order."""
    with connections[conf.DATABASE].cursor() as cursor:
        return _fetch(cursor, sql.NODE_HISTORY, {"run": run_id, "node": path, "limit": limit})[::-1]


_kept: dict[tuple[str, str], tuple[float, Any]] = {}


def kept(name: str, seconds: float, read: Callable[[], T]) -> T:
    """What `read` gives, at most so many seconds old: any number of open pages cost one reading."""
    key = (str(connections[conf.DATABASE].settings_dict["NAME"]), name)
    now = time.monotonic()
    known = _kept.get(key)
    if known is not None and now - known[0] < seconds:
        value: T = known[1]
        return value
    value = read()
    _kept[key] = (now, value)
    return value


def forget() -> None:
    """Nothing is kept from here on; for tests."""
    _kept.clear()


def _rows(statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute(statement, parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _fetch(cursor: Any, statement: str, parameters: dict[str, Any]) -> list[Row]:
    cursor.execute(statement, parameters)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
