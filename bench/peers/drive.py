"""One engine, measured once: `python -m bench.peers.drive ENGINE --dsn URL ...` prints one line of JSON.

Run by the engine's own Python. Phases, each with the same workflow of so many empty steps one after another:

* live: workers are up and idle; the client starts N workflows; until the last of them is over.
* drain: workers are stopped (SIGSTOP) while the client starts N; then they go on; until the last is over. What
  the client started a second meanwhile is `starts`.
* latency: one at a time, with pauses, on an idle worker: from before the start to the first step, to the last
  one, and to the end as another session sees it.

Over means that the engine's own tables say so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from bench import processes
from bench.peers.engines import NAMES, load
from bench.peers.engines.base import Engine, Options
from bench.peers.marks import Marks

ROOT = Path(__file__).resolve().parents[2]
WARM_UP = 50
PATIENCE = 120.0
"""Seconds that a phase may take."""
FOREIGN_KEYS = "SELECT _ FROM ONLY %OPERATOR(pg_catalog.=)%"
"""What pg_stat_statements calls the look-ups of foreign keys, which nobody has sent."""


def wait_until(holds: Callable[[], Any], seconds: float, pause: float = 0.02) -> None:
    """Returns once it holds; `TimeoutError` after so many seconds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("it did not come to an end")
        time.sleep(pause)


class Measurement:
    """An engine with its workers, and what they cost."""

    def __init__(self, engine: Engine, postmaster: int) -> None:
        self.engine = engine
        self._postmaster = postmaster
        self._marks = Marks()
        self._asked = 0
        self._workers: list[subprocess.Popen[str]] = []
        self._observer = psycopg.connect(engine.dsn, autocommit=True)
        self._counts = self._counts_statements()

    def _counts_statements(self) -> bool:
        try:
            self._observer.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            self._observer.execute("SELECT count(*) FROM pg_stat_statements")
        except psycopg.Error:
            return False
        return True

    def start_workers(self) -> None:
        environment = {**os.environ, **self.engine.environment()}
        for index in range(1, self.engine.options.workers + 1):
            command = self.engine.worker_command(index)
            self._workers.append(
                subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sys.stderr, text=True)
            )

    def close(self) -> None:
        processes.end(self._workers)
        self.engine.close()
        self._observer.close()

    # --- phases ---------------------------------------------------------------------------------

    def warm_up(self) -> None:
        for _ in range(WARM_UP):
            self.engine.start(0)
        self._until_over()
        time.sleep(1.0)

    def live(self, count: int) -> dict[str, float]:
        before = self._costs()
        began = time.perf_counter()
        for _ in range(count):
            self.engine.start(0)
        started = time.perf_counter()
        self._until_over()
        ended = time.perf_counter()
        cost = self._per_workflow(before, count)
        return {"workflows_s": count / (ended - began), "starts_s": count / (started - began), **cost}

    def drain(self, count: int) -> dict[str, float]:
        family = processes.tree(self._pids)
        processes.send(family, signal.SIGSTOP)
        try:
            began = time.perf_counter()
            for _ in range(count):
                self.engine.start(0)
            started = time.perf_counter()
            before = self._costs()
        finally:
            processes.send(reversed(family), signal.SIGCONT)
        gone_on = time.perf_counter()
        self._until_over()
        ended = time.perf_counter()
        cost = self._per_workflow(before, count)
        return {"workflows_s": count / (ended - gone_on), "starts_s": count / (started - began), **cost}

    def latency(self, count: int) -> dict[str, float]:
        first: list[float] = []
        last: list[float] = []
        end: list[float] = []
        for _ in range(count):
            time.sleep(random.uniform(0.03, 0.15))
            began = time.monotonic()
            self.engine.start(1)
            step = 0
            while step != self.engine.steps:
                step, at = self._marks.next()
                if step == 1:
                    first.append(1000 * (at - began))
            last.append(1000 * (at - began))
            wait_until(lambda: not self._unfinished(), 30, 0.0005)
            end.append(1000 * (time.monotonic() - began))
        return {
            "first_step_p50_ms": statistics.median(first),
            "last_step_p50_ms": statistics.median(last),
            "end_p50_ms": statistics.median(end),
            "first_step_best_ms": min(first),
            "end_best_ms": min(end),
            "end_p95_ms": sorted(end)[int(0.95 * (len(end) - 1))],
        }

    # --- what it costs --------------------------------------------------------------------------

    @property
    def _pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def _until_over(self) -> None:
        wait_until(lambda: not self._unfinished(), PATIENCE)

    def _unfinished(self) -> int:
        self._asked += 1
        return self.engine.unfinished(self._observer)

    def _costs(self) -> dict[str, float]:
        row = self._observer.execute(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0'),"
            " pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
        ).fetchone()
        assert row is not None
        costs = {
            "wal_kb": float(row[0]) / 1024,
            "commits": float(row[1]),
            "worker_cpu_ms": 1000 * processes.cpu([*self._pids, *self.engine.helpers()]),
            "server_cpu_ms": 1000 * processes.cpu([self._postmaster]),
        }
        if self._counts:
            sent = self._observer.execute(
                "SELECT coalesce(sum(s.calls), 0) FROM pg_stat_statements AS s"
                " JOIN pg_database AS d ON d.oid = s.dbid AND d.datname = current_database()"
                " WHERE s.query NOT LIKE %s",
                (FOREIGN_KEYS,),
            ).fetchone()
            assert sent is not None
            costs["statements"] = float(sent[0]) - (self._asked if self.engine.unfinished_query else 0)
        return costs

    def _per_workflow(self, before: dict[str, float], count: int) -> dict[str, float]:
        after = self._costs()
        return {f"{name}_per_workflow": (after[name] - before[name]) / count for name in before}


def measure(engine: Engine, postmaster: int, workflows: int, latencies: int) -> dict[str, Any]:
    """All phases of one engine."""
    engine.prepare()
    measurement = Measurement(engine, postmaster)
    count = workflows * engine.scale
    try:
        measurement.start_workers()
        engine.connect()
        measurement.warm_up()
        found: dict[str, Any] = {"setup": engine.describe(), "workflows": count}
        found["live"] = measurement.live(count)
        if engine.pausable:
            found["drain"] = measurement.drain(count)
        if latencies:
            time.sleep(1.0)
            found["latency"] = measurement.latency(latencies)
        return found
    finally:
        measurement.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers.drive", description="One engine, measured once."
    )
    parser.add_argument("engine", choices=NAMES)
    parser.add_argument("--dsn", required=True, help="an empty database")
    parser.add_argument("--postmaster", type=int, default=0, help="the server's first process")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--workflows", type=int, default=300, help="times the engine's own scale")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--latencies", type=int, default=30)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="the engine's own")
    parser.add_argument("--worker", type=int, help="be worker number so and so")
    asked = parser.parse_args()
    extra = dict(item.split("=", 1) for item in asked.set)
    engine = load(asked.engine, Options(asked.dsn, asked.steps, asked.workers, asked.worker or 0, extra))
    if asked.worker is not None:
        engine.work()
        return
    print(json.dumps(measure(engine, asked.postmaster, asked.workflows, asked.latencies)), flush=True)


if __name__ == "__main__":
    # As a script this module is called __main__; engines import it by its name.
    sys.modules.setdefault("bench.peers.drive", sys.modules["__main__"])
    main()
