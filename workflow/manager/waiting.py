"""Pacing for those who wait until a run is over: they look, since Django's connection can't listen."""

from __future__ import annotations

import time
import uuid

from django.db import connections, transaction

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.25
GROWTH = 1.5


class Patience:
    """The pauses between two looks, in seconds: short at first, then longer, never past the deadline."""

    def __init__(self, run_id: uuid.UUID, timeout: float | None) -> None:
        self._run_id = run_id
        self.timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._pause = FIRST_PAUSE

    def next(self, status: str) -> float:
        """The next pause. Raises ``TimeoutError`` when none is left; ``status`` is for its message."""
        pause = self._pause
        self._pause = min(pause * GROWTH, LONGEST_PAUSE)
        if self._deadline is None:
            return pause
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"run {self._run_id} is still {status} after {self.timeout:g} s")
        return min(pause, left)


def refuse_endless(using: str, timeout: float | None) -> None:
    """Inside a transaction nobody sees what it dispatched: without a timeout the wait would never end."""
    if timeout is None and connections[using].in_atomic_block:
        raise transaction.TransactionManagementError(
            "wait() inside a transaction needs a timeout: no worker sees the run before the commit"
        )
