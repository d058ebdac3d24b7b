"""A real Redis for tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

PATIENCE = 30.0
"""Seconds after which one that does not answer is a failure: generous, for busy machines."""


class Redis:
    """A server of one's own on a free port."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert program, "the tests need redis-server (Debian: apt-get install redis-server)"
        self._program, self._folder = program, folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                self._program,
                "--bind",
                "127.0.0.1",
                "--port",
                str(self.port),
                "--save",
                "",
                "--appendonly",
                "no",
            ],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
        )
        client = redis.Redis(port=self.port)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.02)
        client.close()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()
