"""Sockets as a browser opens them, a real Redis, and workers in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client

from example_project.asgi import application
from tests.kitchen import workflows as kitchen
from tests.support.redis_server import Redis, redis_server
from tests.support.web import FAULTY, person
from tests.support.workers import REPOSITORY, database_url, end
from workflow.registry import registry

__all__ = ["Redis", "redis_server"]

PATIENCE = 30.0
"""Seconds after which what does not come is a failure: generous, for busy machines."""
NONE: dict[str, Any] = {}
MEMORY = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}


def redis_layer(url: str, **options: Any) -> dict[str, Any]:
    return {
        "default": {
            "BACKEND": "channels_redis.core.RedisChannelLayer",
            "CONFIG": {"hosts": [url], **options},
        }
    }


@pytest.fixture(params=["redis", "none", "memory"])
def any_layer(request: pytest.FixtureRequest, settings: Any) -> Iterator[str]:
    """The test runs with a real Redis, with no layer at all, and with the one that stays in the process."""
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        settings.CHANNEL_LAYERS = redis_layer(server.url)
    else:
        settings.CHANNEL_LAYERS = NONE if request.param == "none" else MEMORY
    return request.param


@pytest.fixture
def no_redis(settings: Any) -> None:
    settings.CHANNEL_LAYERS = MEMORY


@pytest.fixture(autouse=True)
def known_workflows() -> Iterator[None]:
    """The kitchen is known here, too; payments go well again after a test."""
    with registry.isolated():
        for definition in (kitchen.bread, kitchen.soup, kitchen.sauce, kitchen.table, kitchen.toast):
            registry.register(definition)
        yield
    FAULTY.clear()


@pytest.fixture(autouse=True)
async def closed_connections() -> AsyncIterator[None]:
    """Closes what tests opened on the thread that Django's async code keeps for its connections."""
    yield
    await sync_to_async(connections.close_all)()


@pytest.fixture
def operator(transactional_db: None) -> User:
    return person("operator", "view_run")


# --- sockets --------------------------------------------------------------------------------------


class Socket:
    """An open socket. `frames` are all that came so far."""

    def __init__(self, communicator: WebsocketCommunicator) -> None:
        self.communicator = communicator
        self.frames: list[dict[str, Any]] = []

    async def next(self, seconds: float = PATIENCE) -> dict[str, Any]:
        frame: dict[str, Any] = await self.communicator.receive_json_from(timeout=seconds)
        self.frames.append(frame)
        return frame

    async def until(self, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The first frame from here on of which that is true."""
        while True:
            frame = await self.next()
            if holds(frame):
                return frame

    async def named(self, name: str) -> dict[str, Any]:
        return await self.until(lambda frame: frame.get("name") == name)

    async def closed(self) -> int:
        """The code that it is closed with; what comes before is kept."""
        while True:
            output = await self.communicator.receive_output(timeout=PATIENCE)
            if output["type"] == "websocket.close":
                code: int = output["code"]
                return code
            self.frames.append(json.loads(output["text"]))

    @property
    def seqs(self) -> list[int]:
        return [frame["seq"] for frame in self.frames if frame["type"] == "workflow.event"]


def cookie_of(user: User) -> tuple[bytes, bytes]:
    client = Client()
    client.force_login(user)
    return (b"cookie", f"sessionid={client.cookies['sessionid'].value}".encode())


def communicator(path: str, *headers: tuple[bytes, bytes]) -> WebsocketCommunicator:
    return WebsocketCommunicator(application, path, headers=list(headers))


@asynccontextmanager
async def opened(path: str, *headers: tuple[bytes, bytes]) -> AsyncIterator[Socket]:
    one = communicator(path, *headers)
    connected, code = await one.connect(timeout=PATIENCE)
    assert connected, code
    try:
        yield Socket(one)
    finally:
        # The application ends by itself when it has closed the socket; `disconnect` is for those still open.
        if not one.future.done():
            await one.disconnect(timeout=PATIENCE)


async def refused(path: str, *headers: tuple[bytes, bytes]) -> int:
    """The code with which the socket is refused before it is accepted."""
    one = communicator(path, *headers)
    connected, code = await one.connect(timeout=PATIENCE)
    assert not connected
    await one.disconnect(timeout=PATIENCE)
    assert isinstance(code, int)
    return code


# --- workers --------------------------------------------------------------------------------------


StartWorker = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start_worker(transactional_db: None) -> Iterator[StartWorker]:
    """`start_worker(redis_url="")`: a `workflow:worker` on the test's database, ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(redis_url: str = "") -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.kitchen.settings",
            "DATABASE_URL": database_url(),
            "REDIS_URL": redis_url,
            "WORKFLOW_SETTINGS": json.dumps({"POLL_INTERVAL": 0.2, "SWEEP_INTERVAL": 0.5}),
            "LOG_LEVEL": "WARNING",
        }
        process = subprocess.Popen(
            [sys.executable, "manage.py", "workflow:worker", "--concurrency", "10"],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    yield start
    end(started)
