"""The threads that run plain handlers.

A plain pool, not asyncio's: no event loop runs in its threads, a thread that does not come back
can be replaced, and results that are ready together reach the loop in one wake-up.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from django.db import connections

logger = logging.getLogger("workflow")

Work = Callable[[], Any]
Done = Callable[[Any], None]


class _Thread:
    def __init__(self) -> None:
        self.abandoned = False
        self.work: Work | None = None


class ThreadPool:
    """At most `size` pieces of work at once, threads made as they are needed.

    `submit(work, done)` runs `work()` in a thread and then `done(result)` on the loop. `work` must
    not raise. `abandon(work)` gives a thread up that is still busy with it: another takes its place.
    """

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self._size = size
        self._loop = loop
        self._queue: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[_Thread] = []
        self._idle = 0
        self._results: deque[tuple[Done, Any]] = deque()
        self._ringing = False
        self.abandoned = 0

    def submit(self, work: Work, done: Done) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif len(self._threads) < self._size:
                self._grow()
            # Otherwise the next thread that is done takes it.
        self._queue.put((work, done))

    def abandon(self, work: Work) -> bool:
        """Whether a thread was busy with `work` and is now counted out; its result is not delivered."""
        with self._lock:
            for thread in self._threads:
                if thread.work is work:
                    thread.abandoned = True
                    self._threads.remove(thread)
                    self.abandoned += 1
                    self._grow()
                    return True
        return False

    def close(self) -> None:
        """Lets idle threads end. Busy ones are daemons and do not hold the process."""
        for _ in range(self._size + 1):
            self._queue.put(None)

    def _grow(self) -> None:
        thread = _Thread()
        self._threads.append(thread)
        threading.Thread(target=self._work, args=(thread,), name="workflow-handler", daemon=True).start()

    def _work(self, thread: _Thread) -> None:
        try:
            while True:
                item = self._queue.get()
                if item is None:
                    return
                work, done = item
                thread.work = work
                result = work()
                with self._lock:
                    thread.work = None
                    if thread.abandoned:
                        self.abandoned -= 1
                        return
                    if self._queue.empty():
                        self._idle += 1
                self._deliver(done, result)
        finally:
            connections.close_all()

    def _deliver(self, done: Done, result: Any) -> None:
        self._results.append((done, result))
        if not self._ringing:
            self._ringing = True
            try:
                self._loop.call_soon_threadsafe(self._take)
            except RuntimeError:
                logger.debug("a handler ended after its worker")

    def _take(self) -> None:
        self._ringing = False
        while self._results:
            done, result = self._results.popleft()
            done(result)
