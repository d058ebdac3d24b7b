"""Events meeting waits: deliveries, checks after a park, and deadlines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from workflow.plan import HistoryRow
from workflow.sql import events as sql
from workflow.sql import settle as settle_sql
from workflow.sql.arrays import plain
from workflow.store.pieces import a_page, apart
from workflow.store.pipeline import Rows
from workflow.store.ports import Port
from workflow.store.settle import Tell, nobody
from workflow.store.trouble import is_in_the_way

RESOLVING = "give an event to the wait"
PAGE = 1000
"""How many waits are locked and resolved at once."""


LOCKED = "locked"
"""Why a wait was passed by of which another session has locked a row. Any other reason is a refusal."""
MOST_LOCKS = 3
"""How many locks are waited for on a page once those that could be found were passed by (an event's own row)."""


@dataclass(slots=True)
class Delivered:
    """What was told in histories. `again`: which of the events, or waits, have to come again, and why: a wait that
    they concern was passed by, because it is locked or because the database refused to resolve it.
    """

    told: list[HistoryRow]
    again: dict[str, str]


async def deliver(port: Port, event_ids: Iterable[str]) -> Delivered:
    """Gives events to the waits that are parked for them. Safe to repeat: a wait is resolved once."""
    events = plain(event_ids)
    resolved: Rows = []
    passed = await _resolve(port, resolved, sql.FIND_WAITS, events, sql.RESOLVE_BY_EVENT)
    passed |= await _resolve(port, [], sql.FIND_STEPS, events, sql.RESOLVE_STEPS)
    return Delivered(_history(resolved), await _concerned(port, events, passed) if passed else {})


async def _concerned(port: Port, events: str, passed: dict[str, str]) -> dict[str, str]:
    waits = plain(passed)
    again: dict[str, str] = {}
    for event, wait in (await port.run([(sql.EVENTS_FOR, (events, waits, events, waits))]))[0]:
        if again.get(event, LOCKED) == LOCKED:
            again[event] = passed[wait]
    return again


async def check(port: Port, wait_ids: Iterable[str]) -> Delivered:
    """Looks for events that waits (nodes, or ledger rows) have missed, once their park is committed."""
    looked_for = plain(wait_ids)
    resolved: Rows = []
    passed = await _resolve(port, resolved, sql.WAITS, looked_for, sql.FENCE_WAITS, sql.RESOLVE_BY_EVENT)
    passed |= await _resolve(port, [], sql.STEPS, looked_for, sql.FENCE_STEPS, sql.RESOLVE_STEPS)
    return Delivered(_history(resolved), passed)


def _history(rows: Rows) -> list[HistoryRow]:
    return [(*row, json.loads(data)) for *row, data in rows]


async def _resolve(port: Port, resolved: Rows, find: str, which: str, *resolve: str) -> dict[str, str]:
    """Page after page; on each, round after round until no wait takes an event: two waits of a run that want
    the same take two events in two rounds. Adds to `resolved`; returns which waits were passed by, and why."""
    passed: dict[str, str] = {}
    after = str(UUID(int=0))
    while True:
        page = (await port.run([(find, (which, after, PAGE))]))[0]
        if not page:
            return passed
        after = page[-1][0]
        passed |= await _page(port, page, resolved, *resolve)
        if len(page) < PAGE:
            return passed


async def _page(port: Port, page: Rows, resolved: Rows, *resolve: str) -> dict[str, str]:
    """A page of (wait, run): all of it at once, and less at a time only when that fails. Returns the waits that were
    passed by, and why."""

    async def work(part: Rows) -> None:
        await _rounds(port, part, resolved, *resolve)

    try:
        return await apart(page, work, RESOLVING)
    except Exception as error:
        if not is_in_the_way(error):
            raise
    asked = (plain(sorted({row[1] for row in page})), plain([row[0] for row in page]))
    locked = {run for (run,) in (await port.run([(sql.LOCKED_RUNS, asked)]))[0]}
    passed = {row[0]: LOCKED for row in page if row[1] in locked}
    left = [[row for row in page if row[1] not in locked]]
    locks = 0
    while left:
        part = left.pop()
        try:
            passed |= await apart(part, work, RESOLVING)
        except Exception as error:
            if not is_in_the_way(error):
                raise
            locks += 1
            if len(part) == 1 or locks >= MOST_LOCKS:
                passed |= {row[0]: LOCKED for row in part}
            else:
                half = len(part) // 2
                left += [part[half:], part[:half]]
    return passed


async def _rounds(port: Port, page: Rows, resolved: Rows, *resolve: str) -> None:
    """The answers of the last of these statements, again and again until it has none."""
    waits = plain([row[0] for row in page])
    runs = plain(sorted({row[1] for row in page}))
    statements = [(settle_sql.LOCK_RUNS, (runs,)), *((statement, (waits,)) for statement in resolve)]
    while rows := (await port.run(statements))[-1]:
        resolved += rows


async def expire_waits(port: Port, tell: Tell = nobody, limit: int = PAGE) -> int:
    """Resolves waits whose deadline has passed, page after page; how many.

    Those that may take an event which was published before their deadline, and which nobody has delivered yet, are
    given it, and `tell` what that adds to their histories; the others have timed out.
    """
    resolved, after = 0, str(UUID(int=0))
    while True:
        page = await a_page(
            port,
            (sql.EXPIRE_WAITS, (after, limit)),
            (sql.DUE_WAITS, (after, limit)),
            lambda part: (sql.EXPIRE_THESE, (plain([row[0] for row in part]),)),
            "end by its deadline the wait",
        )
        resolved += sum(1 for _, _, expired, _ in page if expired)
        answered = [(wait, run) for wait, run, _, answered in page if answered]
        if answered:
            told: Rows = []
            await _page(port, answered, told, sql.RESOLVE_BY_EVENT)
            if told:
                resolved += len(told)
                tell(_history(told))
                continue  # of two waits of a run for one event, the other may have timed out
        if len(page) < limit:
            return resolved
        after = page[-1][0]
