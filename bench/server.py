"""A scratch database on the project's PostgreSQL, worker processes on it, and what they cost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg

DATABASE = "workflow_bench"
ROOT = Path(__file__).resolve().parent.parent


def prepare() -> dict[str, Any]:
    """Makes the scratch database anew and points this process's Django at it; psycopg's parameters for it."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "bench.settings"
    import django
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    connection.ensure_connection()
    parameters = dict(connection.get_connection_params())
    parameters = {
        k: v for k, v in parameters.items() if k in ("dbname", "user", "password", "host", "port") and v
    }
    connection.close()
    with psycopg.connect(**{**parameters, "dbname": "postgres"}, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE {DATABASE}")
    parameters["dbname"] = DATABASE
    os.environ["DATABASE_URL"] = url(parameters)
    connection.settings_dict.update({"NAME": DATABASE, "CONN_MAX_AGE": None})
    call_command("migrate", verbosity=0)
    return parameters


def url(parameters: dict[str, Any]) -> str:
    """The parameters as a DATABASE_URL for child processes."""
    rest = {"host": parameters.get("host", ""), "port": parameters.get("port", "")}
    query = urlencode({key: value for key, value in rest.items() if value})
    login = quote(parameters.get("user", ""))
    if parameters.get("password"):
        login += ":" + quote(parameters["password"])
    return f"postgresql://{login}@/{parameters['dbname']}?{query}"


class Workers:
    """Worker processes of one measurement; `boundaries` and `commits` once they have stopped."""

    def __init__(self, count: int, concurrency: int) -> None:
        environment = {**os.environ, "LOG_LEVEL": "INFO", "BENCH_CONCURRENCY": str(concurrency)}
        command = [sys.executable, "-m", "django", "workflow:worker"]
        self._processes = [
            subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        self.boundaries = self.commits = 0

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def cpu(self) -> float:
        """CPU seconds so far."""
        return sum(cpu_of(pid) for pid in self.pids)

    def rss(self) -> int:
        """Resident bytes."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids)
        return pages * os.sysconf("SC_PAGE_SIZE")

    def pause(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            _, log = process.communicate(timeout=60)
            found = re.search(r"settled (\d+) boundaries in (\d+) commits", log)
            if found:
                self.boundaries += int(found[1])
                self.commits += int(found[2])
            else:
                sys.stderr.write(log)


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


def wait_until(condition: Any, seconds: float, pause: float = 0.005) -> None:
    """Returns once the condition holds; `TimeoutError` after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the benchmark's condition did not come about")
        time.sleep(pause)


def cpu_of(pid: int) -> float:
    """CPU seconds of one process so far; 0 for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def postmaster_cpu(parameters: dict[str, Any]) -> float | None:
    """CPU seconds of the server and its backends so far, dead ones included; None when it is on another host."""
    with psycopg.connect(**parameters, autocommit=True) as connection:
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        try:
            stat = Path(f"/proc/{row[0]}/stat").read_text()
        except OSError:
            return None
        parent = int(stat[stat.rindex(")") + 2 :].split()[1])
    total = 0.0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2 :].split()
        if int(folder.name) == parent:
            total += sum(map(int, fields[11:15]))
        elif int(fields[1]) == parent:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")
