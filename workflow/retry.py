"""How long to wait after a failed attempt. Pure: no clock, no settings, no randomness of its own.

Without a ``backoff`` an inline action waits 1 s times the attempt, a queued one 0.5 s doubling with each
attempt, and neither longer than ``longest``; a number of seconds or a ``timedelta`` b means b times the
attempt; a callable is asked. What a project names itself is kept as it is, up to ``FOR_EVER``. ``jittered``
spreads delays, for those who ask for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta

from workflow.errors import Retry
from workflow.times import FOR_EVER

MAX_BACKOFF = 3600.0
"""Seconds that nothing waits longer than by default, unless ``WORKFLOW["MAX_BACKOFF"]`` says otherwise."""
_MAX_DOUBLINGS = 64  # 0.5 s doubled as often is past any limit that can be set; 2.0 ** 1024 would overflow

Backoff = int | float | timedelta | Callable[[int], "int | float | timedelta"] | None


class BackoffInvalid(Exception):
    """A user's backoff function raised, or returned no usable delay. ``default_delay`` (seconds) is what to
    wait instead: a mistake there must neither lose the job nor end its retries.
    """

    def __init__(self, message: str, default_delay: float) -> None:
        super().__init__(message)
        self.default_delay = default_delay


def delay(backoff: Backoff, attempt: int, via: str, longest: float = MAX_BACKOFF) -> float:
    """Seconds from the failure of ``attempt`` (1-based) to the next, from 0 to ``bound(backoff, longest)``.

    ``via`` is the placement, "inline" or "queue". Raises ``BackoffInvalid``, but only for a callable.
    """
    if backoff is None:
        return default_delay(attempt, via, longest)
    if isinstance(backoff, timedelta):
        return _times(backoff.total_seconds(), attempt)
    if isinstance(backoff, int | float):
        return _times(backoff, attempt)
    return _asked(backoff, attempt, default_delay(attempt, via, longest))


def bound(backoff: Backoff, longest: float = MAX_BACKOFF) -> float:
    """Seconds that no delay of this backoff is longer than: ``longest`` holds for the engine's own alone."""
    return longest if backoff is None else FOR_EVER


def default_delay(attempt: int, via: str, longest: float = MAX_BACKOFF) -> float:
    """The delay of an action that names no backoff, in seconds."""
    if via == "queue":
        return min(0.5 * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS), float(longest))
    return float(min(attempt, longest))


def named_delay(asked: Retry) -> float | None:
    """The delay that a handler's ``Retry`` names, in seconds, never past ``FOR_EVER``; None leaves it to the backoff.

    So does what is no delay at all: a subclass may have set anything, and the attempt has failed all the same.
    """
    seconds: object = asked.delay
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:  # NaN is not
        return None
    return float(min(seconds, FOR_EVER))


def jittered(seconds: float, jitter: float, chance: float, longest: float = MAX_BACKOFF) -> float:
    """A delay lengthened or shortened by at most its ``jitter``-th part, never past ``longest``.

    ``chance`` decides by how much: 0 is the shortest, 1 the longest it can get, 0.5 leaves it as it is.
    """
    return min(max(seconds * (1 + jitter * (2 * chance - 1)), 0.0), float(longest))


def _times(base: float, attempt: int) -> float:
    # Both are bounded before they are multiplied: a huge whole number does not fit a float.
    if base >= FOR_EVER:
        return FOR_EVER
    return min(float(base) * min(attempt, 2**53), FOR_EVER)


def _asked(backoff: Callable[[int], object], attempt: int, default: float) -> float:
    try:
        answer = backoff(attempt)
        if isinstance(answer, timedelta):
            answer = answer.total_seconds()
    except (
        BaseException
    ) as error:  # it may be called where nobody else would catch that: an attempt timed out
        raise BackoffInvalid(f"the backoff function raised {type(error).__name__}", default) from error
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        if inspect.iscoroutine(answer):
            answer.close()  # else Python warns that nobody awaited it
        kind = type(answer).__name__
        raise BackoffInvalid(f"the backoff function must return a number of seconds, not a {kind}", default)
    if not 0 <= answer < float("inf"):  # NaN fails this too
        raise BackoffInvalid("the backoff function must return a finite number, 0 or more", default)
    return float(min(answer, FOR_EVER))
