"""`WORKFLOW["CAN_VIEW_RUN"]`: a run that it refuses looks as one that does not exist, wherever a person looks."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import include, path, reverse

from tests.support import web
from tests.support.web import error, post
from workflow import workflows
from workflow.api import workflow_routes
from workflow.conf import conf
from workflow.dashboard import reading
from workflow.models import Job, Node, Run, RunEvent
from workflow.registry import registry

pytestmark = pytest.mark.django_db
API = "/workflow/"
MODELS = ("run", "node", "job", "event", "worker")


def own_runs(user: Any, run: Run) -> bool:
    """Those that were dispatched for the user."""
    return bool(run.context == {"owner": user.get_username()})


def broken(user: Any, run: Run) -> bool:
    raise RuntimeError("the directory of tenants is down")


async def asynchronous(user: Any, run: Run) -> bool:
    return True


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    web.FAULTY.clear()
    reading.forget()
    with registry.isolated():
        workflows.register(web.ORDER)
        workflows.register(web.FREE)
        workflows.register(web.ASKING)
        with override_settings(WORKFLOW={"CAN_VIEW_RUN": f"{__name__}.own_runs"}):
            yield
    reading.forget()


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its dotted path, whatever way the tests were imported."""
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


@pytest.fixture
def olga() -> User:
    return web.person("olga", *(f"view_{model}" for model in MODELS), "manage_run")


@pytest.fixture
def client(olga: User) -> Client:
    return web.client_of(olga)


@pytest.fixture
def own() -> UUID:
    return web.failed("own", context={"owner": "olga"})


@pytest.fixture
def other() -> UUID:
    return web.failed("other", context={"owner": "otto"})


def page(name: str, run_id: UUID) -> str:
    return reverse(f"workflow_dashboard:{name}", args=[run_id])


PAGES = ("run", "state", "timeline", "node", "data", "history")
COMMANDS = ("retry", "cancel", "resume")


def as_it_is(run_id: UUID) -> tuple[Any, ...]:
    run = Run.objects.get(pk=run_id)
    return (run.status, run.seq, run.updated_at, RunEvent.objects.filter(run_id=run_id).count())


# --- the API ------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["", "history/"])
def test_the_api_reads_it_as_a_run_that_does_not_exist(
    client: Client, own: UUID, other: UUID, route: str
) -> None:
    missing = uuid.UUID(int=own.int ^ (1 << 80))
    assert client.get(f"{API}{own}/{route}").status_code == 200
    hidden = error(client.get(f"{API}{other}/{route}"), 404, "RUN_NOT_FOUND")
    unknown = error(client.get(f"{API}{missing}/{route}"), 404, "RUN_NOT_FOUND")
    assert hidden["message"].replace(str(other), "") == unknown["message"].replace(str(missing), "")


def test_a_tag_from_before_does_not_tell_that_it_is_there(client: Client, own: UUID) -> None:
    tag = client.get(f"{API}{own}/")["ETag"]
    Run.objects.filter(pk=own).update(context={"owner": "otto"})
    error(client.get(f"{API}{own}/", headers={"If-None-Match": tag}), 404, "RUN_NOT_FOUND")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_api_does_nothing_to_it(client: Client, other: UUID, command: str) -> None:
    before = as_it_is(other)
    error(post(client, f"{API}{other}/{command}/"), 404, "RUN_NOT_FOUND")
    assert as_it_is(other) == before


def test_the_api_lists_only_what_may_be_seen(client: Client, own: UUID, other: UUID) -> None:
    listed = client.get(API).json()
    assert [run["id"] for run in listed["items"]] == [str(own)]
    first = client.get(f"{API}?limit=1").json()
    assert first["items"] == []
    assert first["next"], "a page may be short, and is not the last for it"
    assert [run["id"] for run in client.get(f"{API}?after={first['next']}").json()["items"]] == [str(own)]


@pytest.mark.parametrize("dry_run", [True, False])
def test_commands_for_many_leave_it_out(client: Client, own: UUID, other: UUID, dry_run: bool) -> None:
    before = as_it_is(other)
    body = {"filter": {"status": "failed"}, "dry_run": dry_run}
    answer = post(client, f"{API}retry/", body).json()
    assert (answer["done"], answer["refused"]) == (1, 0)
    named = post(client, f"{API}cancel/", {"filter": {"ids": [str(other)]}, "dry_run": dry_run}).json()
    assert (named["done"], named["refused"]) == (0, 1)
    assert named["reasons"][0]["code"] == "RUN_NOT_FOUND"
    assert as_it_is(other) == before


def test_an_authorize_of_ones_own_does_not_replace_it(own: UUID) -> None:
    seen: list[Any] = []

    def nobodys(user: Any, run: Run) -> bool:
        seen.append(user.is_authenticated)
        return False

    routes = web.addresses(path("api/", include(workflow_routes(authorize=lambda request: True))))
    with override_settings(ROOT_URLCONF=routes, WORKFLOW={"CAN_VIEW_RUN": nobodys}):
        error(Client().get(f"/api/{own}/"), 404, "RUN_NOT_FOUND")
    assert seen == [False]


# --- pages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_its_pages_are_missing(client: Client, own: UUID, other: UUID, name: str) -> None:
    query = "?path=web-order.pay.charge" if name == "node" else ""
    assert client.get(page(name, own) + query).status_code == 200
    hidden = client.get(page(name, other) + query)
    assert hidden.status_code == 404
    unknown = client.get(page(name, uuid.UUID(int=other.int ^ (1 << 80))) + query)
    assert hidden.content == unknown.content
    assert b"web-order" not in hidden.content


@pytest.mark.parametrize("command", COMMANDS)
def test_its_buttons_do_nothing(client: Client, other: UUID, command: str) -> None:
    before = as_it_is(other)
    assert client.get(page(command, other)).status_code == 404
    assert client.post(page(command, other)).status_code == 404
    assert as_it_is(other) == before


def test_the_list_leaves_it_out(client: Client, own: UUID, other: UUID) -> None:
    listed = client.get(reverse("workflow_dashboard:runs")).content.decode()
    assert str(own) in listed
    assert str(other) not in listed


def test_a_list_of_nothing_but_hidden_runs_says_so(client: Client, other: UUID) -> None:
    assert "No run here is yours to see." in client.get(reverse("workflow_dashboard:runs")).content.decode()


# --- the admin ----------------------------------------------------------------------------------


def test_the_admin_hides_it_with_its_nodes_and_jobs(client: Client, own: UUID) -> None:
    other = web.waiting("other", context={"owner": "otto"})
    rows = [
        ("run", other, own),
        ("node", Node.objects.filter(run_id=other)[0].pk, Node.objects.filter(run_id=own)[0].pk),
    ]
    for model, hidden, shown in rows:
        assert client.get(reverse(f"admin:workflow_{model}_change", args=[shown])).status_code == 200
        gone = client.get(reverse(f"admin:workflow_{model}_change", args=[hidden]))
        assert gone.status_code == 302
        assert gone["Location"] == reverse("admin:index")
        listed = client.get(reverse(f"admin:workflow_{model}_changelist")).context["cl"].result_list
        assert shown in {row.pk for row in listed}
        assert hidden not in {row.pk for row in listed}
    due = workflows.dispatch("web-free", context={"owner": "otto"}).run_id
    job = Job.objects.get(run_id=due)
    assert client.get(reverse("admin:workflow_job_change", args=[job.pk])).status_code == 302
    assert not client.get(reverse("admin:workflow_job_changelist")).context["cl"].result_list


@pytest.mark.parametrize("definition", [web.ORDER, web.ASKING])
def test_the_admin_hides_the_jobs_that_check_its_waits(client: Client, definition: Any) -> None:
    hidden = web.checking(definition, context={"owner": "otto"})
    shown = web.checking(definition, context={"owner": "olga"})
    listed = client.get(reverse("admin:workflow_job_changelist")).context["cl"].result_list
    assert {job.pk for job in listed if job.kind == "check"} == {shown.pk}
    assert client.get(reverse("admin:workflow_job_change", args=[shown.pk])).status_code == 200
    assert client.get(reverse("admin:workflow_job_change", args=[hidden.pk])).status_code == 302


def test_the_admins_actions_do_nothing_to_it(client: Client, own: UUID, other: UUID) -> None:
    before = as_it_is(other)
    chosen = {"action": "retry", "_selected_action": [str(own), str(other)]}
    said = client.post(reverse("admin:workflow_run_changelist"), chosen, follow=True).content.decode()
    assert "1 run retried." in said
    assert "there is no such run" in said
    assert as_it_is(other) == before


# --- the hook itself ----------------------------------------------------------------------------


@pytest.mark.parametrize("hook", [broken, asynchronous, "no.such.module", 7])
def test_a_hook_that_fails_refuses_and_logs(
    client: Client, own: UUID, caplog: pytest.LogCaptureFixture, hook: Any
) -> None:
    with override_settings(WORKFLOW={"CAN_VIEW_RUN": hook}), caplog.at_level(logging.ERROR, "workflow"):
        error(client.get(f"{API}{own}/"), 404, "RUN_NOT_FOUND")
        assert client.get(page("run", own)).status_code == 404
    told = [one for one in caplog.records if one.name == "workflow" and "CAN_VIEW_RUN" in one.getMessage()]
    assert len(told) == 2
    assert all(one.exc_info for one in told)


def test_a_coroutine_that_a_plain_function_returns_is_no_yes(
    client: Client, own: UUID, caplog: pytest.LogCaptureFixture
) -> None:
    with override_settings(WORKFLOW={"CAN_VIEW_RUN": lambda user, run: asynchronous(user, run)}):
        error(client.get(f"{API}{own}/"), 404, "RUN_NOT_FOUND")
    assert "must be a plain function" in caplog.text


def test_it_is_asked_only_of_those_who_have_the_permission(own: UUID) -> None:
    asked: list[str] = []

    def counting(user: Any, run: Run) -> bool:
        asked.append(user.get_username())
        return True

    with override_settings(WORKFLOW={"CAN_VIEW_RUN": counting}):
        nobody = web.client_of(web.person("paul"))
        error(nobody.get(f"{API}{own}/"), 403, "FORBIDDEN")
        assert nobody.get(page("run", own)).status_code == 403
        assert Client().get(page("run", own)).status_code == 302
        assert asked == []
        root = web.client_of(User.objects.create_superuser("root"))
        assert root.get(page("run", own)).status_code == 200
        assert asked == ["root"], "superusers too: whether they see everything is for the hook to say"


def test_it_gets_the_runs_row(client: Client, olga: User, own: UUID) -> None:
    got: list[Any] = []

    def looking(user: Any, run: Run) -> bool:
        got.append((user, run.pk, run.workflow, run.correlation_id, run.context, run.input["order_id"]))
        return True

    with override_settings(WORKFLOW={"CAN_VIEW_RUN": looking}):
        assert client.get(f"{API}{own}/").status_code == 200
    assert got == [(olga, own, "web-order", None, {"owner": "olga"}, "own")]


def test_a_page_of_runs_costs_one_statement_more(client: Client, own: UUID) -> None:
    for number in range(3):
        web.completed(context={"owner": "olga", "n": number})

    def cost(**settings: Any) -> int:
        with override_settings(WORKFLOW=settings), CaptureQueriesContext(connection) as asked:
            assert client.get(API).status_code == 200
        return len(asked)

    assert conf.CAN_VIEW_RUN is not None
    assert cost(CAN_VIEW_RUN=own_runs) == cost() + 1
