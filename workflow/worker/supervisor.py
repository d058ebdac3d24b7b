"""`workflow:worker`: one process in place, or a parent that keeps several of them alive."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from django.db import connections

from workflow.conf import conf
from workflow.worker.process import run_process

logger = logging.getLogger("workflow")


def run(
    *,
    concurrency: int | None = None,
    processes: int = 1,
    queues: Sequence[str] | None = None,
    burst: bool = False,
) -> int:
    """Runs workers until they are told to stop (or, in a burst, until nothing is due). Returns the exit status.

    `concurrency`: units at once in each process, `WORKFLOW["CONCURRENCY"]` by default. `queues`: all of them
    when empty or None.
    """
    concurrency = concurrency or conf.CONCURRENCY
    queues = list(queues) if queues else None
    if processes <= 1:
        return run_process(concurrency=concurrency, queues=queues, burst=burst)
    return _Supervisor(concurrency, processes, queues, burst).run()


class _Supervisor:
    """Forks the processes before any thread or connection exists, and starts one anew when it dies."""

    def __init__(self, concurrency: int, processes: int, queues: Sequence[str] | None, burst: bool) -> None:
        self._concurrency = concurrency
        self._processes = processes
        self._queues = queues
        self._burst = burst
        self._children: dict[int, float] = {}
        self._stopping = False

    def run(self) -> int:
        connections.close_all()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        for _ in range(self._processes):
            self._fork()
        worst = 0
        while self._children:
            try:
                pid, status = os.wait()
            except InterruptedError:
                continue
            except ChildProcessError:
                break
            born = self._children.pop(pid, None)
            if born is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            if self._stopping or (self._burst and code == 0):
                worst = max(worst, abs(code))
                continue
            logger.error("worker process %d ended with status %d; another takes its place", pid, code)
            if time.monotonic() - born < 1.0:
                time.sleep(1.0)  # a process that dies at once must not be restarted in a tight loop
            self._fork()
        return worst

    def _fork(self) -> None:
        pid = os.fork()
        if pid:
            self._children[pid] = time.monotonic()
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        try:
            code = run_process(concurrency=self._concurrency, queues=self._queues, burst=self._burst)
        except BaseException:
            logger.exception("worker process %d failed", os.getpid())
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        for pid in self._children:
            try:
                os.kill(pid, signal.SIGTERM if number == signal.SIGTERM else signal.SIGINT)
            except ProcessLookupError:
                logger.debug("worker process %d is gone already", pid)
