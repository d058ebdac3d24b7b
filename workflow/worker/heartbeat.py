"""Heartbeats, from a thread and a connection of their own.

A handler that blocks the event loop or hogs the interpreter keeps its lease as long as this thread
gets to run at all. One statement an interval renews every lease of the process and its own row, and tells
which are lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from workflow import failpoints
from workflow.conf import conf
from workflow.sql import claim as sql
from workflow.sql.arrays import plain
from workflow.worker.outage import Outage

logger = logging.getLogger("workflow")

Leases = Callable[[], list[tuple[str, str]]]
"""(job id, token) of what this process holds."""
SECOND_LOOK = 1.0
"""Seconds for which a process that comes back from being stopped may still find its leases where they were."""


class Heartbeat:
    """`on_lost()` is called, in this thread, when some of the leases are gone.

    A process that could not beat for longer than the threshold has lost them all: `fell_silent()` says so
    once, and `silent` stays true until a beat is answered within that time.
    """

    def __init__(
        self,
        parameters: Callable[[], dict[str, Any]],
        worker_id: str,
        leases: Leases,
        on_lost: Callable[[], None],
        abandoned: Callable[[], int],
        outage: Outage,
    ) -> None:
        self._parameters = parameters
        self._worker_id = worker_id
        self._leases = leases
        self._on_lost = on_lost
        self._abandoned = abandoned
        self._outage = outage
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workflow-heartbeat", daemon=True)
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._last = time.monotonic()
        self._late_since: float | None = None
        self.silent = False

    def start(self) -> None:
        self._last = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stops beating; leases that are still held run out by themselves."""
        self._stop.set()
        self._thread.join(timeout=1)

    def fell_silent(self) -> bool:
        """Asked a few times a second, on the loop: a beat that is stuck cannot tell by itself."""
        now = time.monotonic()
        if now - self._last <= conf.STALE_LEASE_THRESHOLD:
            self._late_since = None
            return False
        self._late_since = self._late_since or now
        if self.silent or now - self._late_since < SECOND_LOOK:
            return False
        self.silent = True
        logger.error(
            "no heartbeat has reached the database for %.0f s: all leases are lost", now - self._last
        )
        return True

    def _run(self) -> None:
        pause = conf.HEARTBEAT_INTERVAL
        while not self._stop.wait(min(pause, conf.HEARTBEAT_INTERVAL)):
            begun = time.monotonic()
            try:
                self._beat()
            except (psycopg.Error, OSError) as error:
                self._drop()
                self._outage.lost("the heartbeat", error)
                pause = min(1.0, conf.HEARTBEAT_INTERVAL)
            except Exception:
                self._drop()
                logger.exception("a heartbeat failed")
                pause = min(1.0, conf.HEARTBEAT_INTERVAL)
            else:
                self._last = begun  # an answer may come long after the leases were renewed
                # One that was under way for longer than leases last says nothing of those that are taken now.
                self.silent = self.silent and time.monotonic() - begun > conf.STALE_LEASE_THRESHOLD
                self._outage.back()
                pause = max(begun + conf.HEARTBEAT_INTERVAL - time.monotonic(), 0.0)
        self._drop()

    def _beat(self) -> None:
        failpoints.hit("heartbeat.before")
        leases = self._leases()
        connection = self._connect()
        jobs, tokens = plain(job for job, _ in leases), plain(token for _, token in leases)
        worker = (len(leases), self._abandoned(), self._worker_id)
        if connection.execute(sql.HEARTBEAT, (jobs, tokens, *worker, jobs, tokens)).fetchall():
            self._on_lost()

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            parameters = {"application_name": "workflow heartbeat", **self._parameters()}
            self._connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
