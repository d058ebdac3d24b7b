"""Events meeting waits: deliveries, checks after a park, manual resumption's twin statements, and deadlines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import psycopg

from workflow.sql import events as sql
from workflow.sql import settle as settle_sql
from workflow.sql.arrays import plain
from workflow.store.pipeline import Rows
from workflow.store.ports import Port
from workflow.store.settle import HistoryRow, Tell, locked_runs, nobody

PAGE = 1000
"""How many waits are locked and resolved at once."""


@dataclass(slots=True)
class Delivered:
    """What was told in histories. `whole`: no wait was passed by because its run is locked; else do it again later."""

    told: list[HistoryRow]
    whole: bool


async def deliver(port: Port, event_ids: Iterable[str]) -> Delivered:
    """Gives events to the waits that are parked for them. Safe to repeat: a wait is resolved once."""
    events = plain(event_ids)
    waits = await _resolve(port, sql.FIND_WAITS, events, sql.RESOLVE_BY_EVENT)
    steps = await _resolve(port, sql.FIND_STEPS, events, sql.RESOLVE_STEPS)
    return _delivered(waits, steps)


async def check(port: Port, wait_ids: Iterable[str]) -> Delivered:
    """Looks for events that waits (nodes, or ledger rows) have missed, once their park is committed."""
    looked_for = plain(wait_ids)
    waits = await _resolve(port, sql.WAITS, looked_for, sql.FENCE_WAITS, sql.RESOLVE_BY_EVENT)
    steps = await _resolve(port, sql.STEPS, looked_for, sql.FENCE_STEPS, sql.RESOLVE_STEPS)
    return _delivered(waits, steps)


def _delivered(waits: tuple[Rows, bool], steps: tuple[Rows, bool]) -> Delivered:
    return Delivered(_history(waits[0]), waits[1] and steps[1])


def _history(rows: Rows) -> list[HistoryRow]:
    return [(*row, json.loads(data)) for *row, data in rows]


async def _resolve(port: Port, find: str, which: str, *resolve: str) -> tuple[Rows, bool]:
    """Page after page; on each, round after round until no wait takes an event: two waits of a run that want
    the same take two events in two rounds. Passes by runs that somebody keeps locked: the flag is false then."""
    resolved: Rows = []
    whole = True
    after = str(UUID(int=0))
    while True:
        page = (await port.run([(find, (which, after, PAGE))]))[0]
        if not page:
            return resolved, whole
        after = page[-1][0]
        found, free = await _page(port, page, *resolve)
        resolved += found
        whole = whole and free
        if len(page) < PAGE:
            return resolved, whole


async def _page(port: Port, page: Rows, *resolve: str) -> tuple[Rows, bool]:
    """A page of (wait, run); whether none was passed by."""
    try:
        return await _rounds(port, page, *resolve), True
    except psycopg.errors.LockNotAvailable:
        locked = await locked_runs(port, {row[1] for row in page})
        with suppress(
            psycopg.errors.LockNotAvailable
        ):  # one more was locked meanwhile: all of them come again
            return await _rounds(port, [row for row in page if row[1] not in locked], *resolve), False
        return [], False


async def _rounds(port: Port, page: Rows, *resolve: str) -> Rows:
    """The answers of the last of these statements, again and again until it has none."""
    resolved: Rows = []
    waits = plain([row[0] for row in page])
    runs = plain(sorted({row[1] for row in page}))
    statements = [(settle_sql.LOCK_RUNS, (runs,)), *((statement, (waits,)) for statement in resolve)]
    while rows := (await port.run(statements))[-1]:
        resolved += rows
    return resolved


async def expire_waits(port: Port, tell: Tell = nobody, limit: int = PAGE) -> int:
    """Resolves waits whose deadline has passed, page after page; how many.

    Those that may take an event which was published before their deadline, and which nobody has delivered yet, are
    given it, and `tell` what that adds to their histories; the others have timed out.
    """
    resolved, after = 0, str(UUID(int=0))
    while True:
        page = (await port.run([(sql.EXPIRE_WAITS, (after, limit))]))[0]
        resolved += sum(1 for _, _, expired, _ in page if expired)
        answered = [(wait, run) for wait, run, _, answered in page if answered]
        if answered:
            told, _ = await _page(port, answered, sql.RESOLVE_BY_EVENT)
            if told:
                resolved += len(told)
                tell(_history(told))
                continue  # of two waits of a run for one event, the other may have timed out
        if len(page) < limit:
            return resolved
        after = page[-1][0]
