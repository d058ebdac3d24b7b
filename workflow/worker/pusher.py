"""Telling people of history from a worker: in order, in batches, and never in anybody's way.

What boundaries append goes into a bounded queue, as it is; one coroutine makes messages of it and hands
them to the channel layer. With no layer that other processes read, it only notes which runs have new
entries and tells PostgreSQL of them a few times a second. A layer that is slow, broken or gone costs
what the queue holds and a log line a minute, not a transition: clients see the gap in `seq` and fetch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg

from workflow import progress
from workflow.plan import HistoryRow
from workflow.store.ports import Port
from workflow.store.settle import Settlement, appended, data_of
from workflow.worker.signalling import Signaller

logger = logging.getLogger("workflow")

CAPACITY: Final = 10_000
"""Entries that wait for the layer; past it the oldest go."""
CAPACITY_CHARACTERS: Final = 16 * 2**20
"""Characters of data that they hold together, at most."""
MAX_AGE: Final = 10.0
"""Seconds after which nobody needs to be told any more: clients have looked by themselves."""
SLICE: Final = 0.02
SHARE: Final = 0.15
"""Once more than `BACKLOG` entries wait, the layer gets this share of the loop's time, so many seconds at once:
a message costs the loop about half a millisecond, far more than the transition that it tells of."""
BACKLOG: Final = 50
NOTIFY_DELAY: Final = 0.05
"""Seconds for which what is new waits for more of the kind before PostgreSQL is told: at once, the first entry of a run
that comes alone would take CPU from the very run that it tells of, and the rest of it would need another."""
NOTIFY_INTERVAL: Final = 0.2
"""Seconds after a notification until the next one may begin to wait."""
NOTIFY_REST: Final = 2.0
"""Seconds after one that failed until it is tried again."""
SIGNALS_LAST: Final = 5.0
"""Seconds that receivers of signals get for what is left when the worker stops."""
SIGNALS_REST: Final = 0.5
"""Seconds until their thread is tried again, where it could not be started."""
CHANGED_RUNS: Final = 5_000
"""Runs that wait to be notified of; past it nobody cares which."""

Entry = tuple[float, str, int, str, str | None, Any, str | dict[str, Any] | None, float | None]
"""(when it was queued, run id, seq, name, node, at, data, due): data is JSON text, or has been read already."""


class Pusher:
    """`announce` and `announce_rows` may be called from any thread, return at once and never raise."""

    def __init__(self, port: Port) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._port = port
        self._layer = progress.layer()
        self._gate = progress.gate_of(self._layer) if self._layer is not None else progress.Gate()
        self._notifies = not progress.reaches_others(self._layer)
        self._queue: deque[Entry] = deque()
        self._characters = 0
        self._changed: dict[str, progress.Range] = {}
        self._filled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.dropped = 0
        self._signaller = Signaller(self._later)

    # --- what the engine calls ------------------------------------------------------------------

    def announce(self, settlements: Sequence[Settlement]) -> None:
        """What settled boundaries appended."""
        self._signaller.settled(settlements)
        queues = self._gate.open and progress.has_readers(self._layer)
        if not (queues or self._notifies):
            return
        now = self._loop.time()
        with self._lock:
            for settlement in settlements:
                if settlement.seq and (settlement.boundary.history or settlement.extra):
                    if self._notifies:
                        self._note_settled(settlement)
                    if queues:
                        self._put_settled(now, settlement)
        self._ring()

    def announce_rows(self, rows: Sequence[HistoryRow]) -> None:
        """What was appended to histories outside of boundaries."""
        if not rows:
            return
        self._signaller.appended(rows)
        now = self._loop.time()
        queues = self._gate.open and progress.has_readers(self._layer)
        with self._lock:
            for run_id, seq, name, node, at, data in rows:
                if self._notifies:
                    self._note(str(run_id), seq, seq)
                if queues:
                    self._put((now, str(run_id), seq, name, node, at, data, None))
        if queues or self._notifies:
            self._ring()

    def _note_settled(self, settlement: Settlement) -> None:
        assert settlement.seq is not None
        last = settlement.seq
        first = last - len(settlement.boundary.history) + 1
        # The run's seq is that of the boundary itself; what the settling added follows it.
        last += len(settlement.extra)
        self._note(settlement.lease.run_id, first, last)

    def _put_settled(self, now: float, settlement: Settlement) -> None:
        run_id, at = settlement.lease.run_id, settlement.at
        for seq, name, node, data, due in appended(settlement):
            self._put((now, run_id, seq, name, node, at, data, due))

    def _note(self, run_id: str, first: int, last: int) -> None:
        known = self._changed.get(run_id)
        if known is not None:
            first, last = min(first, known[0]), max(last, known[1])
        self._changed[run_id] = (first, last)

    def _put(self, entry: Entry) -> None:
        self._queue.append(entry)
        self._characters += _size(entry)
        while len(self._queue) > CAPACITY or (
            self._characters > CAPACITY_CHARACTERS and len(self._queue) > 1
        ):
            self._take()
            self.dropped += 1

    def _take(self) -> Entry:
        entry = self._queue.popleft()
        self._characters -= _size(entry)
        return entry

    def _ring(self) -> None:
        if threading.get_ident() == self._thread:
            self._wake()
            return
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            logger.debug("the loop has ended; nobody is told of what is left")

    def _later(self, fn: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._loop.call_later, SIGNALS_REST, fn)
        except RuntimeError:
            logger.debug("the loop has ended; receivers of signals are told of nothing any more")

    def _wake(self) -> None:
        self._idle.clear()
        self._filled.set()

    # --- the worker's background ----------------------------------------------------------------

    async def run(self) -> None:
        """Empties the queue until cancelled."""
        while True:
            await self._filled.wait()
            if self._notifies:
                await asyncio.sleep(NOTIFY_DELAY)
            self._filled.clear()
            await self._notify()
            await self._empty()
            if not self._filled.is_set():
                self._idle.set()
            if self._notifies:
                await asyncio.sleep(NOTIFY_INTERVAL)

    async def drained(self, seconds: float) -> None:
        """Gives what is queued so many seconds to go out."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            logger.debug("nobody was told of the last %d entries", len(self._queue))
        if self._signaller.started:
            try:
                await asyncio.to_thread(self._signaller.drained, SIGNALS_LAST)
            except RuntimeError as error:
                logger.warning("the worker does not wait for receivers of signals: %s", error)

    async def _empty(self) -> None:
        since = self._loop.time()
        while self._queue:
            with self._lock:
                entry = self._take()
            if self._loop.time() - entry[0] > MAX_AGE:
                self.dropped += 1
            else:
                await self._send(entry)
            spent = self._loop.time() - since
            if spent > SLICE and len(self._queue) > BACKLOG:
                await asyncio.sleep(spent * (1 / SHARE - 1))
                since = self._loop.time()

    async def _send(self, entry: Entry) -> None:
        try:
            await progress.send(self._layer, [_message(entry)])
        except Exception as error:
            with self._lock:
                lost = 1 + len(self._queue)  # all of it is as old as the layer is slow
                self._queue.clear()
                self._characters = 0
            self._gate.failed(error, lost)
        else:
            self._gate.passed()

    async def _notify(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, {}
        if not changed:
            return
        try:
            async with asyncio.timeout(progress.BOUND):
                for payload in progress.payloads(changed):
                    await self._port.run([(progress.NOTIFY, (payload,))])
        except (psycopg.Error, OSError, TimeoutError) as error:
            logger.debug("nobody was told of new history, once more in %g s: %r", NOTIFY_REST, error)
            await asyncio.sleep(NOTIFY_REST)
            with self._lock:
                if len(self._changed) < CHANGED_RUNS:
                    for run_id, (first, last) in changed.items():
                        self._note(run_id, first, last)
            self._filled.set()


def _size(entry: Entry) -> int:
    data = entry[6]
    return len(data) if isinstance(data, str) else 0


def _message(entry: Entry) -> dict[str, Any]:
    _, run_id, seq, name, node, at, data, due = entry
    return progress.message(run_id, seq, name, node, at, data_of(data, at, due))
