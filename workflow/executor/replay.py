"""How a durable step is undone: its handler is called again, answered from the ledger, up to that step.

There the handler is left, and what it gives the step as `compensate` is the way back. Nothing is done
again, nothing is written, and what is reported on the way is not kept: what a handler does between its
steps has to lead to the same steps, here as in any replay.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any, Protocol

from workflow.awaits import Awaits, awaited
from workflow.definitions.handlers import taken_arguments
from workflow.errors import WaitTimeout
from workflow.failures import rebuilt
from workflow.hands import TURNS
from workflow.sql import ledger as sql
from workflow.store.pipeline import Rows, Statement


class Found(BaseException):
    """Raised through the handler at the step that is to be undone: `undo` is its compensation, `value` its result.

    Not an Exception, so that no `except Exception` of the handler swallows it.
    """

    def __init__(self, undo: Callable[..., Any], value: Any) -> None:
        super().__init__()
        self.undo = undo
        self.value = value

    def call(self, context: object) -> Any:
        """Calls the compensation with as much of the step's result and of `ctx` as it takes, in this order."""
        return self.undo(*(self.value, context)[: taken_arguments(self.undo, "the step", "compensate=")])


class Strayed(Exception):
    """The handler did not come to the step again: it has changed, or does not do the same from the same state."""


class Ledger(Protocol):
    """Where the rows are read from."""

    awaits: Awaits

    def read(self, statement: Statement) -> Rows:
        """The rows of one statement."""
        ...

    async def aread(self, statement: Statement) -> Rows:
        """`read`, for `async` handlers."""
        ...


class Replay:
    """`ctx.step` of a handler that is called again to undo its step `key`. The methods are those of `Steps`."""

    def __init__(self, ledger: Ledger, run_id: str, node_id: str, key: str) -> None:
        self._ledger = ledger
        self._awaits = ledger.awaits
        self._question: Statement = (sql.LOAD_STEPS, (run_id, node_id, "run"))
        self._key = key
        self._rows: dict[str, tuple[Any, ...]] | None = None
        self._loading: asyncio.Future[Rows] | None = None
        self._strayed_in: int | None = None
        self.ended: Found | Strayed | None = None
        """What has ended the replay, also where the handler has caught it: no step goes on after that."""

    def run(
        self,
        key: str,
        fn: object,
        *args: object,
        compensate: Callable[..., Any] | None = None,
        **kwargs: object,
    ) -> Any:
        """What the step has returned, or raised; at the step that is to be undone, `Found`."""
        self._load()
        return self._run(key, compensate)

    @awaited
    async def arun(
        self,
        key: str,
        fn: object,
        *args: object,
        compensate: Callable[..., Any] | None = None,
        **kwargs: object,
    ) -> Any:
        """`run`, for `async` handlers."""
        await self._aload(key)
        return self._run(key, compensate)

    def sleep(self, key: str, seconds: object) -> None:
        """Returns at once: the handler has slept that long."""
        self._load()
        self._slept(key)

    @awaited
    async def asleep(self, key: str, seconds: object) -> None:
        """`sleep`, for `async` handlers."""
        await self._aload(key)
        self._slept(key)

    def wait_for(self, key: str, poll: object, *args: object, **kwargs: object) -> Any:
        """What the wait has returned, or its `WaitTimeout`."""
        self._load()
        return self._waited(key)

    @awaited
    async def await_for(self, key: str, poll: object, *args: object, **kwargs: object) -> Any:
        """`wait_for`, for `async` handlers."""
        await self._aload(key)
        return self._waited(key)

    def wait_event(self, key: str, event: object, *args: object, **kwargs: object) -> Any:
        """What the wait has returned, or its `WaitTimeout`."""
        self._load()
        return self._waited(key)

    @awaited
    async def await_event(self, key: str, event: object, *args: object, **kwargs: object) -> Any:
        """`wait_event`, for `async` handlers."""
        await self._aload(key)
        return self._waited(key)

    # --- inside ---------------------------------------------------------------------------------

    def _load(self) -> None:
        if self._rows is None:
            self._take(self._ledger.read(self._question))

    async def _aload(self, key: str) -> None:
        """Steps in several tasks go on together from here; those that had not completed let the others go first, of
        which one may be the step that is looked for.
        """
        if self._rows is None:
            if self._loading is None:
                self._loading = asyncio.ensure_future(self._ledger.aread(self._question))
            self._take(await asyncio.shield(self._loading))
        assert self._rows is not None
        if key not in self._rows or self._rows[key][2] != "completed":
            for _ in range(TURNS):
                await asyncio.sleep(0)

    def _take(self, rows: Rows) -> None:
        self._rows = {row[0]: row for row in rows}

    def _run(self, key: str, compensate: Callable[..., Any] | None) -> Any:
        row = self._row(key)
        if row[1] == "run" and row[2] == "failed" and (error := _error(row)).get("type"):
            raise rebuilt(error)  # no end: a handler that had caught it went on to other steps
        value = self._settled(key, "run")
        if key != self._key:
            return value
        if compensate is None:
            raise self._strayed(f"the handler gives step {key!r} no compensation any more")
        self.ended = Found(compensate, value)
        raise self.ended

    def _slept(self, key: str) -> None:
        _, kind, status, _, _, deadline, *_ = self._row(key)
        if kind != "sleep" or (status != "completed" and (deadline is None or deadline > 0)):
            raise self._strayed(f"the handler had not slept through {key!r}")

    def _waited(self, key: str) -> Any:
        row = self._row(key)
        if row[1] in ("poll", "event") and row[2] == "failed":
            error = _error(row)
            if error.get("code") == WaitTimeout.code:  # else it was left behind, and had not ended
                raise WaitTimeout(error.get("message") or f"step {key!r}: nothing in time")
        return self._settled(key, "poll" if row[1] == "poll" else "event")

    def _settled(self, key: str, kind: str) -> Any:
        row = self._row(key)
        if row[1] != kind or row[2] != "completed":
            raise self._strayed(f"the handler came to step {key!r}, which had not completed")
        return None if row[4] is None else json.loads(row[4])

    def _row(self, key: str) -> tuple[Any, ...]:
        if self.ended is not None and not self._may_still_find():
            raise self.ended
        assert self._rows is not None
        row = self._rows.get(key)
        if row is None:
            raise self._strayed(f"the handler came to step {key!r}, which it had not done")
        return row

    def _strayed(self, reason: str) -> Strayed:
        strayed = Strayed(f"step {self._key!r} cannot be undone: {reason}")
        if self.ended is None:
            self.ended, self._strayed_in = strayed, threading.get_ident()
        return strayed

    def _may_still_find(self) -> bool:
        """Whether it is another thread of the handler that has strayed."""
        return isinstance(self.ended, Strayed) and threading.get_ident() != self._strayed_in


def _error(row: tuple[Any, ...]) -> dict[str, Any]:
    """What the row says of its failure. That of a body which was cut short, and raised nothing, has no `type`."""
    return json.loads(row[6]) if row[6] else {}
