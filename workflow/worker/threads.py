"""The threads that run plain handlers.

A plain pool, not asyncio's: no event loop runs in its threads, a thread that does not come back
can be replaced, and neither work nor results cost a wake-up each. Work that is submitted wakes one
thread at most; a thread that was woken and finds more than it can take wakes the next. So handlers
that block get a thread each, while handlers that return at once are worked off by a few. Results that
are ready together reach the loop in one call.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from django.core.cache import caches
from django.db import connections

logger = logging.getLogger("workflow")

REFUSED_REST = 0.5
"""Seconds until a thread is tried again that the system would not start."""

Work = Callable[[], Any]
Done = Callable[[Any], None]


class _Thread:
    __slots__ = ("abandoned", "bell", "work")

    def __init__(self) -> None:
        self.abandoned = False
        self.work: Work | None = None
        self.bell = threading.Lock()
        self.bell.acquire()


class ThreadPool:
    """At most `size` pieces of work at once, threads made as they are needed.

    `submit(work, done)` runs `work()` in a thread and then `done(result)` on the loop. `work` must
    not raise: what it raises all the same is logged, and `done` is not called. `abandon(work)` gives a
    thread up that is still busy with it: another takes its place. A thread that the system does not start (it
    has too many) is tried again; what waits for it is taken by the others meanwhile.
    """

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self._size = size
        self._loop = loop
        self._queue: deque[tuple[Work, Done]] = deque()
        self._lock = threading.Lock()
        self._threads: list[_Thread] = []
        self._idle: list[_Thread] = []
        self._waking = False
        """Whether a thread has been woken and has not looked into the queue yet: it will wake the next."""
        self._refused = False
        """Whether the latest thread could not be started, which has been told of."""
        self._trying_again = False
        self._closed = False
        self._results: deque[tuple[Done, Any]] = deque()
        self._ringing = False
        self.abandoned = 0

    def submit(self, work: Work, done: Done) -> None:
        """Queues a piece of work. Called on the loop."""
        self._queue.append((work, done))
        if not self._waking:
            self._wake_one()

    def abandon(self, work: Work) -> bool:
        """Whether a thread was busy with `work` and is now counted out; its result is not delivered."""
        with self._lock:
            for thread in self._threads:
                if thread.work is work:
                    thread.abandoned = True
                    self._threads.remove(thread)
                    self.abandoned += 1
                    break
            else:
                return False
        self._wake_one()
        return True

    def close(self) -> None:
        """Lets idle threads end. Busy ones are daemons and do not hold the process."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.bell.release()

    def _wake_one(self) -> None:
        with self._lock:
            if self._idle:
                self._waking = True
                self._idle.pop().bell.release()
            elif len(self._threads) < self._size and not self._closed:
                self._start_one()

    def _start_one(self) -> None:
        self._waking = True
        thread = _Thread()
        self._threads.append(thread)
        try:
            threading.Thread(target=self._serve, args=(thread,), name="workflow-handler", daemon=True).start()
        except (RuntimeError, MemoryError) as error:
            # With the flag up nobody would be woken any more, and what is no thread must not count as one.
            self._threads.remove(thread)
            self._waking = False
            if not self._refused:
                logger.error(
                    "no thread can be started for handlers, of which %d are at work: %s; it is tried again",
                    len(self._threads),
                    error,
                )
            self._refused = True
            self._try_again_later()
        else:
            self._refused = False

    def _try_again_later(self) -> None:
        if not self._trying_again:
            self._trying_again = True
            try:
                self._loop.call_soon_threadsafe(self._loop.call_later, REFUSED_REST, self._try_again)
            except RuntimeError:
                logger.debug("the loop has ended; nothing is left to be done")

    def _try_again(self) -> None:
        self._trying_again = False
        if self._queue:
            self._wake_one()

    def _serve(self, thread: _Thread) -> None:
        _make_caches()
        try:
            while self._work_off(thread) and self._park(thread):
                pass
        finally:
            connections.close_all()

    def _park(self, thread: _Thread) -> bool:
        """Waits for the bell. False once the pool is closed."""
        with self._lock:
            if self._closed:
                return False
            # The flag falls before the queue is looked at once more: whoever adds work now either finds the
            # flag down and rings, or has its work found here.
            self._waking = False
            if self._queue:
                return True
            self._idle.append(thread)
        thread.bell.acquire()
        return not self._closed

    def _work_off(self, thread: _Thread) -> bool:
        """Takes work until there is none. False when this thread was given up meanwhile."""
        woken = True
        while True:
            try:
                work, done = self._queue.popleft()
            except IndexError:
                return True
            thread.work = work
            if woken:
                woken = False
                self._waking = False
                if self._queue:
                    self._wake_one()
            try:
                # What it sets in context variables (a language that it activates, say) ends with it.
                result, has_result = copy_context().run(work), True
            except BaseException:  # it costs a result, but not the pool one of its threads
                logger.exception("a piece of work has raised, and has no result")
                result, has_result = None, False
            with self._lock:
                thread.work = None
                if thread.abandoned:
                    self.abandoned -= 1
                    return False
            if has_result:
                self._deliver(done, result)

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


def _make_caches() -> None:
    """Django keeps its caches in a context variable: made here, they and their connections are the thread's, and not
    made anew for each handler. One that cannot be made says so to the handler that asks for it.
    """
    for alias in caches:
        with suppress(Exception):
            caches[alias]
