"""How long to wait after a failed attempt. Pure: no clock, no randomness, so the same failure waits the
same time.

Without a ``backoff`` an inline action waits 1 s times the attempt, a queued one 0.5 s doubling with each
attempt; a number of seconds or a ``timedelta`` b means b times the attempt; a callable is asked. Nothing
waits longer than ``MAX_BACKOFF``. Jitter is what a callable may add.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta

MAX_BACKOFF = 3600.0  # seconds
_MAX_DOUBLINGS = 13  # 0.5 s doubled as often is past MAX_BACKOFF; 2.0 ** 1024 would overflow

Backoff = int | float | timedelta | Callable[[int], "int | float | timedelta"] | None


class BackoffInvalid(Exception):
    """A user's backoff function raised, or returned no usable delay. ``default_delay`` (seconds) is what to
    wait instead: a mistake there must neither lose the job nor end its retries.
    """

    def __init__(self, message: str, default_delay: float) -> None:
        super().__init__(message)
        self.default_delay = default_delay


def delay(backoff: Backoff, attempt: int, via: str) -> float:
    """Seconds from the failure of ``attempt`` (1-based) to the next, from 0 to ``MAX_BACKOFF``.

    ``via`` is the placement, "inline" or "queue". Raises ``BackoffInvalid``, but only for a callable.
    """
    if backoff is None:
        return default_delay(attempt, via)
    if isinstance(backoff, timedelta):
        return _capped(backoff.total_seconds(), attempt)
    if isinstance(backoff, int | float):
        return _capped(backoff, attempt)
    return _asked(backoff, attempt, default_delay(attempt, via))


def default_delay(attempt: int, via: str) -> float:
    """The delay of an action that names no backoff, in seconds."""
    if via == "queue":
        return min(0.5 * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS), MAX_BACKOFF)
    return float(min(attempt, MAX_BACKOFF))


def _capped(base: float, attempt: int) -> float:
    # Both are bounded before they are multiplied: a huge whole number does not fit a float.
    if base >= MAX_BACKOFF:
        return MAX_BACKOFF
    return min(float(base) * min(attempt, 2**53), MAX_BACKOFF)


def _asked(backoff: Callable[[int], object], attempt: int, default: float) -> float:
    try:
        answer = backoff(attempt)
    except (Exception, SystemExit) as error:
        raise BackoffInvalid(f"the backoff function raised {type(error).__name__}", default) from error
    if isinstance(answer, timedelta):
        answer = answer.total_seconds()
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        if inspect.iscoroutine(answer):
            answer.close()  # else Python warns that nobody awaited it
        kind = type(answer).__name__
        raise BackoffInvalid(f"the backoff function must return a number of seconds, not a {kind}", default)
    if not 0 <= answer < float("inf"):  # NaN fails this too
        raise BackoffInvalid("the backoff function must return a finite number, 0 or more", default)
    return float(min(answer, MAX_BACKOFF))
