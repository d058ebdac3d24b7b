"""No product: the least that keeps a step durable, one commit each, in plain psycopg.

No tree, no lease, no retry, no history, no recovery. A bound for whoever commits each step alone. It polls; with
`woken=1` a notification wakes its only thread, which bounds how soon a durable step can begin and a chain can end.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg

from bench.peers.engines.base import Engine
from bench.peers.marks import mark

SCHEMA = """
CREATE TABLE flow (id bigserial PRIMARY KEY, timed int NOT NULL, status int NOT NULL DEFAULT 0,
                   added_at timestamptz NOT NULL DEFAULT now(), ended_at timestamptz, result jsonb);
CREATE INDEX ON flow (id) WHERE status = 0;
CREATE INDEX ON flow (id) WHERE status = 1;
CREATE TABLE flow_step (flow bigint, number int, output jsonb, at timestamptz NOT NULL DEFAULT now(),
                        PRIMARY KEY (flow, number));
"""
CLAIM = """
UPDATE flow SET status = 1
WHERE id IN (SELECT id FROM flow WHERE status = 0 ORDER BY id LIMIT 10 FOR UPDATE SKIP LOCKED)
RETURNING id, timed
"""
START = "INSERT INTO flow (timed) VALUES (%s) RETURNING id"
START_AND_WAKE = f"WITH started AS ({START}) SELECT id, pg_notify('flow', '') FROM started"
THREADS = 4
POLL = 0.02
PATIENCE = 0.5
"""Seconds for which a thread that is woken waits at most."""


class Driver(Engine):
    scale = 6
    unfinished_query = "SELECT count(*) FROM flow WHERE status < 2"

    @property
    def woken(self) -> bool:
        return "woken" in self.options.extra

    def describe(self) -> str:
        how = "1 thread, woken" if self.woken else f"{THREADS} threads, polls each {POLL} s"
        return f"{how}, claims 10 at once"

    def prepare(self) -> None:
        with self._connection() as connection:
            connection.execute(SCHEMA)

    def work(self) -> None:
        threads = [threading.Thread(target=self._loop) for _ in range(1 if self.woken else THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _loop(self) -> None:
        connection = self._connection()
        connection.prepare_threshold = 0
        if self.woken:
            connection.execute("LISTEN flow")
        while True:
            claimed = connection.execute(CLAIM).fetchall()
            if not claimed:
                self._rest(connection)
            for flow, timed in claimed:
                for number in range(1, self.steps + 1):
                    mark(timed, number, self.steps)
                    connection.execute("INSERT INTO flow_step VALUES (%s, %s, 'null')", (flow, number))
                connection.execute(
                    "UPDATE flow SET status = 2, ended_at = now(), result = 'null' WHERE id = %s", (flow,)
                )

    def _rest(self, connection: psycopg.Connection[Any]) -> None:
        if not self.woken:
            time.sleep(POLL)
            return
        for _ in connection.notifies(timeout=PATIENCE, stop_after=1):
            pass

    def connect(self) -> None:
        self._client = self._connection()
        self._client.prepare_threshold = 0

    def start(self, timed: int) -> None:
        self._client.execute(START_AND_WAKE if self.woken else START, (timed,)).fetchone()

    def _connection(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True)
