"""When the units of a process may take their jobs on to other nodes without a claim in between.

A unit that moves on keeps its slot, so others of the same priority wait for it: it goes through the queue again once
its slice is over. And where the database has just said that something else comes first, nobody tries for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SLICE: Final = 1.0
"""Seconds, from its claim, for which a unit may move on."""
REST: Final = 1.0
"""Seconds for which no unit of a process moves on after one was refused: each refusal costs a commit and two reads."""


class Mover:
    """`room()` is how many more jobs the process may take, for a move counts as one; `take(n)` counts them, and gives
    them back with a negative number. `now` is a clock that only paces.
    """

    def __init__(
        self,
        room: Callable[[], int],
        take: Callable[[int], None],
        *,
        slice: float | None = None,  # noqa: A002
        rest: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._room = room
        self.take = take
        self._slice = SLICE if slice is None else slice
        self._rest = REST if rest is None else rest
        self._now = now
        self._rests_until = float("-inf")

    def allows(self, claimed_at: float) -> int:
        """How often a unit that was claimed then, on the same clock, may move on in its next boundary."""
        now = self._now()
        if now < self._rests_until or now - claimed_at >= self._slice:
            return 0
        return max(self._room(), 0)

    def refused(self) -> None:
        """The database has refused a boundary because of its move."""
        self._rests_until = self._now() + self._rest
