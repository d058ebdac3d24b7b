"""Real worker processes for tests: started in no time, told apart by pid, and always ended by it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

import psutil
from django.db import connection

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""Seconds after which a condition that does not come true is a failure: generous, for busy machines."""
SETTINGS: dict[str, Any] = {
    # Leases of killed workers are aged by the tests; no living worker of a busy machine may ever lose one.
    "STALE_LEASE_THRESHOLD": 60,
    "HEARTBEAT_INTERVAL": 0.2,
    "SWEEP_INTERVAL": 0.2,
    "POLL_INTERVAL": 0.1,
    "SHUTDOWN_GRACE": 20,
    "THREADS": 8,
    "CONCURRENCY": 20,
}


def database_url() -> str:
    """The database of this test run, as a URL that another process can be given."""
    database = connection.settings_dict
    options = {
        name.lower(): database[name] for name in ("HOST", "PORT", "USER", "PASSWORD") if database[name]
    }
    return f"postgresql:///{quote(database['NAME'], safe='')}?{urlencode(options)}"


def end(processes: Sequence[subprocess.Popen[Any]]) -> list[Any]:
    """Asks each to stop, and ends what does not; the command lines of those."""
    for process in processes:
        process.terminate()
    stuck = []
    for process in processes:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            stuck.append(process.args)
    return stuck


def eventually(
    holds: Callable[[], Any],
    seconds: float = PATIENCE,
    what: str | Callable[[], str] = "it did not come to that",
) -> Any:
    """The first true answer of `holds()`. `what` tells of the failure to get one."""
    deadline = time.monotonic() + seconds
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.01)


class Worker:
    """One worker process. `code` is its exit status, negative for a signal, None while it lives."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.code: int | None = None
        self._log = log
        self._ended = threading.Event()

    def send(self, number: int) -> None:
        """A signal; nothing for one that has ended."""
        if self.code is None:
            with suppress(ProcessLookupError):  # it has ended just now, and the word of it is on its way
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self.send(signal.SIGKILL)
        self.wait()

    def stop(self, seconds: float = PATIENCE) -> int:
        """SIGTERM, once it takes that as a worker does, and waits for the end; the exit status."""
        eventually(lambda: self.code is not None or self.heeds(signal.SIGTERM), what=self.said)
        self.send(signal.SIGTERM)
        return self.wait(seconds)

    def heeds(self, number: int) -> bool:
        """Whether it has a handler for this signal; one that has only just been started has none yet."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:  # it has ended just now
            return False
        (caught,) = (line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Waits for the end; the exit status."""
        assert self._ended.wait(seconds), f"worker {self.pid} is still there:\n{self.said()}"
        assert self.code is not None
        return self.code

    def said(self) -> str:
        """All that it has logged."""
        return self._log.read_text() if self._log.exists() else ""

    def lines(self, *words: str) -> list[str]:
        """The lines of its log that hold all of these words."""
        return [line for line in self.said().splitlines() if all(word in line for word in words)]

    def family(self) -> list[int]:
        """Its pid, and those of the processes that it has started."""
        try:
            children = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        return [self.pid, *(child.pid for child in children)]

    def is_stopped(self) -> bool:
        """Whether SIGSTOP holds it."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def ended(self, code: int) -> None:
        self.code = code
        self._ended.set()


class Launcher:
    """Starts workers on a database; leaving the `with` block ends those that are left."""

    def __init__(self, folder: Path, url: str, **environment: str) -> None:
        self._folder = folder
        self._workers: dict[int, Worker] = {}
        self._answers: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.launcher"],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.crash_app.settings",
                "DATABASE_URL": url,
                "LOG_LEVEL": "INFO",
                "PYTHONUNBUFFERED": "1",
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        threading.Thread(target=self._listen, name="launcher", daemon=True).start()

    def start(
        self,
        failpoints: str = "",
        settings: dict[str, Any] | None = None,
        conn_max_age: int | None = 0,
        django: dict[str, Any] | None = None,
        skew: float = 0,
        celery: Sequence[str] = (),
        **options: Any,
    ) -> Worker:
        """One more worker. `settings` are added to `SETTINGS`, `django` are other settings, `skew` is how wrong its own
        clock is (seconds); `options` are those of `workflow.worker.run`. `celery` makes it a Celery worker:
        the broker's URL and the arguments of `celery worker`.
        """
        self._count += 1
        log = self._folder / f"worker-{self._count}.log"
        order = {
            "log": str(log),
            "failpoints": failpoints,
            "settings": {**SETTINGS, **(settings or {})},
            "conn_max_age": conn_max_age,
            "django": django or {},
            "skew": skew,
            "celery": list(celery),
            "options": options,
        }
        self._log = log
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        pid = self._answers.get(timeout=PATIENCE)
        assert pid is not None, "the launcher has ended; its traceback is on stderr"
        return self._workers[pid]

    def end_all(self) -> None:
        """Ends the workers that are left, by pid."""
        for worker in self.living():
            for pid in worker.family():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            worker.wait()
        self._workers.clear()

    def living(self) -> list[Worker]:
        """The workers that have not ended."""
        return [worker for worker in self._workers.values() if worker.code is None]

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.end_all()
        finally:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait(PATIENCE)
            self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "started" in message:
                self._workers[message["started"]] = Worker(message["started"], self._log)
                self._answers.put(message["started"])
            else:
                self._workers[message["ended"]].ended(message["code"])
        self._answers.put(None)
