"""Events meeting waits: deliveries, checks after a park, manual resumption's twin statements, and deadlines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from uuid import UUID

from workflow.sql import events as sql
from workflow.sql.arrays import plain
from workflow.store.pipeline import Rows
from workflow.store.ports import Port
from workflow.store.settle import HistoryRow

PAGE = 1000
"""How many waits are locked and resolved at once."""


async def deliver(port: Port, event_ids: Iterable[str]) -> list[HistoryRow]:
    """Gives events to the waits that are parked for them. Safe to repeat: a wait is resolved once."""
    events = plain(event_ids)
    told = await _resolve(port, sql.FIND_WAITS, events, sql.RESOLVE_BY_EVENT)
    await _resolve(port, sql.FIND_STEPS, events, sql.RESOLVE_STEPS)
    return [(*row, json.loads(data)) for *row, data in told]


async def check(port: Port, wait_ids: Iterable[str]) -> list[HistoryRow]:
    """Looks for events that waits (nodes, or ledger rows) have missed, once their park is committed."""
    waits = plain(wait_ids)
    told = await _resolve(port, sql.WAITS, waits, sql.RESOLVE_BY_EVENT)
    await _resolve(port, sql.STEPS, waits, sql.RESOLVE_STEPS)
    return [(*row, json.loads(data)) for *row, data in told]


async def _resolve(port: Port, find: str, which: str, resolve: str) -> Rows:
    """Page after page; on each, round after round until no wait takes an event: two waits of a run that want
    the same take two events in two rounds."""
    resolved: Rows = []
    after = str(UUID(int=0))
    while True:
        page = (await port.run([(find, (which, after, PAGE))]))[0]
        if not page:
            return resolved
        after = page[-1][0]
        waits = plain([row[0] for row in page])
        runs = plain(sorted({row[1] for row in page}))
        while rows := (await port.run([(sql.LOCK_RUNS, (runs,)), (resolve, (waits,))]))[1]:
            resolved += rows
        if len(page) < PAGE:
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
