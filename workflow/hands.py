"""Several steps at once in one execution: in tasks of an `async` handler, or in threads of a plain one.

A step is *in hand* from its call until it returns or raises. No execution ends before its steps have: else their
bodies would still be at work while the next execution calls them again. A step that has to wait in a task first lets
the others go on, for as long as any of them does anything but wait, and then all of them suspend as one. In a thread
it leaves at once, since whoever called it there may wait for the others itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType

from workflow.errors import StepKeyReused
from workflow.plan import StepWrite
from workflow.signals import HEED, TIMEOUT, Signal

ParkStep = Callable[[StepWrite], Awaitable[None]]
"""Writes down that a step waits."""
TURNS = 8
"""Of the loop, that tasks which are ready get to begin their next step, before all are taken to be waiting."""
CROSSING = 0.1
"""Seconds, at most, that the outcome of a step in another thread takes to the task that awaits it."""
LOOK = 0.1
"""Seconds between two looks at the signal, of a thread that waits for steps in hand."""

_within: ContextVar[tuple[Hand, ...]] = ContextVar("workflow_steps_within", default=())
"""The steps in whose bodies this code runs, the outermost first."""


@dataclass(slots=True)
class Wait:
    """A step that has to wait `delay` seconds, and what is written of it as the handler parks. `since`: from when the
    delay is counted, on this process's own clock, None for as long as that is when it is written. `is_parked`: whether
    this execution has written it already.
    """

    delay: float
    step: StepWrite
    since: float | None = None
    is_parked: bool = False

    @property
    def left(self) -> float:
        return self.delay if self.since is None else max(self.delay - (time.monotonic() - self.since), 0.0)


class Suspend(BaseException):
    """Raised through a handler by a step that has to wait. `waits` are all of the execution's, this one's included.

    Not an Exception, so that no `except Exception` of the handler swallows it.
    """

    def __init__(self, wait: Wait, waits: list[Wait]) -> None:
        super().__init__(wait.delay)
        self.wait = wait
        self.waits = waits

    @property
    def delay(self) -> float:
        """Seconds until the first of them is due."""
        return min(wait.left for wait in self.waits)

    @property
    def steps(self) -> list[StepWrite]:
        """What is written as the handler parks."""
        return [wait.step for wait in self.waits]


class Hands:
    """The steps in hand of one execution. Safe to use from any thread."""

    def __init__(self, signal: Signal) -> None:
        self.ended: Suspend | StepKeyReused | None = None
        """What has ended the execution, also where the handler has caught it: no step goes on after that but the bodies
        in hand."""
        self.parked_by: int | None = None
        """The ident of the thread whose step has suspended it."""
        self.over = False
        """Whether the handler has ended: no step begins any more, and one that waits for others does so no longer."""
        self._signal = signal
        self._lock = threading.Lock()
        self._held: set[Hand] = set()
        self._crossing_until = 0.0
        """Until when what a thread has left may still be on its way to the loop."""
        self._idle: list[Hand] = []
        """In whose bodies some step waits, as often as one does."""
        self._callbacks: list[Callable[[], None]] = []

    def suspend(self, suspended: Suspend) -> None:
        """A step has to wait, and no other goes on."""
        if self.ended is None:
            self.ended = suspended
            self.parked_by = threading.get_ident()

    def take(self, hand: Hand) -> None:
        """The step is in hand."""
        with self._lock:
            self._held.add(hand)

    def leave(self, hand: Hand, *, thread: bool = False) -> None:
        """It is no more. `thread`: it was in a thread, from where its outcome is still on its way to the loop."""
        with self._lock:
            if thread:
                self._crossing_until = time.monotonic() + CROSSING
            self._held.discard(hand)
        self._changed()

    def end(self) -> None:
        """The handler has returned or raised. Returns when no step is in hand, or nobody waits for its outcome: where
        the time is up they have a second to end by themselves."""
        self.over = True
        self._changed()
        heeding: float | None = None

        def is_given_up() -> bool:
            nonlocal heeding
            if self._signal.reason != TIMEOUT:
                return self._signal.aborted
            heeding = heeding or time.monotonic()
            return time.monotonic() - heeding > HEED

        while not is_given_up():
            event = threading.Event()
            if self._when_changed(event.set, self._is_empty):
                return
            while not is_given_up() and not event.wait(LOOK):
                pass

    async def aend(self) -> None:
        """`end`, for `async` handlers, which are cancelled when nobody waits for them."""
        self.over = True
        self._changed()
        while not self._signal.aborted and not self._is_empty():
            await self._achange(self._is_empty)

    async def ajoin(self, suspended: Suspend, within: tuple[Hand, ...], apark: ParkStep) -> None:
        """Returns when no step goes on any more beside this one, and those in whose bodies it was called. While some
        do, `apark` writes down that it waits."""
        with self._lock:
            self._idle.extend(within)
        self._changed()
        try:
            while not self._is_over() and not await self._asettled():
                if not (wait := suspended.wait).is_parked:
                    await apark(wait.step)
                    wait.is_parked = True
                    wait.since = wait.since or time.monotonic()
                else:
                    await self._achange(self._is_quiet)
        except BaseException:
            if not self._is_over():  # cancelled: whoever has called it waits for it no longer
                suspended.waits.remove(suspended.wait)
            raise  # else it is the execution's end that cancels it, as a task group does with what is left
        finally:
            with self._lock:
                for hand in within:
                    self._idle.remove(hand)

    async def _asettled(self) -> bool:
        """Whether nothing goes on, and nothing that was ready has begun anything."""
        while True:
            for _ in range(TURNS):
                if not self._is_quiet():
                    return False
                await asyncio.sleep(0)
            crossing = self._crossing_until - time.monotonic()
            if crossing <= 0 or self._is_over():
                return self._is_quiet()
            await asyncio.sleep(min(crossing, CROSSING / 10))

    def _is_empty(self) -> bool:
        return not self._held

    def _is_over(self) -> bool:
        return self.over or self.ended is not None

    def _is_quiet(self) -> bool:
        return self._is_over() or self._held.issubset(self._idle)

    def _changed(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def _when_changed(self, callback: Callable[[], None], done: Callable[[], bool]) -> bool:
        """True when it is `done`; else `callback` is called at the next change."""
        with self._lock:
            if done():
                return True
            self._callbacks.append(callback)
        return False

    async def _achange(self, done: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        event = asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

        if not self._when_changed(wake, done):
            await event.wait()


class Hand:
    """One step in hand. With `with`, a step of a thread; with `async with`, one of a task."""

    __slots__ = ("_apark", "_hands", "_token", "_within")

    def __init__(self, hands: Hands, apark: ParkStep) -> None:
        self._hands = hands
        self._apark = apark
        self._within = _within.get()
        self._token: Token[tuple[Hand, ...]] | None = None

    def __enter__(self) -> None:
        self._hands.take(self)
        self._token = _within.set((*self._within, self))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Suspend):
            self._hands.suspend(error)
        self._leave(thread=True)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()
        if isinstance(error, Suspend) and self._hands.ended is None:
            await self._hands.ajoin(error, self._within, self._apark)
            if not self._hands.over:
                self._hands.suspend(error)

    def _leave(self, *, thread: bool = False) -> None:
        self._hands.leave(self, thread=thread)
        assert self._token is not None
        with suppress(
            ValueError
        ):  # a coroutine that nobody has awaited to its end is closed by whoever collects it
            _within.reset(self._token)
