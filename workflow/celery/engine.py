"""A worker process inside of another: on an event loop in a thread of its own, it claims what it is asked for."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import psycopg
from django.db import DatabaseError, connections

from workflow.store import rings
from workflow.store.drive import drive
from workflow.store.ports import DjangoPort, connection_parameters
from workflow.worker import leaving
from workflow.worker.options import Options
from workflow.worker.outage import Outage
from workflow.worker.process import WorkerProcess
from workflow.worker.readiness import refusal
from workflow.worker.sources import Asked

logger = logging.getLogger("workflow")

LONGEST_PAUSE = 5.0
"""Seconds, at most, between two tries to start."""
LOOK_INTERVAL = 1.0
"""Seconds between two looks of a message that waits for its unit: whether there is still a loop."""


def _pass_on(job_id: str) -> None:
    """Has somebody else told of a job for which nobody is left here."""
    try:
        drive(rings.unring(DjangoPort(), [job_id]))
    except DatabaseError as error:
        logger.debug("job %s is rung again some time: %s", job_id, error)


def _answer(future: Future[bool], loop: asyncio.AbstractEventLoop) -> bool:
    """What comes of it. Raises RuntimeError once the loop is closed: what was scheduled after its last turn is never
    begun, nor cancelled.
    """
    while not wait([future], LOOK_INTERVAL).done:
        if loop.is_closed() and not future.done():
            raise RuntimeError("the loop is closed")
    return future.result()


class Engine:
    """`concurrency` is how many units it has in hand at most: as many as its process is given messages at once."""

    def __init__(self, concurrency: int) -> None:
        self._options = Options(concurrency=concurrency)
        self._changed = threading.Condition()
        self._working: tuple[asyncio.AbstractEventLoop, WorkerProcess, Asked] | None = None
        self._stopping = threading.Event()
        self._ended = False
        self._outage = Outage()
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="workflow-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def serve(self, job_id: str) -> bool:
        """Claims the job and waits until its unit is over, however it ends. False where there is nothing to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._working is not None or self._ended)
            working = self._working
        if working is not None:
            loop, _, asked = working
            serving = asked.serve(job_id)
            try:
                return _answer(asyncio.run_coroutine_threadsafe(serving, loop), loop)
            except (CancelledError, RuntimeError):
                serving.close()
                logger.debug("the engine has ended at this moment")
        _pass_on(job_id)
        return False

    def stop(self) -> None:
        """Claims nothing more, lets handlers finish within the grace, then gives back the rest. Returns at once."""
        self._stopping.set()
        self._tell(WorkerProcess.stop)

    def hurry(self) -> None:
        """Gives everything back now. Returns at once."""
        self._stopping.set()
        self._tell(WorkerProcess.hurry)

    def join(self, seconds: float) -> None:
        """Waits for the end, but not for longer than that."""
        self._thread.join(seconds)

    def _tell(self, what: Callable[[WorkerProcess], None]) -> None:
        working = self._working
        if working is not None:
            loop, process, _ = working
            try:
                loop.call_soon_threadsafe(what, process)
            except RuntimeError:
                logger.debug("the engine has ended")

    def _run(self) -> None:
        pause = 0.5
        try:
            while not self._stopping.is_set():
                try:
                    if self._may_start():
                        leaving.run(self._work(connection_parameters()))
                except (DatabaseError, psycopg.Error) as error:
                    self._outage.lost("starting", error)
                except Exception:
                    logger.exception("the engine failed and starts anew")
                finally:
                    connections.close_all()
                self._stopping.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _may_start(self) -> bool:
        reason = refusal()
        if reason is not None and reason != self._said:
            logger.error("no unit is run here: %s", reason)
        self._said = reason or ""
        return reason is None

    async def _work(self, parameters: dict[str, Any]) -> None:
        sources: list[Asked] = []

        def source(ring: Callable[[], None]) -> Asked:
            sources.append(Asked(ring))
            return sources[0]

        process = WorkerProcess(parameters, self._options, source)
        with self._changed:
            self._working = (asyncio.get_running_loop(), process, sources[0])
            self._changed.notify_all()
        if self._stopping.is_set():
            process.stop()
        try:
            self._outage.back()
            await process.run()
        finally:
            with self._changed:
                self._working = None
