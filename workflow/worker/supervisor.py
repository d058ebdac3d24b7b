"""`workflow:worker`: one process in place, or a parent that keeps several of them alive."""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType

from django.db import connections

from workflow.conf import conf
from workflow.worker import leaving
from workflow.worker.options import Options, options_of
from workflow.worker.process import OUTGROWN, RETIRED, UNSTARTED, run_process
from workflow.worker.readiness import refusal

logger = logging.getLogger("workflow")

YOUNG = 5.0
"""Seconds: a process that dies younger is not started anew at once, or it would go round in circles."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
LATE = 30.0
"""Seconds, beyond its grace, after which a process that was to leave is killed. It needs less, whatever the database
and its handlers do, unless a handler blocks its event loop."""


def run(
    *,
    concurrency: int | None = None,
    processes: int = 1,
    queues: Sequence[str] | None = None,
    burst: bool = False,
    max_jobs: int | None = None,
    max_rss: int | None = None,
) -> int:
    """Runs workers until they are told to stop (or, in a burst, until nothing is due). Returns the exit status.

    `concurrency`: units at once in each process, `WORKFLOW["CONCURRENCY"]` by default. `queues`: all of them
    when empty or None. `max_jobs`, `max_rss` (megabytes): a process that has taken so many units, or has
    so much memory resident, finishes what it has in hand and is replaced. Returns 1 at once, with one line in the
    log, where `refusal` has something to say.
    """
    if (reason := refusal()) is not None:
        logger.error("the worker does not start: %s", reason)
        return 1
    options = options_of(concurrency, queues, burst, max_jobs, max_rss)
    if processes <= 1 and max_jobs is None and max_rss is None:
        return run_process(options)
    if not hasattr(os, "fork"):
        raise OSError("several processes, or replacing one, needs fork, which this system lacks")
    return _Supervisor(options, max(processes, 1)).run()


def how_it_ended(code: int) -> str:
    """An exit status in words; negative for a signal, as `os.waitstatus_to_exitcode` has it."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal has no name
        name = ""
    return f"was killed by signal {-code}{name}"


@dataclass(slots=True)
class _Child:
    born: float
    leaves_by: float | None = None
    """When it is killed, on this process's own clock; None while it need not leave."""


class _Supervisor:
    """Forks the processes before any thread or connection exists, and starts one anew when it dies."""

    STOPS = (signal.SIGTERM, signal.SIGINT)
    MASKED = (*STOPS, signal.SIGUSR2) if hasattr(signal, "SIGUSR2") else STOPS

    def __init__(self, options: Options, processes: int) -> None:
        self._options = replace(options, parent=os.getpid())
        self._processes = processes
        self._children: dict[int, _Child] = {}
        self._signals = 0
        self._pause = FIRST_PAUSE
        self._due: list[float] = []
        """When processes are to be started anew."""
        self._said_small = False
        """Whether it was told that `max_rss` is too low to work with."""

    def run(self) -> int:
        connections.close_all()
        reading, writing = os.pipe()
        hearing, telling = os.pipe()
        for end in (reading, writing, hearing, telling):
            os.set_blocking(end, False)
        self._options = replace(self._options, tell=telling)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only to be woken by it
        for number in self.STOPS:
            signal.signal(number, self._on_signal)
        for _ in range(self._processes):
            self._fork()
        worst = 0
        while self._children or self._due:
            worst = max(worst, self._reap())
            self._start_due()
            self._kill_late()
            if self._children or self._due:
                select.select([reading, hearing], [], [], self._timeout())
                with suppress(BlockingIOError):
                    os.read(reading, 4096)
                self._hear(hearing)
        return worst

    def _timeout(self) -> float | None:
        """Seconds until there is something to do that no signal tells of."""
        times = self._due + [
            child.leaves_by for child in self._children.values() if child.leaves_by is not None
        ]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _hear(self, hearing: int) -> None:
        """Which processes are about to leave by themselves, one id a line."""
        try:
            told = os.read(hearing, 65_536)
        except BlockingIOError:
            return
        for pid in told.split():
            child = self._children.get(int(pid))
            if child is not None and child.leaves_by is None:
                # Its handlers get the grace to end by themselves, and once more when they are told to.
                child.leaves_by = time.monotonic() + 2 * conf.SHUTDOWN_GRACE + LATE

    def _kill_late(self) -> None:
        now = time.monotonic()
        for pid, child in self._children.items():
            if child.leaves_by is not None and child.leaves_by <= now:
                child.leaves_by = None
                logger.error("worker process %d was to leave and has not: it is killed", pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _reap(self) -> int:
        """Takes note of processes that have ended; the worst of the exit statuses that are final."""
        worst = 0
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return worst
            if not pid:
                return worst
            child = self._children.pop(pid, None)
            if child is not None:
                worst = max(worst, self._ended(pid, child.born, os.waitstatus_to_exitcode(status)))

    def _ended(self, pid: int, born: float, code: int) -> int:
        now = time.monotonic()
        if self._signals and code in (RETIRED, OUTGROWN):
            return 0  # it had done its share as all were told to stop, and needs nobody in its place
        # Another process of a burst would meet the same: a database that is away, or the error that it was logged with.
        if self._signals or (self._options.burst and code in (0, UNSTARTED)):
            return abs(code)
        young = now - born < YOUNG
        if not young:
            self._pause, self._said_small = FIRST_PAUSE, False
        if code in (RETIRED, OUTGROWN):
            logger.info("worker process %d has done its share; another takes its place", pid)
        else:
            logger.error("worker process %d %s; another takes its place", pid, how_it_ended(code))
        if code == OUTGROWN and young and not self._said_small:
            self._said_small = True
            logger.warning(
                "worker process %d had more than %s MB resident after %.1f s: that limit is less than a worker needs "
                "here, and those that follow are started after a pause",
                pid,
                self._options.max_rss,
                now - born,
            )
        # One that has taken all the jobs that it may take is replaced at once, however fast it was.
        self._due.append(now + self._next_pause() if young and code != RETIRED else now)
        return 0

    def _next_pause(self) -> float:
        pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)
        return pause

    def _start_due(self) -> None:
        if self._signals:
            self._due.clear()
        now = time.monotonic()
        ready = [due for due in self._due if due <= now]
        self._due = [due for due in self._due if due > now]
        for _ in ready:
            self._fork()

    def _fork(self) -> None:
        # A signal that comes while there are two processes and one set of handlers waits until that is settled.
        signal.pthread_sigmask(signal.SIG_BLOCK, self.MASKED)
        if self._signals:  # one that came before this moment was passed on to the others only
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self.MASKED)
            return
        try:
            pid = os.fork()
        except OSError as error:  # the system has no room for it now (EAGAIN, ENOMEM)
            pause = self._next_pause()
            logger.error("no worker process can be started, which is tried again in %g s: %s", pause, error)
            self._due.append(time.monotonic() + pause)
            pid = -1
        if pid > 0:
            self._children[pid] = _Child(time.monotonic())
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self.MASKED)
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (*self.STOPS, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            code = run_process(self._options)
        except BaseException:
            logger.exception("worker process %d failed", os.getpid())
        finally:
            leaving.end(code)  # the frames above this one are the parent's

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first is passed on as SIGTERM; the second is in a hurry."""
        self._signals += 1
        grace = conf.SHUTDOWN_GRACE if self._signals == 1 else 0.0
        for pid, child in self._children.items():
            child.leaves_by = time.monotonic() + grace + LATE
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if self._signals == 1 else signal.SIGUSR2)
