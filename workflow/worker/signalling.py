"""Django's signals from a worker: in order, on a thread of their own, and never in anybody's way."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError, close_old_connections, connections

from workflow import transitions
from workflow.conf import conf
from workflow.plan import HistoryRow
from workflow.store.ports import abandon_connection
from workflow.store.settle import Settlement, appended, data_of

logger = logging.getLogger("workflow")

CAPACITY: Final = 10_000
"""Transitions that wait for the receivers; what comes past it is not told."""
BATCH: Final = 200
"""Transitions that are looked up together."""
LOG_INTERVAL: Final = 60.0
"""Seconds between two log lines about receivers that are too slow."""

_Waiting = tuple[UUID | str, int, str, str | None, Any, str | dict[str, Any] | None, float | None]
"""(run id, seq, name, node, at, data, due): data is JSON text, or has been read already."""


class Signaller:
    """Receivers run one after the other on one thread, which is started with the first transition for them.

    All methods may be called from any thread, return at once but for `drained`, and never raise. `later(fn)` has `fn`
    called in a while: for a thread that the system does not start now.
    """

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        self._later = later
        self._changed = threading.Condition()
        self._queue: deque[_Waiting] = deque()
        self._thread: threading.Thread | None = None
        self._refused = False
        """Whether the thread could not be started, which has been told of, and is tried again later."""
        self._busy = 0
        """Transitions in hand."""
        self._dropped = 0
        self._logged = float("-inf")

    @property
    def started(self) -> bool:
        """Whether there has ever been anything to tell."""
        return self._thread is not None or bool(self._queue)

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """What settled boundaries appended."""
        if not transitions.has_receivers():
            return
        waiting: list[_Waiting] = []
        for settlement in settlements:
            run_id, at = settlement.lease.run_id, settlement.at
            waiting += [
                (run_id, seq, name, node, at, data, due)
                for seq, name, node, data, due in appended(settlement)
            ]
        self._put(waiting)

    def appended(self, rows: Sequence[HistoryRow]) -> None:
        """What was appended outside of boundaries."""
        if rows and transitions.has_receivers():
            self._put([(*row, None) for row in rows])

    def drained(self, seconds: float) -> bool:
        """Gives the receivers so many seconds for what waits; whether that was enough."""
        with self._changed:
            done = self._changed.wait_for(lambda: not self._queue and not self._busy, seconds)
            if not done:
                untold = len(self._queue) + self._busy
                logger.warning("the worker stops before receivers were told of %d transitions", untold)
            return done

    def _put(self, waiting: list[_Waiting]) -> None:
        waiting = [one for one in waiting if one[2] not in transitions.NO_TRANSITIONS]
        if not waiting:
            return
        with self._changed:
            room = CAPACITY - len(self._queue)
            self._queue.extend(waiting[:room])
            self._dropped += max(len(waiting) - room, 0)
            if self._thread is None and not self._refused:
                self._start()
            self._changed.notify_all()
        if self._dropped:
            self._complain()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="workflow-signals", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            if not self._refused:
                logger.error("receivers of signals wait for a thread, which cannot be started: %s", error)
            self._refused = True
            self._later(self._start_again)
        else:
            self._thread = thread
            self._refused = False

    def _start_again(self) -> None:
        with self._changed:
            if self._thread is None:
                self._start()

    def _complain(self) -> None:
        now = time.monotonic()
        if now - self._logged >= LOG_INTERVAL:
            self._logged = now
            dropped, self._dropped = self._dropped, 0
            logger.warning("receivers of signals are too slow; they were not told of %d transitions", dropped)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = 0
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue)
                batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                self._busy = len(batch)
            self._tell(batch)

    def _tell(self, batch: list[_Waiting]) -> None:
        close_old_connections()
        try:
            transitions.send([_row(one) for one in batch], conf.DATABASE)
        except DatabaseError as error:
            logger.warning("receivers were not told of %d transitions: %s", len(batch), error)
        except BaseException:  # a receiver's SystemExit too: nobody would be told of anything again
            logger.exception("a receiver of signals failed")
        finally:
            for connection in connections.all(initialized_only=True):
                if connection.in_atomic_block:  # a receiver has left it open
                    abandon_connection(connection)
            close_old_connections()


def _row(waiting: _Waiting) -> HistoryRow:
    run_id, seq, name, node, at, data, due = waiting
    return run_id, seq, name, node, at, data_of(data, at, due)
