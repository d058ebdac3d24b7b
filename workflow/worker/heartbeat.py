"""Heartbeats, from a thread and a connection of their own.

A handler that blocks the event loop or hogs the interpreter keeps its lease as long as this thread
gets to run at all. One statement an interval renews every lease of the process and tells which
are lost.
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
from workflow.sql import workers as workers_sql
from workflow.sql.arrays import plain

logger = logging.getLogger("workflow")

Leases = Callable[[], list[tuple[str, str]]]
"""(job id, token) of what this process holds."""


class Heartbeat:
    """`on_lost(job_ids)` is called, in this thread, with the jobs whose lease is gone.

    A process that could not beat for longer than the threshold has lost them all: `on_silence()` is
    called, and `silent` stays true until a beat succeeds.
    """

    def __init__(
        self,
        parameters: Callable[[], dict[str, Any]],
        worker_id: str,
        leases: Leases,
        on_lost: Callable[[list[str]], None],
        on_silence: Callable[[], None],
        abandoned: Callable[[], int],
    ) -> None:
        self._parameters = parameters
        self._worker_id = worker_id
        self._leases = leases
        self._on_lost = on_lost
        self._on_silence = on_silence
        self._abandoned = abandoned
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workflow-heartbeat", daemon=True)
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self.silent = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops beating; leases that are still held run out by themselves."""
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        last = time.monotonic()
        pause = conf.HEARTBEAT_INTERVAL
        while not self._stop.wait(min(pause, conf.HEARTBEAT_INTERVAL)):
            try:
                self._beat()
            except (psycopg.Error, OSError) as error:
                self._drop()
                pause = min(1.0, conf.HEARTBEAT_INTERVAL)
                late = time.monotonic() - last
                if late > conf.STALE_LEASE_THRESHOLD and not self.silent:
                    self.silent = True
                    logger.error(
                        "no heartbeat reached the database for %.0f s: all leases are lost (%s)", late, error
                    )
                    self._on_silence()
            else:
                last = time.monotonic()
                pause = conf.HEARTBEAT_INTERVAL
                self.silent = False
        self._drop()

    def _beat(self) -> None:
        failpoints.hit("heartbeat.before")
        leases = self._leases()
        connection = self._connect()
        jobs, tokens = plain(job for job, _ in leases), plain(token for _, token in leases)
        if leases:
            rows = connection.execute(sql.HEARTBEAT, (jobs, tokens, jobs, tokens)).fetchall()
            if rows:
                self._on_lost([row[0] for row in rows])
        connection.execute(workers_sql.SEEN, (len(leases), self._abandoned(), self._worker_id))

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            parameters = {
                "application_name": "workflow heartbeat",
                "connect_timeout": 5,
                **self._parameters(),
            }
            self._connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
