"""Retry, cancel and resume from the dashboard's pages."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from django.test import Client, override_settings

from tests.edges.dashboard.conftest import HOSTILE, forms, text, url
from tests.support.web import FAULTY, client_of, failed, person, waiting
from workflow import Action, Fatal, Stage, Workflow, action, workflows
from workflow.models import Node, Run, RunEvent
from workflow.testing import drain

pytestmark = [pytest.mark.django_db]


# --- commands -------------------------------------------------------------------------------------


def test_a_failed_run_is_retried_and_the_history_says_by_whom(manager: Client) -> None:
    run_id = failed("r-1")
    assert "with fresh attempts" in text(manager.get(url("retry", run_id)))
    response = manager.post(url("retry", run_id), follow=True)
    assert "goes on from where it failed" in text(response)
    entry = RunEvent.objects.filter(run_id=run_id, name="resumed").get()
    assert entry.data["by"] == "manager"
    FAULTY.clear()
    drain(run_id)
    assert Run.objects.get(pk=run_id).status == "waiting"


def test_a_run_is_retried_from_a_node(manager: Client) -> None:
    run_id = failed("r-2")
    page = manager.get(url("retry", run_id), {"from_node": "web-order.pay"})
    assert "from web-order.pay : that node" in text(page)
    assert manager.post(url("retry", run_id), {"from_node": "web-order.pay"}).status_code == 302
    assert RunEvent.objects.filter(run_id=run_id, name="resumed").get().data["from_node"] == "web-order.pay"


def test_a_run_is_cancelled_with_a_reason(manager: Client) -> None:
    run_id = waiting("c-1")
    manager.post(url("cancel", run_id), {"reason": "  the customer called  "})
    entry = RunEvent.objects.filter(run_id=run_id, name="cancelled").get()
    assert (entry.data["reason"], entry.data["by"]) == ("the customer called", "manager")


@pytest.mark.parametrize(
    ("given", "payload"),
    [("", None), ("null", None), ('{"ok": true}', {"ok": True}), ("[1, 2]", [1, 2]), ('"x"', "x")],
)
def test_a_wait_is_resumed_with_a_payload(manager: Client, given: str, payload: Any) -> None:
    run_id = waiting("w-1")
    assert manager.post(url("resume", run_id), {"payload": given}).status_code == 302
    drain(run_id)
    assert Run.objects.get(pk=run_id).status == "completed"
    assert Node.objects.get(run_id=run_id, path="web-order.approve").output == payload


def offers_resume(client: Client, run_id: UUID) -> bool:
    page = client.get(url("run", run_id)).content.decode()
    (link,) = re.findall(r'<a [^>]*data-command="resume"[^>]*>', page)
    return "hidden" not in link


def test_a_handler_that_is_suspended_is_resumed_with_a_payload(manager: Client) -> None:
    @action
    def ask(state: dict[str, Any], ctx: Any) -> Any:
        return ctx.step.wait_event("answer", "never")

    run_id = workflows.dispatch(Workflow("asking", stages=[Stage("s", actions=[ask])]), {}).run_id
    assert not offers_resume(manager, run_id)
    drain(run_id)
    assert Run.objects.get(pk=run_id).status == "running"
    assert offers_resume(manager, run_id)
    assert manager.post(url("resume", run_id), {"payload": '"by hand"'}).status_code == 302
    drain(run_id)
    assert Run.objects.get(pk=run_id).state == {"ask": "by hand"}
    assert not offers_resume(manager, run_id)


def test_a_compensation_that_is_suspended_is_resumed_with_a_payload(manager: Client) -> None:
    undone: list[Any] = []

    def undo(state: dict[str, Any], ctx: Any) -> None:
        undone.append(ctx.step.wait_for("refunded", lambda: None, interval=600))

    def fail(state: dict[str, Any]) -> None:
        raise Fatal("no")

    actions = [Action("act", lambda state: None, compensate=undo), Action("fail", fail)]
    run_id = workflows.dispatch(Workflow("undoing", stages=[Stage("s", actions=actions)]), {}).run_id
    drain(run_id)
    assert Run.objects.get(pk=run_id).status == "compensating"
    assert offers_resume(manager, run_id)
    assert manager.post(url("resume", run_id), {"payload": '"in cash"'}).status_code == 302
    assert not offers_resume(manager, run_id)
    drain(run_id)
    assert undone == ["in cash"]
    assert Run.objects.get(pk=run_id).status == "compensated"
    assert not offers_resume(manager, run_id)


@pytest.mark.parametrize("compensates", [False, True])
def test_what_resume_would_not_take_is_not_offered(manager: Client, compensates: bool) -> None:
    """A sleep waits for a time, not for an answer."""

    def nap(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.sleep("nap", 600)

    def fail(state: dict[str, Any]) -> None:
        raise Fatal("no")

    ends = [Action("act", lambda state: None, compensate=nap), Action("fail", fail)]
    actions = ends if compensates else [Action("act", nap)]
    run_id = workflows.dispatch(Workflow("napping", stages=[Stage("s", actions=actions)]), {}).run_id
    drain(run_id)
    assert Run.objects.get(pk=run_id).status == ("compensating" if compensates else "running")
    assert not offers_resume(manager, run_id)
    assert manager.post(url("resume", run_id)).status_code == 409


def test_a_wait_that_has_its_event_is_not_offered_again(manager: Client) -> None:
    run_id = waiting("w-2")
    assert offers_resume(manager, run_id)
    assert manager.post(url("resume", run_id)).status_code == 302
    assert Node.objects.get(run_id=run_id, path="web-order.approve").status == "waiting"
    assert not offers_resume(manager, run_id)
    assert manager.post(url("resume", run_id)).status_code == 409


@pytest.mark.parametrize(
    ("command", "data", "status"),
    [
        ("resume", {"payload": "{"}, 422),
        ("resume", {"payload": "NaN"}, 422),
        ("resume", {"payload": "[" * 100_000}, 422),
        ("resume", {"payload": '"\\u0000"'}, 422),
        ("cancel", {"reason": "x" * 501}, 422),
        ("cancel", {"reason": "a\0b"}, 422),
        ("retry", {}, 409),
        ("retry", {"from_node": HOSTILE}, 409),
    ],
)
def test_what_is_refused_says_why_and_keeps_what_was_typed(
    manager: Client, command: str, data: dict[str, str], status: int
) -> None:
    run_id = waiting("b-1")
    response = manager.post(url(command, run_id), data)
    assert response.status_code == status
    assert 'role="alert"' in response.content.decode()
    assert HOSTILE not in response.content.decode()
    assert Run.objects.get(pk=run_id).status == "waiting"
    if data.get("payload") == "{":
        assert ">{</textarea>" in response.content.decode()


def test_a_node_that_is_not_there_can_t_be_retried_from(manager: Client) -> None:
    run_id = failed("r-3")
    assert manager.post(url("retry", run_id), {"from_node": "web-order.nope"}).status_code == 422


def test_twice_is_once(manager: Client) -> None:
    run_id = failed("r-4")
    assert manager.post(url("retry", run_id)).status_code == 302
    assert manager.post(url("retry", run_id)).status_code == 409
    assert RunEvent.objects.filter(run_id=run_id, name="resumed").count() == 1


def test_a_form_without_its_token_does_nothing() -> None:
    client = client_of(person("manager", "view_run", "manage_run"), enforce_csrf_checks=True)
    run_id = waiting("t-1")
    for page in forms(run_id):
        assert client.post(page).status_code == 403
    assert Run.objects.get(pk=run_id).status == "waiting"
    client.get(url("cancel", run_id))
    token = client.cookies["csrftoken"].value
    assert client.post(url("cancel", run_id), {"csrfmiddlewaretoken": token}).status_code == 302


@override_settings(
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ]
)
def test_the_token_is_asked_for_also_where_the_project_forgot_the_middleware() -> None:
    client = client_of(person("manager", "view_run", "manage_run"), enforce_csrf_checks=True)
    run_id = waiting("t-2")
    assert client.post(url("cancel", run_id)).status_code == 403
    assert Run.objects.get(pk=run_id).status == "waiting"
