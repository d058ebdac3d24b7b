"""Who may see the dashboard's pages, how they are sealed, and what texts of strangers do to them: nothing."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest
from django.test import Client, override_settings

from tests.edges.dashboard.conftest import HOSTILE, all_pages, forms, text, url
from tests.support.web import client_of, completed, failed, person, waiting
from workflow.models import Node, Run, RunEvent, Worker

pytestmark = [pytest.mark.django_db]


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
