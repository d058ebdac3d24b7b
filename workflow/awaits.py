"""What a handler has been given to await: a call that it forgets to await would leave no other trace than a warning."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from typing import Any, Final, TypeVar, cast

from asgiref.sync import markcoroutinefunction

from workflow.definitions.rules import show

TURNS: Final = 8
"""Of the loop, in which a task that was created, and has not begun, begins what it was given."""
MOST_TURNS: Final = 4096
FEW: Final = 64
"""So many are kept before those that have begun are forgotten."""


class NeverAwaited(Exception):
    """The handler has called something that is to be awaited, and has not awaited it: it never happened."""


class Awaits:
    """The coroutines that one execution's `ctx` has made. Safe to use from any thread.

    They are coroutines and no awaitables of our own, since `create_task` takes nothing else. They are held until they
    have begun: one that nobody else holds would be collected at once, with Python's warning.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[tuple[Coroutine[Any, Any, Any], str, object]] = []
        self._forgiven: list[Coroutine[Any, Any, Any]] = []
        self._most = FEW

    def add(self, coroutine: Coroutine[Any, Any, Any], name: str, key: object) -> None:
        """It was made by the method of that name, for the step of that key if it is a step's."""
        with self._lock:
            self._made.append((coroutine, name, key))
            if len(self._made) > self._most:
                self._made = [made for made in self._made if _is_unbegun(made[0])]
                self._most = max(FEW, 2 * len(self._made))

    def forgive(self) -> None:
        """What has not begun so far need not: the handler was called for something else, and left there."""
        with self._lock:
            self._forgiven += [coroutine for coroutine, _, _ in self._made]
            self._made = []

    async def asettle(self) -> None:
        """The handler has ended; returns when nothing begins any more that a task was created for. For as long as
        something does, for a task may have waited for another one to begin."""
        turns, left = TURNS, len(self._unbegun())
        while left:
            for _ in range(turns):
                await asyncio.sleep(0)
            before, left = left, len(self._unbegun())
            if left >= before:
                return
            # Thousands that begin a few at a time are not counted each time.
            turns = min(2 * turns, MOST_TURNS)

    def require(self) -> None:
        """Raises `NeverAwaited` if something has not begun. One that was closed is none: that is no oversight."""
        unbegun = self._unbegun()
        if not unbegun:
            return
        _, name, key = unbegun[0]
        more = f", and {len(unbegun) - 1:,} more were not" if len(unbegun) > 1 else ""
        raise NeverAwaited(f"{_place(name, key)} was never awaited{more}")

    def close(self) -> None:
        """Nothing begins any more, and Python has nothing to warn of."""
        for coroutine in [*(made[0] for made in self._unbegun()), *self._forgiven]:
            if _is_unbegun(coroutine):
                with suppress(ValueError, RuntimeError):  # another thread has begun it just now
                    coroutine.close()
        with self._lock:
            self._made, self._forgiven = [], []

    def _unbegun(self) -> list[tuple[Coroutine[Any, Any, Any], str, object]]:
        if not self._made:
            return []
        with self._lock:
            return [made for made in self._made if _is_unbegun(made[0])]


F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


def awaited(method: F) -> F:
    """An `async` method of `ctx.step`, whose calls are held against their being awaited: in its object's `_awaits`."""
    return _told(method, f"ctx.step.{method.__name__}", of_step=True)


def awaited_of_context(method: F) -> F:
    """The same for one of `ctx` itself, which has no key."""
    return _told(method, f"ctx.{method.__name__}", of_step=False)


def _told(method: F, name: str, *, of_step: bool) -> F:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        coroutine = method(self, *args, **kwargs)
        key = (args[0] if args else kwargs.get("key")) if of_step else None
        self._awaits.add(coroutine, name, key)
        return coroutine

    return cast(F, markcoroutinefunction(call))  # `async_to_sync` and the like ask for it


def _place(name: str, key: object) -> str:
    if key is None:
        return name
    return f"step {key!r}: {name}" if isinstance(key, str) else f"step {show(key)}: {name}"


def _is_unbegun(coroutine: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED


def on_a_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
