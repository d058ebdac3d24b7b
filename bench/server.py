"""A scratch database, worker processes on it, and what they cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from bench import processes
from bench.cluster import cluster

DATABASE = "workflow_bench"
ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def scratch() -> Iterator[str]:
    """A new database with the app's tables, this process's Django pointed at it; its DSN.

    On the server that DATABASE_URL names, or else on one that is made for the purpose and removed.
    """
    if given := os.environ.get("DATABASE_URL"):
        yield _prepare(urlsplit(given)._replace(path="/postgres").geturl())
        return
    with cluster() as server:
        yield _prepare(server.dsn())


def _prepare(admin_dsn: str) -> str:
    with psycopg.connect(admin_dsn, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE {DATABASE}")
    dsn = urlsplit(admin_dsn)._replace(path=f"/{DATABASE}").geturl()
    os.environ["DATABASE_URL"] = dsn
    os.environ["DJANGO_SETTINGS_MODULE"] = "bench.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    return dsn


class Workers:
    """Worker processes of one measurement; `reports` holds what each said of itself once they have stopped."""

    def __init__(self, count: int, concurrency: int) -> None:
        environment = {**os.environ, "LOG_LEVEL": "WARNING", "BENCH_CONCURRENCY": str(concurrency)}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.worker"],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]
        self.reports: list[dict[str, Any]] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def cpu(self) -> float:
        """CPU seconds so far."""
        return processes.cpu(self.pids)

    def resident(self) -> int:
        """Resident bytes."""
        return processes.resident(self.pids)

    def pause(self) -> None:
        processes.send(self.pids, signal.SIGSTOP)

    def go_on(self) -> None:
        processes.send(self.pids, signal.SIGCONT)

    def total(self, name: str) -> float:
        """A figure of the reports, added up."""
        return sum(report[name] for report in self.reports)

    def worst(self, name: str) -> float:
        """The largest of the reports' figures."""
        return max((report[name] for report in self.reports), default=0.0)

    def stop(self) -> None:
        if self.reports:
            return
        self.go_on()
        for process in self._processes:
            process.terminate()
        try:
            for process in self._processes:
                said, _ = process.communicate(timeout=60)
                self.reports.append(json.loads(said.splitlines()[-1]))
        except (subprocess.TimeoutExpired, IndexError, ValueError):
            processes.end(self._processes, 1)
            raise


@contextmanager
def workers(count: int = 1, concurrency: int = 100) -> Iterator[Workers]:
    """Runs workers, and waits until they have registered; they are stopped at the end."""
    from workflow.models import Worker

    before = Worker.objects.count()
    started = Workers(count, concurrency)
    try:
        wait_until(lambda: Worker.objects.count() >= before + count, 60)
        yield started
    finally:
        started.stop()


def wait_until(condition: Callable[[], Any], seconds: float, pause: float = 0.005) -> None:
    """Returns once the condition holds; `TimeoutError` after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the benchmark's condition did not come about")
        time.sleep(pause)


def postmaster(dsn: str) -> int | None:
    """The server's first process; None when it is on another host."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        return processes.parent_of(row[0])
