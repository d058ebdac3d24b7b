"""Who asks, what there is to ask for, and how."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.support import web
from tests.support.web import post
from workflow.models import RunEvent

ROOT = "/workflow/"
NOBODY = uuid.UUID("01997a5e-6c00-7d41-9b1e-4a5c2f300000")


@pytest.fixture(autouse=True)
def _registered() -> Any:
    with web.registered():
        yield


@pytest.fixture
def operator() -> User:
    return web.person("olga", "view_run", "manage_run")


@pytest.fixture
def client(operator: User) -> Client:
    return web.client_of(operator)


def events(run_id: uuid.UUID, name: str) -> list[Any]:
    return list(RunEvent.objects.filter(run_id=run_id, name=name).values_list("data", flat=True))


READS = ["", "{run}/", "{run}/history/", "pauses/", "openapi.json"]
WRITES = [
    *("dispatch/", "retry/", "cancel/", "pause/", "unpause/"),
    *("{run}/retry/", "{run}/cancel/", "{run}/resume/"),
]
BODIES: dict[str, Any] = {
    "dispatch/": {"workflow": "web-free"},
    "retry/": {"filter": {"status": "failed"}},
    "cancel/": {"filter": {"status": "waiting"}},
    "pause/": {"queue": "reports"},
    "unpause/": {"queue": "reports"},
}


def ask(client: Client, method: str, route: str, run_id: uuid.UUID | str = NOBODY) -> Any:
    address = ROOT + route.format(run=run_id)
    if method == "POST":
        return post(client, address, BODIES.get(route, {}))
    return client.generic(method, address)
