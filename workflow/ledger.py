"""The ledger as durable steps see it: the rows of one execution, and the attempt whose they are."""

from __future__ import annotations

import json
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from workflow.awaits import Awaits
from workflow.plan import Boundary, StepWrite
from workflow.signals import Signal
from workflow.store.pipeline import Rows, Statement
from workflow.store.settle import Lease

MOST_ASTRAY: Final = 16
"""Replays that are counted in what marks a wait, which holds the attempt's number as well."""


class Host(Protocol):
    """The attempt whose ledger this is, as far as steps need it. Boundaries it settles carry its lease."""

    lease: Lease
    ordinal: int
    path: str
    number: int
    compensating: bool
    is_async: bool
    state: dict[str, Any]
    secret_keys: frozenset[str]
    signal: Signal
    awaits: Awaits

    def runs_in(self, thread: int) -> bool:
        """Whether the handler itself is at work in the thread with this ident, and no helper of its own."""
        ...

    def settle(self, boundary: Boundary) -> bool:
        """False when the lease is gone."""
        ...

    async def asettle(self, boundary: Boundary) -> bool:
        """`settle`, for `async` handlers."""
        ...

    def read(self, statement: Statement) -> Rows:
        """The rows of one statement."""
        ...

    async def aread(self, statement: Statement) -> Rows:
        """`read`, for `async` handlers."""
        ...


@dataclass(slots=True)
class Row:
    """A row of the ledger, as it was read."""

    kind: str
    status: str
    attempt: int
    value: Any
    deadline: float | None
    """On this process's monotonic clock, from what was left on the database's when it was read."""
    error: dict[str, Any] | None
    correlation: str | None
    """Of the event that it is parked for."""
    is_due: bool
    """It is a wait that was over, or to be looked after, when it was read."""

    def astray(self, number: int) -> int:
        """How many replays in a row of the attempt of that number had gone astray when this wait began, see `stray`.
        It is kept as the row's attempt.
        """
        mark = self.attempt - 1 if self.kind != "run" else 0
        return mark % MOST_ASTRAY if mark // MOST_ASTRAY == number else 0


def row_of(row: tuple[Any, ...]) -> Row:
    """A row of `workflow.sql.ledger.LOAD_STEPS`."""
    _, kind, status, attempt, value, deadline, error, correlation, poll = row
    end = None if deadline is None else time.monotonic() + deadline
    is_due = kind != "run" and (
        status != "waiting" or any(left is not None and left <= 0 for left in (deadline, poll))
    )
    return Row(kind, status, attempt, _json(value), end, _json(error), correlation, is_due)


def stray(
    rows: Mapping[str, Row], used: Container[str], waits: Iterable[StepWrite], number: int
) -> str | None:
    """Looks at a replay that ends in these `waits`, having come to the steps `used`; `rows` is the ledger as it was
    read, the oldest first. Only replays of one attempt, that of this `number`, count together: the next may go another
    way.

    It has gone astray when it begins a wait without having come to the last one that is due: then its keys change, and
    each replay would do everything again, for ever. Once alone that proves nothing. Branches that race outside of their
    steps may come to other waits first, code that has changed calls them by other names, one may have been dropped for
    good; in the next replay all of these come to what they have begun here. So what is begun is marked in the ledger,
    and what is returned, and fails the action, is the text of the error of a replay that misses that too, and what that
    had been begun in place of.
    """
    begun = [wait for wait in waits if wait.key not in rows]
    due = [key for key, row in rows.items() if row.is_due]
    if not begun or not due or due[-1] in used:
        return None
    times = rows[due[-1]].astray(number)
    beside = [key for key, row in rows.items() if row.astray(number) == times]
    before = [key for key in due if rows[key].astray(number) == times - 1]
    if times and not any(key in used for key in [*beside, *before[-1:]]):
        return (
            f"step {begun[0].key!r}: replayed for step {due[-1]!r}, which the handler did not come to; "
            "keys must be the same in every replay (no uuid, no time in them)"
        )
    for wait in begun:
        wait.attempt = 1 + number * MOST_ASTRAY + min(times + 1, MOST_ASTRAY - 1)
    return None


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
