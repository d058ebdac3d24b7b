"""Leaving between two pieces of work when a signal says so."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

STOPS: Final = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Whether this process was told to leave, and pauses that end when it is.

    Not a `threading.Event`: a signal's handler runs in the main thread, between any two instructions of what that is
    doing. If it is in the middle of the event's `wait`, `set` waits for a lock that its own thread holds, for ever.
    """

    def __init__(self) -> None:
        self._told = False
        self._reading, self._writing = socket.socketpair()
        self._writing.setblocking(False)

    def is_set(self) -> bool:
        return self._told

    def wait(self, seconds: float) -> bool:
        """Returns after so many seconds, or as soon as the process is told; whether it was."""
        if not self._told:
            select.select([self._reading], [], [], seconds)
        return self._told

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """A handler of signals."""
        self._told = True
        with contextlib.suppress(BlockingIOError):  # told so often that nobody can overhear it
            self._writing.send(b"\0")

    def close(self) -> None:
        """Of no use from here on."""
        self._reading.close()
        self._writing.close()


@contextlib.contextmanager
def told_to_stop() -> Iterator[Stop]:
    """What SIGTERM and SIGINT set meanwhile. Only a process's main thread can ask for signals: others get one that
    nobody sets.
    """
    with contextlib.closing(Stop()) as stop:
        if threading.current_thread() is not threading.main_thread():
            yield stop
            return
        before = {number: signal.signal(number, stop.on_signal) for number in STOPS}
        try:
            yield stop
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
