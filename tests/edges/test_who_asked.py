"""Whoever steers a run or pauses a queue is named in the same way wherever it is done, whatever the name is like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import Client, RequestFactory
from django.urls import reverse

from tests.support import web
from workflow import viewing, workflows
from workflow.models import RunEvent

pytestmark = pytest.mark.django_db
PAUSES = "/admin/workflow/pausedqueue/"


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with web.registered():
        yield


@pytest.fixture(params=["olga", "", None, "ö" * 300], ids=["plain", "empty", "None", "overlong"])
def root(request: Any, monkeypatch: pytest.MonkeyPatch) -> User:
    """A user of a model whose names are of any kind."""
    user = User.objects.create_superuser("root")
    monkeypatch.setattr(User, "get_username", lambda self: request.param)
    return user


@pytest.fixture
def client(root: User) -> Client:
    return web.client_of(root)


@pytest.fixture
def name(root: User) -> str:
    """What such a user is called."""
    given: str | None = root.get_username()
    return given[:255] if given else f"user {root.pk}"


def asked(run_id: UUID) -> str:
    return str(RunEvent.objects.get(run_id=run_id, name="cancelled").data["by"])


def test_in_the_dashboard(client: Client, name: str) -> None:
    run_id = web.waiting()
    assert client.post(reverse("workflow_dashboard:cancel", args=[run_id])).status_code == 302
    assert asked(run_id) == name


def test_in_the_api(client: Client, name: str) -> None:
    run_id = web.waiting()
    assert web.post(client, f"/workflow/{run_id}/cancel/").status_code == 200
    assert asked(run_id) == name


def test_in_the_admin_of_runs(client: Client, name: str) -> None:
    run_id = web.waiting()
    chosen = {"action": "cancel", "_selected_action": [str(run_id)]}
    assert client.post(reverse("admin:workflow_run_changelist"), chosen).status_code == 302
    assert asked(run_id) == name


def test_in_the_admin_of_paused_queues(client: Client, name: str) -> None:
    form = {"queue": "slow", "until_0": "", "until_1": "", "reason": ""}
    assert client.post(f"{PAUSES}add/", form).status_code == 302
    assert [pause.by for pause in workflows.paused_queues()] == [name]
    assert client.post(f"{PAUSES}slow/delete/", {"post": "yes"}).status_code == 302
    assert workflows.paused_queues() == []


@pytest.mark.parametrize("user", [None, AnonymousUser(), User()])
def test_nobody_has_no_name(user: Any) -> None:
    request = RequestFactory().get("/")
    assert viewing.who(request) is None
    request.user = user
    assert viewing.who(request) is None
