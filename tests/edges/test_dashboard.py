"""The dashboard's pages: who may see them, what they show and ask, and that they change nothing by being looked at."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from tests.kitchen import workflows as kitchen
from tests.support.definitions import PHASES
from tests.support.web import FAULTY, ORDER, client_of, completed, failed, person, waiting
from workflow import Stage, Workflow, action, ids, parallel, workflows
from workflow.dashboard import filters, reading, timelines
from workflow.models import Job, Node, Run, RunEvent, Worker
from workflow.registry import registry
from workflow.sql import dashboard as sql
from workflow.testing import drain

pytestmark = [pytest.mark.django_db]

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reading.forget()
    with registry.isolated():
        for one in (ORDER, PHASES, kitchen.toast, kitchen.table):
            registry.register(one)
        yield
    FAULTY.clear()
    reading.forget()


@pytest.fixture
def viewer() -> Client:
    return client_of(person("viewer", "view_run"))


@pytest.fixture
def manager() -> Client:
    return client_of(person("manager", "view_run", "manage_run"))


def url(name: str, *args: Any) -> str:
    return reverse(f"workflow_dashboard:{name}", args=args)


def text(response: Any, status: int = 200) -> str:
    """What a page says, without its markup."""
    assert response.status_code == status, response.content
    plain = re.sub(r"<(script|style).*?</\1>", "", response.content.decode(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", plain)).split())


def all_pages(run_id: UUID) -> list[str]:
    return [
        url("runs"),
        url("runs") + "?fragment=1",
        url("definitions"),
        url("definition", "web-order"),
        url("run", run_id),
        url("run", run_id) + "?node=web-order.pay.charge",
        url("state", run_id),
        url("timeline", run_id),
        url("node", run_id) + "?path=web-order.pay.charge",
        url("data", run_id),
        url("history", run_id),
    ]


def forms(run_id: UUID) -> list[str]:
    return [url(name, run_id) for name in ("retry", "cancel", "resume")]


# --- who may --------------------------------------------------------------------------------------


def test_nobody_is_sent_to_log_in_and_comes_back() -> None:
    run_id = failed()
    for page in [*all_pages(run_id), *forms(run_id)]:
        response = Client().get(page)
        assert response.status_code == 302
        assert response["Location"].startswith("/admin/login/?next=/dashboard/")
        assert Client().get(page, headers={"X-Requested-With": "fetch"}).status_code == 401
    for page in forms(run_id):
        assert Client().post(page).status_code == 302
    assert Run.objects.get(pk=run_id).status == "failed"


@pytest.mark.parametrize(
    ("permissions", "staff", "sees", "manages"),
    [
        ((), True, False, False),
        (("view_run", "manage_run"), False, False, False),
        (("manage_run",), True, False, False),
        (("view_run",), True, True, False),
        (("view_run", "manage_run"), True, True, True),
    ],
)
def test_what_each_role_may(permissions: tuple[str, ...], staff: bool, sees: bool, manages: bool) -> None:
    client = client_of(person("someone", *permissions, staff=staff))
    run_id = failed()
    for page in all_pages(run_id):
        assert client.get(page).status_code == (200 if sees else 403), page
    for page in forms(run_id):
        assert client.get(page).status_code == (200 if manages else 403), page
    assert client.post(url("retry", run_id)).status_code == (302 if manages else 403)
    assert Run.objects.get(pk=run_id).status == ("running" if manages else "failed")


def test_who_may_only_look_gets_no_buttons(viewer: Client, manager: Client) -> None:
    run_id = failed()
    page = url("run", run_id) + "?node=web-order.pay.charge"
    assert b"data-command" not in viewer.get(page).content
    shown = manager.get(page).content.decode()
    assert re.search(r'data-command="retry" href="[^"]+"(?! hidden)', shown)
    assert "Retry from here" in shown


def test_pages_are_sealed_and_not_kept(viewer: Client) -> None:
    run_id = failed()
    for page in all_pages(run_id):
        response = viewer.get(page)
        policy = response["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert response["X-Content-Type-Options"] == "nosniff"
        assert "no-store" in response["Cache-Control"]


def test_refusals_are_sealed_too(manager: Client) -> None:
    run_id = failed()
    answers = {
        404: [manager.get(url("run", uuid4())), manager.get(url("definition", "nope"))],
        405: [manager.post(url("run", run_id)), manager.put(url("cancel", run_id))],
        400: [manager.get(url("runs"), {"nope": 1}), manager.get(url("history", run_id), {"after": "x"})],
        403: [client_of(person("nobody")).get(url("runs"))],
        302: [Client().get(url("runs"))],
        409: [manager.post(url("resume", run_id))],
    }
    for status, responses in answers.items():
        for response in responses:
            assert response.status_code == status
            assert "default-src 'none'" in response["Content-Security-Policy"]
            assert "no-store" in response["Cache-Control"]
    assert "It is not here No such run." in text(answers[404][0], 404)
    fetched = manager.get(url("node", run_id), {"path": "x"}, headers={"X-Requested-With": "fetch"})
    assert (fetched.status_code, fetched.content) == (404, b"no such node")


def test_a_failed_csrf_check_is_sealed_too_and_is_still_made(manager: Client) -> None:
    run_id = waiting()
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = manager.cookies
    refused = strict.post(url("cancel", run_id))
    assert refused.status_code == 403
    assert "default-src 'none'" in refused["Content-Security-Policy"]
    assert "no-store" in refused["Cache-Control"]
    assert Run.objects.get(pk=run_id).status == "waiting"
    form = strict.get(url("cancel", run_id)).content.decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
    assert token
    wrong = strict.post(url("cancel", run_id), {"csrfmiddlewaretoken": "x" * 64})
    assert wrong.status_code == 403
    assert strict.post(url("cancel", run_id), {"csrfmiddlewaretoken": token[1]}).status_code == 302
    assert Run.objects.get(pk=run_id).status == "cancelled"


def test_nothing_stands_inside_a_page_that_its_policy_forbids(viewer: Client) -> None:
    run_id = failed()
    for page in all_pages(run_id):
        body = viewer.get(page).content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)", body), page
        assert not re.search(r"<[^>]+\s(style|on\w+)=", body), page
        assert "<style" not in body
        assert not re.search(r"(src|href)=[\"']?(https?:)?//", body), page


def test_static_files_of_another_host_are_allowed_by_name(viewer: Client) -> None:
    with override_settings(STATIC_URL="https://files.example/static/"):
        policy = viewer.get(url("runs"))["Content-Security-Policy"]
    assert "script-src 'self' https://files.example" in policy


def test_looking_changes_nothing(manager: Client) -> None:
    run_ids = [failed("g-1"), waiting("g-2"), completed()]
    before = list(Run.objects.order_by("id").values())
    for run_id in run_ids:
        for page in [*all_pages(run_id), *forms(run_id)]:
            assert manager.get(page).status_code in (200, 404)
            assert manager.head(page).status_code in (200, 404)
    assert list(Run.objects.order_by("id").values()) == before
    for page in all_pages(run_ids[0]):
        assert manager.post(page).status_code == 405
    for page in forms(run_ids[0]):
        assert manager.put(page).status_code == 405
        assert manager.delete(page).status_code == 405


def test_unknown_runs_nodes_and_workflows_are_not_found(manager: Client) -> None:
    run_id = failed()
    for name in ("run", "state", "timeline", "node", "data", "history", "retry", "cancel", "resume"):
        assert manager.get(url(name, uuid4())).status_code == 404
    assert manager.post(url("cancel", uuid4())).status_code == 404
    for path in ("", "nope", "web-order.pay.charge.x", "\0", "<b>", "é" * 2_000):
        assert manager.get(url("node", run_id), {"path": path}).status_code == 404
    assert manager.get(url("definition", "nope")).status_code == 404
    assert manager.get(url("definition", HOSTILE.replace("/", ""))).status_code == 404


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


def test_a_handler_that_is_suspended_is_resumed_with_a_payload(manager: Client) -> None:
    @action
    def ask(state: dict[str, Any], ctx: Any) -> Any:
        return ctx.step.wait_event("answer", "never")

    def offers_resume() -> bool:
        page = manager.get(url("run", run_id)).content.decode()
        (link,) = re.findall(r'<a [^>]*data-command="resume"[^>]*>', page)
        return "hidden" not in link

    run_id = workflows.dispatch(Workflow("asking", stages=[Stage("s", actions=[ask])]), {}).run_id
    assert not offers_resume()
    drain(run_id)
    assert Run.objects.get(pk=run_id).status == "running"
    assert offers_resume()
    assert manager.post(url("resume", run_id), {"payload": '"by hand"'}).status_code == 302
    drain(run_id)
    assert Run.objects.get(pk=run_id).state == {"ask": "by hand"}
    assert not offers_resume()


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


# --- the list -------------------------------------------------------------------------------------


def ids_on(response: Any) -> list[str]:
    assert response.status_code == 200, response.content
    return re.findall(r'<tr id="run-([0-9a-f-]{36})"', response.content.decode())


def test_runs_are_found_by_what_the_form_offers(viewer: Client) -> None:
    bad = failed("l-1", correlation_id="customer-1")
    parked = waiting("l-2", correlation_id="customer-2")
    done = completed(correlation_id="customer-2", idempotency_key="key-2")
    page = url("runs")
    assert ids_on(viewer.get(page)) == [str(done), str(parked), str(bad)]
    for query, expected in (
        ({"workflow": "web-order"}, [parked, bad]),
        ({"status": "failed"}, [bad]),
        ({"status": "live"}, [parked]),
        ({"correlation": "customer-2"}, [done, parked]),
        ({"correlation": "customer-2", "workflow": "web-free"}, [done]),
        ({"q": "customer-1"}, [bad]),
        ({"q": "key-2"}, [done]),
        ({"q": "key-2", "status": "failed"}, []),
        ({"q": str(parked)}, [parked]),
        ({"q": str(parked).upper()}, [parked]),
        ({"q": str(parked).replace("-", "")}, [parked]),
        ({"q": f"run {parked} failed"}, [parked]),
        ({"q": str(Node.objects.filter(run_id=parked).latest("id").id)}, [parked]),
        ({"q": str(parked)[:8]}, [done, parked, bad]),
        ({"q": "nothing like it"}, []),
        ({"q": "ffff"}, []),
        ({"age": "1h"}, [done, parked, bad]),
        ({"age": "older-1h"}, []),
        ({"status": "", "workflow": "", "q": "  "}, [done, parked, bad]),
    ):
        assert ids_on(viewer.get(page, query)) == [str(run) for run in expected], query


def test_age_is_told_from_the_id(viewer: Client) -> None:
    done = completed()
    old = ids.new_run_id().int - (2 * 3_600_000 << 80)
    Run.objects.filter(pk=done).update(id=UUID(int=old))
    assert ids_on(viewer.get(url("runs"), {"age": "older-1h"})) == [str(UUID(int=old))]
    assert ids_on(viewer.get(url("runs"), {"age": "1h"})) == []


@pytest.mark.parametrize(
    "query",
    [
        "_connector=OR",
        "_negated=1",
        "input__a'b=1",
        "input__password__startswith=x",
        "workflow__name=x",
        "status__in=failed",
        "limit=5",
        "status=nope",
        "status=failed&status=completed",
        "age=1y",
        "older=nope",
        "newer=1",
        "older=00000000-0000-0000-0000-000000000000&newer=00000000-0000-0000-0000-000000000000",
        "q=%00",
        f"q={'x' * 300}",
    ],
)
def test_whatever_else_is_asked_is_refused(viewer: Client, query: str) -> None:
    with CaptureQueriesContext(connection) as queries:
        response = viewer.get(f"{url('runs')}?{query}")
    assert response.status_code == 400
    assert not any("workflow_run" in one["sql"] for one in queries.captured_queries)


def test_pages_lead_from_one_to_the_next_and_back(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PAGE", 2)
    run_ids = [str(completed()) for _ in range(5)][::-1]

    def follow(response: Any, rel: str) -> Any:
        found = re.search(rf'href="\?([^"]+)" rel="{rel}"', response.content.decode())
        assert found, rel
        return viewer.get(f"{url('runs')}?{html.unescape(found[1])}")

    first = viewer.get(url("runs"), {"workflow": "web-free"})
    second = follow(first, "next")
    third = follow(second, "next")
    assert [ids_on(page) for page in (first, second, third)] == [run_ids[:2], run_ids[2:4], run_ids[4:]]
    assert b'rel="next"' not in third.content
    back = follow(third, "prev")
    assert ids_on(back) == run_ids[2:4]
    assert ids_on(follow(back, "prev")) == run_ids[:2]
    assert b'rel="prev"' not in first.content


@pytest.mark.django_db(transaction=True)
def test_at_a_glance(viewer: Client) -> None:
    failed("o-1")
    waiting("o-2")
    completed()
    queue = "slow"
    workflows.dispatch(ORDER, {"order_id": "o-3"}, queue=queue)
    Job.objects.filter(queue=queue).update(available_at=timezone.now() - timedelta(minutes=5))
    Worker.objects.create(
        hostname="host-1", pid=7, concurrency=9, threads=2, units=3,
        serves=[{"name": "web-order", "version": 1, "fingerprint": "x"}], queues=["slow"],
    )  # fmt: skip
    Worker.objects.create(hostname="gone", pid=8, concurrency=1, threads=1, stopped_at=timezone.now())
    Worker.objects.create(
        hostname="silent", pid=9, concurrency=1, threads=1, seen_at=timezone.now() - timedelta(hours=1)
    )
    said = text(viewer.get(url("runs")))
    assert "1 · pending" in said
    assert "1 ◷ waiting" in said
    assert "1 ✓ completed" in said
    assert "1 ✗ failed" in said
    assert re.search(r"Oldest due job: 5m 0\ds late, in slow", said)
    assert "1 worker alive" in said
    assert "host-1:7 : 3 of 9 units, slow" in said
    assert "web-order v1" in said
    assert "2 ended, 1 failed or undone, last hour" in said
    assert "2 ended, 1 failed or undone, last day" in said
    assert "silent" not in said
    assert "gone" not in said


def test_large_counts_are_estimated(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CAP", 3)
    for _ in range(5):
        completed()
    counts = {count.status: count for count in reading.counts()}
    assert counts["completed"].exact is False
    assert counts["completed"].number >= 4
    assert (counts["failed"].number, counts["failed"].exact) == (0, True)
    reading.forget()
    assert "4+ ✓ completed" in text(viewer.get(url("runs")))


def test_a_list_that_takes_too_long_says_so(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PATIENCE_MS", 50)
    monkeypatch.setattr(reading.sql, "RUNS", "SELECT pg_sleep(5){conditions} -- {direction}", raising=True)
    monkeypatch.setitem(reading.sql.RUN_CONDITIONS, "workflow", "")
    assert "took too long" in text(viewer.get(url("runs"), {"workflow": "x"}))


def test_the_list_costs_the_same_however_many_runs_there_are(viewer: Client) -> None:
    def cost() -> int:
        reading.forget()
        with CaptureQueriesContext(connection) as queries:
            viewer.get(url("runs"))
        return len(queries)

    completed()
    one = cost()
    for _ in range(20):
        completed()
    assert cost() == one
    assert one <= 16


# --- one run --------------------------------------------------------------------------------------


def test_the_page_of_a_run_tells_all(viewer: Client) -> None:
    run_id = failed("p-1", correlation_id="customer-9", idempotency_key="key-9")
    said = text(viewer.get(url("run", run_id)))
    for words in (
        "web-order v1",
        "✗ failed",
        "customer-9",
        "key key-9",
        str(run_id),
        "Why it failed ACTION_FAILED in web-order.pay.charge RuntimeError p-1 refused, card=None",
        "Traceback",
        "action.failed",
        "log web-order.pay.charge charging",
    ):
        assert words in said, words


def test_a_node_tells_its_attempts_output_error_and_history(viewer: Client) -> None:
    run_id = workflows.dispatch(kitchen.toast, {}).run_id
    drain(run_id)
    said = text(viewer.get(url("node", run_id), {"path": "kitchen-toast.again.again#run"}))
    assert "✗ failed kitchen-toast.again.again#run" in said
    assert "ACTION_FAILED in kitchen-toast.again.again#run ValueError burnt" in said
    assert re.search(r"Attempts # Began Ended Outcome Error 1 [\d: -]+ failed ACTION_FAILED: burnt", said)
    assert "1 attempt" in said
    done = text(viewer.get(url("node", run_id), {"path": "kitchen-toast.mix.weigh"}))
    assert '"grams": 500' in done
    assert "action.completed" in done
    on_page = text(viewer.get(url("run", run_id), {"node": "kitchen-toast.mix.weigh"}))
    assert '"grams": 500' in on_page


def test_what_runs_at_the_same_time_is_drawn_side_by_side(viewer: Client) -> None:
    run_id = workflows.dispatch(PHASES).run_id
    shown = viewer.get(url("run", run_id)).content.decode()
    assert shown.count('class="group together"') == 1
    left, right, after = (shown.index(f'data-path="second.{name}"') for name in ("left", "right", "after"))
    group = shown.index('class="group together"')
    assert group < left < right < shown.index('<li class="group', right) < after


def test_a_run_of_an_unknown_definition_is_drawn_one_after_another(viewer: Client) -> None:
    run_id = workflows.dispatch(PHASES).run_id
    Run.objects.filter(pk=run_id).update(fingerprint="another")
    shown = viewer.get(url("run", run_id)).content.decode()
    assert 'class="group together"' not in shown
    for node in Node.objects.filter(run_id=run_id):
        assert f'data-path="{node.path}"' in shown


def test_a_run_that_went_back_is_drawn_backwards(viewer: Client) -> None:
    run_id = workflows.dispatch(kitchen.toast, {}).run_id
    drain(run_id)
    response = viewer.get(url("run", run_id))
    assert 'class="tree backwards"' in response.content.decode()
    assert "What had completed is undone" in text(response)
    assert re.search(r's-compensated" data-path="kitchen-toast.serve.serve"', response.content.decode())


@pytest.mark.django_db(transaction=True)
def test_the_timeline_tells_waiting_from_running(viewer: Client) -> None:
    run_id = waiting("t-3")
    workflows.resume(run_id)
    drain(run_id)
    timeline = viewer.get(url("timeline", run_id)).json()
    rows = {path: (kind, segments) for path, kind, segments in timeline["rows"]}
    assert [kind for kind, _, _ in rows[""][1]] == ["wait", "run", "wait", "run"]
    assert [kind for kind, _, _ in rows["web-order.approve"][1]] == ["wait"]
    assert [kind for kind, _, _ in rows["web-order.pay.charge"][1]] == ["run"]
    for _, segments in rows.values():
        for _, begin, end in segments:
            assert begin <= end <= timeline["now"] + 1


def test_a_timeline_of_attempts_suspensions_and_of_going_back() -> None:
    node = {
        "path": "p.s.a",
        "kind": "action",
        "status": "compensated",
        "started_at": None,
        "finished_at": None,
    }
    run = {"created_at": "2026-01-01T00:00:00+00:00", "finished_at": "2026-01-01T00:01:00+00:00"}
    base = 1767225600.0
    names = [
        "started",
        "action.started",
        "action.retrying",
        "action.started",
        "waiting",
        "resumed",
        "action.completed",
        "compensating",
        "action.retrying",
        "action.compensated",
        "compensated",
    ]
    on_the_run = ("started", "compensating", "compensated")
    moves = [
        (name, None if name in on_the_run else "p.s.a", base + at, at == 9)
        for at, name in enumerate(names, 1)
    ]
    root, track = timelines.tracks(run, [node], moves)
    assert root.segments == [
        ("wait", base, base + 1),
        ("run", base + 1, base + 8),
        ("undo", base + 8, base + 11),
    ]
    assert track.segments == [
        ("retry", base + 2, base + 3),
        ("wait", base + 3, base + 4),
        ("run", base + 4, base + 5),
        ("wait", base + 5, base + 6),
        ("run", base + 6, base + 7),
        ("retry", base + 9, base + 9),
        ("undo", base + 10, base + 10),
    ]


def test_history_is_paged(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflow.dashboard.views.run.HISTORY_PAGE", 3)
    run_id = completed()
    first = viewer.get(url("history", run_id))
    assert re.findall(r'data-seq="(\d+)"', first.content.decode()) == ["1", "2", "3"]
    second = viewer.get(url("history", run_id), {"after": "3"})
    assert re.findall(r'data-seq="(\d+)"', second.content.decode())[0] == "4"
    for bad in ("x", "-1", "9" * 30, "²"):
        assert viewer.get(url("history", run_id), {"after": bad}).status_code == 400


def test_the_snapshot_is_what_the_socket_sends(viewer: Client) -> None:
    run_id = waiting("s-1")
    found = viewer.get(url("state", run_id)).json()
    assert found["type"] == "snapshot"
    assert found["seq"] == Run.objects.get(pk=run_id).seq
    assert found["run"]["status"] == "waiting"


# --- definitions ----------------------------------------------------------------------------------


def test_a_definition_shows_gates_timeouts_retries_and_compensations(viewer: Client) -> None:
    @action(attempts=5, backoff=2.0, timeout=90, when=lambda state: True, precheck=print, atomic=True)
    def careful(state: Any) -> None: ...

    @careful.compensate
    def undo_it(state: Any) -> None: ...

    @action(via="queue")
    def queued(state: Any) -> None: ...

    registry.register(
        Workflow(
            "drawn",
            on_failure="halt",
            stages=[
                Stage("both", actions=[parallel(careful, queued)]),
                kitchen.table.pipelines[0].items[0][0],
            ],
        )
    )
    said = text(viewer.get(url("definition", "drawn")))
    for words in (
        "5 attempts waits 2.0s more after each attempt",
        "1m 30s timeout of each attempt",
        "when skipped unless",
        "precheck fails at once if print raises",
        "atomic",
        "undone by",
        "undo_it",
        "queued runs in a job of its own",
        "waits for guest.came",
        "by name only an event of this correlation counts",
        "leave it standing",
        "served by 0 workers",
    ):
        assert words in said, words
    listed = text(viewer.get(url("definitions")))
    assert "drawn 1 2 2 its runs" in listed


# --- hostile texts, secrets -----------------------------------------------------------------------


def test_whatever_stands_in_a_run_is_shown_as_text(manager: Client) -> None:
    run_id = failed("h-1", correlation_id=HOSTILE)
    Run.objects.filter(pk=run_id).update(
        input={HOSTILE: HOSTILE}, state={HOSTILE: [HOSTILE]}, context=HOSTILE, queue=HOSTILE, idempotency_key=HOSTILE,
        error={"code": HOSTILE, "message": HOSTILE, "node": HOSTILE, "type": HOSTILE, "traceback": HOSTILE},
    )  # fmt: skip
    Node.objects.filter(run_id=run_id, kind="action").update(
        output={HOSTILE: HOSTILE},
        error={"code": HOSTILE, "message": HOSTILE, "node": HOSTILE, "type": HOSTILE, "traceback": HOSTILE},
    )
    RunEvent.objects.filter(run_id=run_id).update(
        name="x" + HOSTILE[:38], data={HOSTILE: HOSTILE, "message": HOSTILE}
    )
    Worker.objects.create(
        hostname=HOSTILE,
        pid=1,
        concurrency=1,
        threads=1,
        queues=[HOSTILE],
        serves=[{"name": HOSTILE, "version": HOSTILE}],
    )
    pages = [*all_pages(run_id), *forms(run_id), f"{url('retry', run_id)}?from_node={HOSTILE}"]
    for page in pages:
        body = manager.get(page).content.decode()
        if page in (url("state", run_id), url("timeline", run_id)):
            continue  # JSON; the next test says so
        assert "<img" not in body, page
        shown = re.sub(r'<input type="hidden"[^>]*>', "", body)
        assert "\u202e" not in shown, page
    assert "&lt;img" in manager.get(url("run", run_id)).content.decode()
    for query in (
        {"q": HOSTILE},
        {"workflow": HOSTILE},
        {"correlation": HOSTILE},
        {"status": HOSTILE},
        {HOSTILE: "1"},
    ):
        assert "<img" not in manager.get(url("runs"), query).content.decode()


def test_json_is_no_page(viewer: Client) -> None:
    run_id = failed("h-2")
    Run.objects.filter(pk=run_id).update(error={"code": "X", "message": HOSTILE})
    for name in ("state", "timeline"):
        response = viewer.get(url(name, run_id))
        assert response["Content-Type"] == "application/json"
        assert response["X-Content-Type-Options"] == "nosniff"


def test_a_megabyte_of_error_is_cut(viewer: Client) -> None:
    run_id = failed("h-3")
    Run.objects.filter(pk=run_id).update(
        error={"code": "ACTION_FAILED", "message": "m" * 1_000_000, "traceback": "t" * 1_000_000}
    )
    Node.objects.filter(run_id=run_id).update(output="o" * 1_000_000)
    for page in (url("run", run_id), url("node", run_id) + "?path=web-order.pay.charge", url("runs")):
        assert len(viewer.get(page).content) < 400_000


def test_what_is_to_be_masked_is_masked_everywhere(manager: Client) -> None:
    with override_settings(WORKFLOW={"REDACT": ["card", "*token*"]}):
        run_id = failed("m-1", card="S3CR3T-4444")
        Node.objects.filter(run_id=run_id, kind="action").update(output={"api_token": "S3CR3T-5555"})
        for page in [*all_pages(run_id), *forms(run_id)]:
            assert "S3CR3T" not in manager.get(page).content.decode(), page
    assert "S3CR3T" in manager.get(url("data", run_id)).content.decode()


# --- size -----------------------------------------------------------------------------------------


def thousand_nodes() -> UUID:
    @action
    def nothing(state: Any) -> None: ...

    wide = Workflow("wide", stages=[Stage(f"s{n}", actions=[nothing]) for n in range(500)])
    registry.register(wide)
    run_id = workflows.dispatch(wide).run_id
    assert Node.objects.filter(run_id=run_id).count() == 1_001
    return run_id


def test_a_run_of_a_thousand_nodes_takes_as_many_queries_as_a_small_one(viewer: Client) -> None:
    small, large = waiting(), thousand_nodes()
    for name in ("run", "state", "timeline", "data", "history"):
        with CaptureQueriesContext(connection) as few:
            viewer.get(url(name, small))
        with CaptureQueriesContext(connection) as many:
            assert viewer.get(url(name, large)).status_code == 200
        assert len(many) == len(few) <= 12, name


def test_filters_know_their_conditions() -> None:
    """Each condition is one of the statement's; nothing a person types becomes SQL."""
    from django.http import QueryDict

    query = QueryDict(f"workflow=a&status=failed&correlation=b&age=1h&q=c&older={ids.new_run_id()}")
    names, parameters = filters.parse(query).conditions(timezone.now())
    assert set(names) <= {*sql.RUN_CONDITIONS, *sql.SEARCHES}
    for name in set(names) & set(sql.RUN_CONDITIONS):
        for parameter in re.findall(r"%\((\w+)\)s", reading.sql.RUN_CONDITIONS[name]):
            assert parameter in parameters
    assert sorted(names) == ["correlation", "older", "since", "status", "words", "workflow"]
    for text, name in (("0199c0de", "id"), ("customer 1", "words")):
        names, parameters = filters.parse(QueryDict(f"q={text}")).conditions(timezone.now())
        assert names == [name]
        asked = "".join(sql.RUN_CONDITIONS[kind] for kind in sql.SEARCHES[name])
        assert set(re.findall(r"%\((\w+)\)s", asked)) == {"names", *parameters}


def test_a_worker_that_misses_its_heartbeats_is_shown_as_silent(viewer: Client) -> None:
    serves = [{"name": "web-order", "version": 1}]
    for name, seconds in (("fresh", 5), ("lost", 200), ("late", 100)):
        Worker.objects.create(
            hostname=name,
            pid=1,
            concurrency=1,
            threads=1,
            serves=serves,
            seen_at=timezone.now() - timedelta(seconds=seconds),
        )
    said = text(viewer.get(url("runs")))
    assert "2 workers alive, 1 silent" in said
    assert "lost:1 : silent for 3m 2" in said
    assert said.count("silent") == 2
    assert "served by 2 workers" in text(viewer.get(url("definition", "web-order")))


def test_a_run_that_no_live_worker_serves_says_so(viewer: Client) -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "u-1"}, queue="nightly").run_id
    said = "Nothing moves it on: no live worker serves web-order v1"
    assert f"{said}." in text(viewer.get(url("run", run_id)))
    row = Worker.objects.create(
        hostname="kitchen",
        pid=1,
        concurrency=1,
        threads=1,
        queues=["daily"],
        serves=[{"name": "web-order", "version": 1}],
    )
    assert f'{said} in the queue "nightly".' in text(viewer.get(url("run", run_id)))
    Worker.objects.filter(pk=row.pk).update(queues=[])
    assert "Nothing moves it on" not in text(viewer.get(url("run", run_id)))


def test_of_a_run_that_is_over_nobody_asks_who_serves_it(viewer: Client) -> None:
    assert not Worker.objects.exists()
    assert "Nothing moves it on" not in text(viewer.get(url("run", completed())))
