"""DBOS Transact for Python, its system database in the same PostgreSQL.

By its queue (client here, workers elsewhere), or with `--set in-process=1`: started in the process that works.
"""

from __future__ import annotations

import os
import time
from typing import Any

import psycopg

from bench.peers.engines.base import Engine
from bench.peers.marks import mark

QUEUE = "bench"
THREADS = 16


class Driver(Engine):
    unfinished_query = "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')"

    def describe(self) -> str:
        kind = "started in the worker's process" if self._inside else f"queue, polls each {self._poll} s"
        return f"{kind}, {THREADS} threads"

    @property
    def _inside(self) -> bool:
        return "in-process" in self.options.extra

    @property
    def _poll(self) -> float:
        return float(self.options.extra.get("poll", "0.05"))  # its default is 1.0

    @property
    def pausable(self) -> bool:  # type: ignore[override]
        return not self._inside

    def _configuration(self) -> dict[str, Any]:
        return {
            "name": "bench",
            "system_database_url": self._url,
            "application_version": "1",
            "log_level": "WARNING",
            "executor_id": f"worker-{self.options.index}",
            "max_executor_threads": THREADS,
        }

    @property
    def _url(self) -> str:
        return self.dsn.replace("postgresql://", "postgresql+psycopg://")

    def _launch(self) -> None:
        from dbos import DBOS

        DBOS(config=self._configuration())
        steps = self.steps

        @DBOS.step()
        def step(timed: int, number: int) -> None:
            mark(timed, number, steps)

        @DBOS.workflow(name="flow")
        def flow(timed: int) -> None:
            for number in range(1, steps + 1):
                step(timed, number)

        self._flow = flow
        DBOS.launch()
        if not self._inside:
            DBOS.register_queue(QUEUE, polling_interval_sec=self._poll, on_conflict="always_update")

    def work(self) -> None:
        if not self._inside:
            self._launch()
        while True:
            time.sleep(3600)

    def connect(self) -> None:
        if self._inside:
            self._launch()
            return
        from dbos import DBOSClient

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            end = time.monotonic() + 60
            while not self._has_queue(connection):
                if time.monotonic() > end:
                    raise TimeoutError("no worker has registered the queue")
                time.sleep(0.1)
        self._client = DBOSClient(system_database_url=self._url)

    @staticmethod
    def _has_queue(connection: psycopg.Connection[Any]) -> bool:
        try:
            row = connection.execute("SELECT count(*) FROM dbos.queues WHERE name = %s", (QUEUE,)).fetchone()
        except psycopg.errors.UndefinedTable:  # the first worker is still making the schema
            return False
        return row is not None and row[0] > 0

    def start(self, timed: int) -> None:
        if self._inside:
            from dbos import DBOS

            DBOS.start_workflow(self._flow, timed)
        else:
            self._client.enqueue({"workflow_name": "flow", "queue_name": QUEUE}, timed)

    def helpers(self) -> list[int]:
        return [os.getpid()] if self._inside else []

    def close(self) -> None:
        if self._inside:
            from dbos import DBOS

            DBOS.destroy()
