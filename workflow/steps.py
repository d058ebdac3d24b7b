"""Durable steps: `ctx.step`. What has been done once is answered from the ledger and not done again.

A handler with steps is replayed from its start after a crash, a retry or a suspension; each step
that is settled returns what it returned the first time. So what a handler does between its steps
must lead to the same steps again, and side effects belong inside them.

A step that has to wait suspends its handler: the call does not return, the handler's frames are
unwound by an exception that is none of its business, and the unit lets go of its slot and lease.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from django.core.exceptions import SynchronousOnlyOperation

from workflow import payload
from workflow.awaits import awaited, on_a_loop
from workflow.conf import conf
from workflow.definitions.handlers import check_callable, finished, taken_arguments
from workflow.errors import Aborted, FailureCode, PayloadInvalid, StepKeyReused, WaitTimeout
from workflow.failures import described_step
from workflow.hands import Hand, Hands, Suspend, Wait
from workflow.ledger import Host, Row, row_of, stray
from workflow.plan import Boundary, StepWrite, compact
from workflow.plan.waits import correlation_of, missed, published_text, value_at
from workflow.signals import LEASE_LOST
from workflow.sql import ledger as sql
from workflow.times import FOR_EVER, Seconds, checked_seconds, checked_wait

T = TypeVar("T")

NAMES = {"run": "run", "sleep": "sleep", "poll": "wait_for", "event": "wait_event"}
"""What each kind of ledger row is called as a method."""
MIN_POLL_LEASE = 60.0
"""A poll in hand says in the ledger that the next is not due for so many seconds, however short its interval."""


class Steps:
    """The ledger of one execution. Methods come in pairs: `run` for plain handlers, `arun` for `async` ones.

    A plain one waits for the worker's event loop, so on that loop it raises `SynchronousOnlyOperation`.
    """

    def __init__(self, attempt: Host) -> None:
        self._attempt = attempt
        self._awaits = attempt.awaits
        self._phase = "compensate" if attempt.compensating else "run"
        self._used: set[str] = set()
        self._rows: dict[str, Row] | None = None
        self.unsettled: set[str] | None = None
        """Keys of the rows that wait, or whose bodies are at work, without sleeps; None when nobody has looked yet."""
        self.hands = Hands(attempt.signal)
        """Which steps are at work: an execution ends after them."""
        self._waits: list[Wait] = []
        self._lock = threading.Lock()

    # --- run ------------------------------------------------------------------------------------

    def run(
        self,
        key: str,
        fn: Callable[..., Awaitable[T]] | Callable[..., T],
        *args: Any,
        lease: Seconds = 300,
        attempts: int = 1,
        compensate: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> T:
        """Calls `fn(*args, **kwargs)` once and for all; its result, normalised to JSON, is what a replay gets too.
        That of an `async` one is waited for.

        `lease`: seconds (or a `timedelta`) after which people who look at the ledger may take a call for lost; it is
        ended by the action's `timeout` and by the end of the job's lease, not by this. `attempts`: calls before its
        exception is the handler's. `compensate`: called as `compensate()`, with the step's result or with
        the result and a `ctx` when the saga goes back past this step, also if the action has failed after it; the
        handler is replayed up to here to find it. Raises `StepKeyReused`, `PayloadInvalid`, and whatever `fn` raises.
        """
        lease = self._check_run(key, fn, lease, attempts, compensate)
        with self._in_hand():
            row = self._open(key, "run")
            if row is not None and row.status == "completed":
                return row.value  # type: ignore[no-any-return]
            number = 0
            while True:
                number += 1
                self._write(self._started(key, number, lease))
                try:
                    value = finished(fn(*args, **kwargs), self._attempt.signal)
                except Exception as error:
                    if number < attempts:
                        continue
                    self._write(self._failed(key, "run", number, error))
                    raise
                try:
                    normal, text = self._encode(key, value)
                except PayloadInvalid as error:
                    self._write(self._failed(key, "run", number, error))
                    raise
                self._write(self._completed(key, "run", number, text, compensate is not None))
                return normal  # type: ignore[no-any-return]

    @awaited
    async def arun(
        self,
        key: str,
        fn: Callable[..., Awaitable[T]] | Callable[..., T],
        *args: Any,
        lease: Seconds = 300,
        attempts: int = 1,
        compensate: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> T:
        """`run`, for `async` handlers; `fn` may be `async` or plain."""
        lease = self._check_run(key, fn, lease, attempts, compensate)
        async with self._in_hand():
            row = await self._aopen(key, "run")
            if row is not None and row.status == "completed":
                return row.value  # type: ignore[no-any-return]
            number = 0
            while True:
                number += 1
                await self._awrite(self._started(key, number, lease))
                try:
                    value: Any = fn(*args, **kwargs)
                    if isinstance(value, Awaitable):
                        value = await value
                except Exception as error:
                    if number < attempts:
                        continue
                    await self._awrite(self._failed(key, "run", number, error))
                    raise
                try:
                    normal, text = self._encode(key, value)
                except PayloadInvalid as error:
                    await self._awrite(self._failed(key, "run", number, error))
                    raise
                await self._awrite(self._completed(key, "run", number, text, compensate is not None))
                return normal  # type: ignore[no-any-return]

    def _check_run(
        self, key: str, fn: object, lease: Seconds, attempts: int, compensate: Callable[..., Any] | None
    ) -> float:
        check_callable(fn, f"step {key!r}")
        if compensate is not None:
            taken_arguments(compensate, f"step {key!r}", "compensate=")
            if self._attempt.compensating:
                raise ValueError(f"step {key!r}: compensate= in a compensation, which nothing undoes")
        if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= 1_000_000:
            raise ValueError(f"step {key!r}: attempts is a number from 1 to 1,000,000, not {attempts!r}")
        return checked_seconds(f"step {key!r}: lease", lease, zero=False)

    def _encode(self, key: str, value: Any) -> tuple[Any, str]:
        """A step's result as it is kept, and as every replay gives it. Raises `PayloadInvalid`."""
        secret_keys = self._attempt.secret_keys
        return payload.encode(value, f"step {key!r}", conf.MAX_PAYLOAD_BYTES, secret_keys, key)

    # --- sleep ----------------------------------------------------------------------------------

    def sleep(self, key: str, seconds: Seconds) -> None:
        """Lets so many seconds (or a `timedelta`) pass, without a slot, a thread or a lease; the end is fixed when
        it begins.
        """
        seconds = checked_seconds(f"step {key!r}: seconds", seconds, zero=True)
        with self._in_hand():
            self._slept(key, self._open(key, "sleep"), seconds)

    @awaited
    async def asleep(self, key: str, seconds: Seconds) -> None:
        """`sleep`, for `async` handlers."""
        seconds = checked_seconds(f"step {key!r}: seconds", seconds, zero=True)
        async with self._in_hand():
            self._slept(key, await self._aopen(key, "sleep"), seconds)

    def _slept(self, key: str, row: Row | None, seconds: float) -> None:
        left = self._left(row, seconds)
        if left > 0:
            raise self._suspended(left, self._step(key, "sleep", "waiting", deadline=seconds), row)

    # --- wait_for -------------------------------------------------------------------------------

    def wait_for(
        self,
        key: str,
        poll: Callable[[], Awaitable[T | None]] | Callable[[], T | None],
        interval: Seconds = 60,
        timeout: Seconds | None = 86_400,
    ) -> T:
        """What `poll()` returns as soon as it returns something else than None.

        Asked every `interval`, by one poller at a time; after `timeout` (None: never) `WaitTimeout` is raised.
        Both are seconds or a `timedelta`. An exception of `poll` is the handler's.
        """
        check_callable(poll, f"step {key!r}")
        interval, timeout = checked_wait(key, interval, timeout)
        with self._in_hand():
            row = self._open(key, "poll")
            if row is not None and row.status == "completed":
                return row.value  # type: ignore[no-any-return]
            self._write(self._polling(key, interval, timeout))
            value = finished(poll(), self._attempt.signal)
            return self._polled(key, row, value, interval, timeout, self._write)  # type: ignore[no-any-return]

    @awaited
    async def await_for(
        self,
        key: str,
        poll: Callable[[], Awaitable[T | None]] | Callable[[], T | None],
        interval: Seconds = 60,
        timeout: Seconds | None = 86_400,
    ) -> T:
        """`wait_for`, for `async` handlers; `poll` may be `async` or plain."""
        check_callable(poll, f"step {key!r}")
        interval, timeout = checked_wait(key, interval, timeout)
        async with self._in_hand():
            row = await self._aopen(key, "poll")
            if row is not None and row.status == "completed":
                return row.value  # type: ignore[no-any-return]
            await self._awrite(self._polling(key, interval, timeout))
            value: Any = poll()
            if isinstance(value, Awaitable):
                value = await value
            writes: list[StepWrite] = []
            try:
                return self._polled(key, row, value, interval, timeout, writes.append)  # type: ignore[no-any-return]
            finally:
                for write in writes:
                    await self._awrite(write)

    def _polling(self, key: str, interval: float, timeout: float | None) -> StepWrite:
        poll = max(interval, MIN_POLL_LEASE)
        return self._step(key, "poll", "waiting", deadline=timeout, poll=poll)

    def _polled(
        self,
        key: str,
        row: Row | None,
        value: Any,
        interval: float,
        timeout: float | None,
        write: Callable[[StepWrite], None],
    ) -> Any:
        if value is not None:
            normal, text = self._encode(key, value)
            write(self._completed(key, "poll", 1, text))
            return normal
        left = self._left(row, timeout)
        if left <= 0:
            timed_out = WaitTimeout(f"step {key!r}: nothing within {timeout:g} s")
            write(self._failed(key, "poll", 1, timed_out))
            raise timed_out
        pause = min(interval, left)
        raise self._suspended(pause, self._step(key, "poll", "waiting", deadline=timeout, poll=pause))

    # --- wait_event -----------------------------------------------------------------------------

    def wait_event(
        self,
        key: str,
        event: str,
        correlate: str | Callable[[dict[str, Any]], str] | None = None,
        timeout: Seconds | None = 86_400,
    ) -> Any:
        """The payload of the first event of exactly that type; with `correlate`, of that correlation too.

        `correlate` is a key of the state or a function of it, as for a wait stage. After `timeout`, seconds or a
        `timedelta` (None: never), `WaitTimeout` is raised.
        """
        _, timeout = checked_wait(key, 1, timeout)
        with self._in_hand():
            row = self._open(key, "event")
            if row is not None and row.status == "completed":
                return row.value
            if (late := self._too_late(key, event, correlate, row, timeout)) is not None:
                self._write(self._failed(key, "event", 1, late))
                return self._event_after_timeout(self._read_again(key), late)
            self._check_event(key, event)
            correlation = self._correlation(key, correlate, finished(self._correlated(correlate)))
            return self._park(key, event, correlation, row, timeout)

    @awaited
    async def await_event(
        self,
        key: str,
        event: str,
        correlate: str | Callable[[dict[str, Any]], str] | None = None,
        timeout: Seconds | None = 86_400,
    ) -> Any:
        """`wait_event`, for `async` handlers."""
        _, timeout = checked_wait(key, 1, timeout)
        async with self._in_hand():
            row = await self._aopen(key, "event")
            if row is not None and row.status == "completed":
                return row.value
            if (late := self._too_late(key, event, correlate, row, timeout)) is not None:
                await self._awrite(self._failed(key, "event", 1, late))
                return self._event_after_timeout(await self._aread_again(key), late)
            self._check_event(key, event)
            value: Any = self._correlated(correlate)
            if isinstance(value, Awaitable):
                value = await value
            return self._park(key, event, self._correlation(key, correlate, value), row, timeout)

    def _too_late(
        self, key: str, event: str, correlate: object, row: Row | None, timeout: float | None
    ) -> WaitTimeout | None:
        if row is None or row.status != "waiting" or self._left(row, timeout) > 0:
            return None
        return WaitTimeout(f"step {key!r}: {missed(event, correlate, row.correlation, timeout)}")

    def _event_after_timeout(self, row: Row, late: WaitTimeout) -> Any:
        """One conditional write has decided: an event that came in before it stands, else the time is up."""
        if row.status == "completed":
            return row.value
        raise late

    def _check_event(self, key: str, event: str) -> None:
        if not isinstance(event, str):
            raise TypeError(f"step {key!r}: event must be a string, not a {type(event).__name__}")
        published_text(event, f"step {key!r}: event")

    def _park(
        self, key: str, event: str, correlation: str | None, row: Row | None, timeout: float | None
    ) -> Any:
        step = self._step(key, "event", "waiting", deadline=timeout)
        step.event, step.correlation = event, correlation
        raise self._suspended(self._left(row, timeout), step, row)

    def _correlated(self, correlate: str | Callable[[dict[str, Any]], str] | None) -> Any:
        """What `correlate` makes of the state, or itself where it is a key; an awaitable of a plain wrapper around an
        async function."""
        if callable(correlate):
            return correlate(payload.copy_json(self._attempt.state))
        return correlate

    def _correlation(self, key: str, correlate: object, value: Any) -> str | None:
        if correlate is None:
            return None
        try:
            return correlation_of(value_at(correlate, self._attempt.state) if value is correlate else value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"step {key!r}: correlate={correlate!r}: {error}") from None

    # --- the ledger -----------------------------------------------------------------------------

    def _suspended(self, delay: float, step: StepWrite, row: Row | None = None) -> Suspend:
        """`row`: what the ledger has of it, if the end of the delay is fixed there."""
        is_fixed = row is not None and row.deadline is not None
        wait = Wait(delay, step, since=time.monotonic() if is_fixed else None)
        self._waits.append(wait)
        return Suspend(wait, self._waits)

    def _reused(self, reason: str) -> StepKeyReused:
        self.hands.ended = StepKeyReused(reason)
        return self.hands.ended

    def _in_hand(self) -> Hand:
        return Hand(self.hands, self._awrite)

    def _open(self, key: str, kind: str) -> Row | None:
        if self._attempt.is_async and on_a_loop():
            name = NAMES[kind]
            raise SynchronousOnlyOperation(
                f"ctx.step.{name} would block the event loop: an async handler awaits ctx.step.a{name}"
            )
        self._check_key(key, kind)
        if self._rows is None:
            self._take(self._attempt.read((sql.LOAD_STEPS, self._where())))
        return self._found(key, kind)

    async def _aopen(self, key: str, kind: str) -> Row | None:
        self._check_key(key, kind)
        if self._rows is None:
            self._take(await self._attempt.aread((sql.LOAD_STEPS, self._where())))
        return self._found(key, kind)

    def _read_again(self, key: str) -> Row:
        rows = self._attempt.read((sql.LOAD_STEP, (*self._where(), key)))
        return row_of(rows[0])

    async def _aread_again(self, key: str) -> Row:
        rows = await self._attempt.aread((sql.LOAD_STEP, (*self._where(), key)))
        return row_of(rows[0])

    def _where(self) -> tuple[str, str, str]:
        lease = self._attempt.lease
        return lease.run_id, lease.node(self._attempt.ordinal), self._phase

    def _take(self, rows: list[tuple[Any, ...]]) -> None:
        found = {row[0]: row_of(row) for row in rows}
        with self._lock:  # another thread may have read them too, and have gone on
            if self._rows is None:
                self.unsettled = set()
                for key, row in found.items():
                    self._note(key, row.kind, row.status)
                self._rows = found

    def _note(self, key: str, kind: str, status: str) -> None:
        assert self.unsettled is not None
        if status in ("running", "waiting") and kind != "sleep":
            self.unsettled.add(key)
        else:
            self.unsettled.discard(key)

    def _found(self, key: str, kind: str) -> Row | None:
        assert self._rows is not None
        row = self._rows.get(key)
        if row is not None and row.kind != kind:
            raise self._reused(
                f"step {key!r} is a {row.kind} in the ledger, and a {kind} here: the handler has changed"
            )
        if row is None or row.status != "failed":
            return row
        # A wait that has timed out does so again when its handler is replayed; the next attempt waits anew.
        if row.kind != "run" and row.error is not None and row.error.get("attempt") == self._attempt.number:
            raise WaitTimeout(row.error["message"])
        return None

    def _check_key(self, key: str, kind: str) -> None:
        self._attempt.signal.raise_if_aborted()
        if self.hands.ended is not None and not self._may_still_park(kind):
            raise self.hands.ended
        if self.hands.over:
            raise RuntimeError(f"step {key!r} was begun when its handler had ended already")
        if not isinstance(key, str) or not key or len(key) > 255:
            raise TypeError(f"a step's key is a string of 1 to 255 characters, not {key!r}")
        payload.normalise(key, "step key")
        with self._lock:
            is_new = key not in self._used
            self._used.add(key)
        if not is_new:
            raise self._reused(f"step {key!r} is used twice in one execution of {self._attempt.path}")

    def _may_still_park(self, kind: str) -> bool:
        """Whether a wait is written with the one that has suspended the handler: it is another thread's, or other work
        of a pool's thread that has parked before. The handler's own thread gets here only if it has caught that.
        """
        here = threading.get_ident()
        swallowed = here == self.hands.parked_by and self._attempt.runs_in(here)
        return isinstance(self.hands.ended, Suspend) and kind in ("sleep", "event") and not swallowed

    def _left(self, row: Row | None, timeout: float | None) -> float:
        if row is not None and row.deadline is not None:
            return row.deadline - time.monotonic()
        return FOR_EVER if timeout is None else float(timeout)

    def _write(self, write: StepWrite) -> None:
        self._attempt.signal.raise_if_aborted()
        if not self._attempt.settle(self._boundary(write)):
            raise Aborted(self._attempt.signal.reason or LEASE_LOST)

    async def _awrite(self, write: StepWrite) -> None:
        self._attempt.signal.raise_if_aborted()
        if not await self._attempt.asettle(self._boundary(write)):
            raise Aborted(self._attempt.signal.reason or LEASE_LOST)

    def _boundary(self, write: StepWrite) -> Boundary:
        self._note(write.key, write.kind, write.status)
        return Boundary(compensating=self._attempt.compensating, steps=[write])

    def _step(
        self, key: str, kind: str, status: str, *, deadline: float | None = None, poll: float | None = None
    ) -> StepWrite:
        ordinal = self._attempt.ordinal
        return StepWrite(ordinal, self._phase, key, kind, status, deadline=deadline, poll=poll)

    def _started(self, key: str, number: int, lease: float) -> StepWrite:
        return StepWrite(
            self._attempt.ordinal, self._phase, key, "run", "running", attempt=number, lease=float(lease)
        )

    def _completed(self, key: str, kind: str, number: int, text: str, compensable: bool = False) -> StepWrite:
        write = self._step(key, kind, "completed")
        write.attempt, write.value, write.compensable = number, text, compensable
        return write

    def _failed(self, key: str, kind: str, number: int, error: BaseException) -> StepWrite:
        code = FailureCode.ACTION_FAILED
        if isinstance(error, WaitTimeout | PayloadInvalid):
            code = FailureCode(error.code)
        text = compact({**described_step(error, code, self._attempt.path), "attempt": self._attempt.number})
        return StepWrite(self._attempt.ordinal, self._phase, key, kind, "failed", attempt=number, error=text)


def strayed(steps: Steps) -> str | None:
    """What a handler has done wrong, if its replay has gone astray where it has to wait (see `stray`)."""
    if steps._rows is None:
        return None
    waits = [wait.step for wait in steps._waits]
    return stray(steps._rows, steps._used, waits, steps._attempt.number)
