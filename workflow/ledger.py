"""The ledger as durable steps see it: the rows of one execution, and the attempt whose they are."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Protocol

from workflow.plan import Boundary
from workflow.signals import Signal
from workflow.store.pipeline import Rows, Statement
from workflow.store.settle import Lease


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


def row_of(row: tuple[Any, ...]) -> Row:
    """A row of `workflow.sql.ledger.LOAD_STEPS`."""
    _, kind, status, attempt, value, deadline, error, correlation = row
    end = None if deadline is None else time.monotonic() + deadline
    return Row(kind, status, attempt, _json(value), end, _json(error), correlation)


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
