"""Worker processes of one's own: started as a person would start them, and ended whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from types import TracebackType
from typing import IO

from django.conf import settings

STOP_PATIENCE = 5.0  # seconds that workers get to leave by themselves


class Workers:
    """Runs `manage.py workflow:worker` as child processes; leaving the `with` block ends all of them.

    What they print goes to one temporary file, of which `said()` gives the end.
    """

    def __init__(self, *arguments: str, workflow_settings: Mapping[str, float] | None = None) -> None:
        self.command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "workflow:worker", *arguments]
        self.environment = {**os.environ, "WORKFLOW_SETTINGS": json.dumps(workflow_settings or {})}
        self.running: list[subprocess.Popen[bytes]] = []
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, closed by __exit__

    def start(self) -> int:
        """Starts one more worker and returns its pid."""
        # A session of its own: Ctrl-C in the terminal reaches this process only, which then ends its
        # workers in order.
        child = subprocess.Popen(
            self.command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        self.running.append(child)
        return child.pid

    def kill(self, pid: int) -> None:
        """SIGKILL: the worker has no chance to say goodbye, to the database neither."""
        child = next(child for child in self.running if child.pid == pid)
        child.kill()
        child.wait()
        self.running.remove(child)

    def lost(self) -> list[subprocess.Popen[bytes]]:
        """Workers that ended though nobody asked them to."""
        return [child for child in self.running if child.poll() is not None]

    def said(self, lines: int = 20) -> str:
        file = self.log.fileno()
        # pread, because the workers write through the same file position.
        tail = os.pread(file, 50_000, max(0, os.fstat(file).st_size - 50_000))
        return "\n".join(tail.decode(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            for child in self.running:
                child.terminate()
            deadline = time.monotonic() + STOP_PATIENCE
            for child in self.running:
                child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:  # also when a second Ctrl-C comes while we wait
            for child in self.running:
                child.kill()
                child.wait()
            self.log.close()
