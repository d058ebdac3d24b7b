"""Events meeting waits: deliveries, checks after a park, manual resumption's twin statements, and deadlines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import psycopg

from workflow.sql import events as sql
from workflow.sql.arrays import plain
from workflow.store.pipeline import Rows
from workflow.store.ports import Port
from workflow.store.settle import HistoryRow, locked_runs

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
    waits = await _resolve(port, sql.WAITS, looked_for, sql.RESOLVE_BY_EVENT)
    steps = await _resolve(port, sql.STEPS, looked_for, sql.RESOLVE_STEPS)
    return _delivered(waits, steps)


def _delivered(waits: tuple[Rows, bool], steps: tuple[Rows, bool]) -> Delivered:
    return Delivered([(*row, json.loads(data)) for *row, data in waits[0]], waits[1] and steps[1])


async def _resolve(port: Port, find: str, which: str, resolve: str) -> tuple[Rows, bool]:
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
        try:
            resolved += await _rounds(port, page, resolve)
        except psycopg.errors.LockNotAvailable:
            whole = False
            locked = await locked_runs(port, {row[1] for row in page})
            with suppress(
                psycopg.errors.LockNotAvailable
            ):  # one more was locked meanwhile: all of them come again
                resolved += await _rounds(port, [row for row in page if row[1] not in locked], resolve)
        if len(page) < PAGE:
            return resolved, whole


async def _rounds(port: Port, page: Rows, resolve: str) -> Rows:
    resolved: Rows = []
    waits = plain([row[0] for row in page])
    runs = plain(sorted({row[1] for row in page}))
    while rows := (await port.run([(sql.LOCK_RUNS, (runs,)), (resolve, (waits,))]))[1]:
        resolved += rows
    return resolved


async def expire_waits(port: Port, limit: int = PAGE) -> int:
    """Resolves waits whose deadline has passed as timed out, page after page; returns how many."""
    expired, after = 0, str(UUID(int=0))
    while True:
        page = (await port.run([(sql.EXPIRE_WAITS, (after, limit))]))[0]
        expired += sum(1 for _, resolved in page if resolved)
        if len(page) < limit:
            return expired
        after = page[-1][0]
