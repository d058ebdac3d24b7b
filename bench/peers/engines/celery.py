"""Celery with a Redis of its own: a chain of tasks, acknowledged late, results in Redis.

Not durable: Redis runs without its log here, as it is usually run. PostgreSQL has no part in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import celery
import psycopg

from bench.cluster import free_port
from bench.peers.engines.base import Engine
from bench.peers.marks import mark

STEPS = int(os.environ.get("BENCH_STEPS", "5"))
URL = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379/0")
PREFORK = 2

app = celery.Celery("bench", broker=URL, backend=URL)
app.conf.update(task_acks_late=True, worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)


@app.task(name="step")
def step(timed: int, number: int) -> None:
    mark(timed, number, STEPS)


class Driver(Engine):
    scale = 1

    def describe(self) -> str:
        return f"prefork {PREFORK}, acks_late, Redis without its append-only file"

    def environment(self) -> dict[str, str]:
        return {"BENCH_STEPS": str(self.steps), "BENCH_REDIS": self._url}

    def prepare(self) -> None:
        import redis

        self._folder = Path(tempfile.mkdtemp(prefix="workflow-bench-redis-"))
        port = free_port()
        self._url = f"redis://127.0.0.1:{port}/0"
        options = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "save": "",
            "appendonly": "no",
        }
        command = [
            "redis-server",
            *(part for name, value in options.items() for part in (f"--{name}", value)),
        ]
        self._server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._redis = redis.Redis(port=port)
        end = time.monotonic() + 15
        while True:
            try:
                self._redis.ping()
                break
            except redis.ConnectionError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        app.conf.update(broker_url=self._url, result_backend=self._url)
        self._last: list[str] = []

    def worker_command(self, index: int) -> list[str]:
        worker = [sys.executable, "-m", "celery", "-A", "bench.peers.engines.celery", "worker"]
        pool = ["-P", "prefork", "-c", str(PREFORK), "-n", f"w{index}@bench"]
        return [*worker, *pool, "--loglevel", "WARNING", "--without-gossip", "--without-mingle"]

    def connect(self) -> None:
        end = time.monotonic() + 60
        while len(app.control.ping(timeout=0.5) or []) < self.options.workers:
            if time.monotonic() > end:
                raise TimeoutError("no worker answers")

    def start(self, timed: int) -> None:
        chain = celery.chain(*(step.si(timed, number) for number in range(1, self.steps + 1)))
        self._last.append(f"celery-task-meta-{chain.apply_async().id}")

    def unfinished(self, connection: psycopg.Connection[Any]) -> int:
        if not self._last:
            return 0
        left = len(self._last) - int(self._redis.exists(*self._last))
        if not left:
            self._last.clear()
        return left

    def helpers(self) -> list[int]:
        return [self._server.pid]

    def close(self) -> None:
        if hasattr(self, "_server"):
            self._server.terminate()
            self._server.wait(15)
        shutil.rmtree(self._folder, ignore_errors=True)
