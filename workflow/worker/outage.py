"""What a worker says while the database or a broker is away: a few lines, however long it takes."""

from __future__ import annotations

import logging
import threading
import time

from workflow.store.trouble import refused_by_server

logger = logging.getLogger("workflow")

FIRST_REMINDER = 10.0
LONGEST_SILENCE = 300.0
"""Seconds between two lines about one outage; doubled each time, from the first to the longest."""


class Outage:
    """`lost` and `back` are called by whoever uses a connection, from any thread. `what` is away."""

    def __init__(self, what: str = "the database") -> None:
        self._what = what
        self._lock = threading.Lock()
        self._since: float | None = None
        self._next = 0.0
        self._pause = FIRST_REMINDER

    def lost(self, what: str, error: BaseException) -> None:
        """`what` could not be done for lack of a connection."""
        now = time.monotonic()
        with self._lock:
            if self._since is None:
                self._since, self._pause = now, FIRST_REMINDER
            elif now < self._next:
                return
            else:
                self._pause = min(self._pause * 2, LONGEST_SILENCE)
            self._next = now + self._pause
            away = now - self._since
        if (refusal := refused_by_server(error)) is not None:
            logger.warning(
                "%s refuses connections for %.0f s now, %s is tried again; the server says: %s",
                self._what,
                away,
                what,
                refusal,
            )
            return
        reason = " ".join(str(error).split()) or type(error).__name__
        logger.warning("%s is away for %.0f s now, %s is tried again: %s", self._what, away, what, reason)

    def back(self) -> None:
        """Something was done: the database is there."""
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            logger.info("%s is back after %.1f s", self._what, time.monotonic() - since)
