"""Events meeting waits: deliveries, checks after a park, manual resumption's twin statements, and deadlines."""

from __future__ import annotations

import json

from workflow.sql import events as sql
from workflow.sql.arrays import plain
from workflow.store.ports import Port, Rows
from workflow.store.settle import HistoryRow


async def deliver(port: Port, event_id: str) -> list[HistoryRow]:
    """Gives an event to the waits that are parked for it. Safe to repeat: a wait is resolved once."""
    told = await _resolve(port, (sql.FIND_WAITS, (event_id,)), sql.RESOLVE_BY_EVENT)
    await _resolve(port, (sql.FIND_STEPS, (event_id,)), sql.RESOLVE_STEPS)
    return [(*row, json.loads(data)) for *row, data in told]


async def check(port: Port, wait_id: str) -> list[HistoryRow]:
    """Looks for an event that a wait (a node, or a ledger row) has missed, once its park is committed."""
    told = await _resolve(port, (sql.WAIT_RUN, (wait_id,)), sql.RESOLVE_BY_EVENT)
    await _resolve(port, (sql.STEP_RUN, (wait_id,)), sql.RESOLVE_STEPS)
    return [(*row, json.loads(data)) for *row, data in told]


async def _resolve(port: Port, find: tuple[str, tuple[str]], resolve: str) -> Rows:
    """Round after round until no wait takes an event: two waits of a run take two events in two rounds."""
    resolved: Rows = []
    while True:
        found = (await port.run([find]))[0]
        if not found:
            return resolved
        waits = plain(sorted({row[0] for row in found}))
        runs = plain(sorted({row[1] for row in found}))
        rows = (await port.run([(sql.LOCK_RUNS, (runs,)), (resolve, (waits,))]))[1]
        if not rows:
            return resolved
        resolved += rows


async def expire_waits(port: Port, limit: int = 500) -> int:
    """Resolves waits whose deadline has passed as timed out; returns how many."""
    return int((await port.run([(sql.EXPIRE_WAITS, (limit,))]))[0][0][0])
