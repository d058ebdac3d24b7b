"""The abort signal that a handler sees as `ctx.signal`, and Django's signal for what happens to runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from django import dispatch

from workflow.errors import Aborted

logger = logging.getLogger("workflow")

TIMEOUT = "timeout"
CANCELLED = "cancelled"
LEASE_LOST = "lease-lost"
SHUTDOWN = "shutdown"
HEED: Final = 1.0
"""Seconds that a plain handler with a `ctx` gets to see that its time is up and end by itself, before it is
interrupted."""

transitioned: Final = dispatch.Signal()
"""Sent after the commit of each transition, in the process that made it: see `workflow.transitions.send`."""


class Signal:
    """Set once, from any thread, when the attempt should stop; whatever it still returns is discarded.

    `reason` is one of `timeout`, `cancelled`, `lease-lost` and `shutdown`, or None while nothing is asked.
    """

    def __init__(self) -> None:
        self._event: threading.Event | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self.reason: str | None = None

    @property
    def aborted(self) -> bool:
        """Whether the handler has been asked to stop."""
        return self.reason is not None

    def raise_if_aborted(self) -> None:
        """Raises `Aborted` (its `.reason` says why) once the handler has been asked to stop."""
        if self.reason is not None:
            raise Aborted(self.reason)

    def wait(self, seconds: float | None = None) -> bool:
        """Sleeps at most so many seconds, less when asked to stop: then returns True. Blocks its thread."""
        with self._lock:
            if self.reason is not None:
                return True
            if self._event is None:
                self._event = threading.Event()  # made for those who wait: most handlers never do
        return self._event.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))

    def add_callback(self, fn: Callable[[], object]) -> None:
        """Calls `fn()` when asked to stop, at once if that was before. Its exceptions are logged.

        Who asks calls it, in a worker mostly the event loop: `fn` must be quick and use no ORM. Whatever it raises ends
        there, `SystemExit` too.
        """
        with self._lock:
            if self.reason is None:
                self._callbacks.append(fn)
                return
        _call(fn, Exception, SystemExit)  # the rest may be the engine's, on its way through this handler

    def abort(self, reason: str) -> bool:
        """The engine's: asks the handler to stop. False when that was done before."""
        with self._lock:
            if self.reason is not None:
                return False
            self.reason = reason
            callbacks, self._callbacks = self._callbacks, []
            if self._event is not None:
                self._event.set()
        for fn in callbacks:
            _call(fn, BaseException)
        return True


def _call(fn: Callable[[], object], *kinds: type[BaseException]) -> None:
    try:
        fn()
    except kinds:
        logger.exception("a callback of ctx.signal failed")
