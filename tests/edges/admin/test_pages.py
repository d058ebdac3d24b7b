"""The pages of one row in Django's admin: nothing is changed there, and what they show."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import include, path, reverse

from tests.edges.admin.conftest import (
    MODELS,
    NOBODY,
    html,
    lists,
    one_of_each,
    page_of,
    told,
)
from tests.support import rows, web
from workflow import bulk, ids, workflows
from workflow.admin import paging, shown
from workflow.admin.runs import LATEST, MOST_NODES
from workflow.models import Event, Job, Node, RunEvent, Step, Worker

pytestmark = pytest.mark.django_db
HOW_TO = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "admin.md"


# --- read-only ----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_rows_are_looked_at_and_never_added_changed_or_deleted(model):
    root = web.client_of(User.objects.create_superuser("root"))
    there = one_of_each()
    before = rows.counts()
    assert "addlink" not in html(root.get(lists(model))).split('id="content-main"')[1]
    response = root.get(page_of(model, there[model]))
    body = html(response).split('id="content-main"')[1]
    assert "_save" not in body
    assert "deletelink" not in body
    assert re.findall(r'<input[^>]* name="(\w+)"', body) == ["csrfmiddlewaretoken"]
    assert root.get(reverse(f"admin:workflow_{model}_add")).status_code == 403
    assert root.post(reverse(f"admin:workflow_{model}_add"), {}).status_code == 403
    assert root.post(page_of(model, there[model]), {"status": "completed"}).status_code == 403
    address = reverse(f"admin:workflow_{model}_delete", args=[there[model]])
    assert root.post(address, {"post": "yes"}).status_code == 403
    deletion = {"action": "delete_selected", "_selected_action": [str(there[model])], "post": "yes"}
    root.post(lists(model), deletion)
    assert rows.counts() == before
    assert Worker.objects.count() == 1


def test_history_and_ledger_have_no_pages_of_their_own():
    for model in (RunEvent, Step):
        assert not admin.site.is_registered(model)


@pytest.mark.parametrize("model", MODELS)
def test_a_page_needs_its_view_permission(model):
    there = one_of_each()
    nobody = web.client_of(web.person("nobody"))
    assert nobody.get(lists(model)).status_code == 403
    assert nobody.get(page_of(model, there[model])).status_code == 403
    assert Client().get(lists(model)).status_code == 302
    allowed = web.client_of(web.person("allowed", f"view_{model}"))
    assert allowed.get(lists(model)).status_code == 200
    assert allowed.get(page_of(model, there[model])).status_code == 200
    others = [other for other in MODELS if other != model]
    assert {allowed.get(lists(other)).status_code for other in others} == {403}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("pk", [str(NOBODY), "no-uuid", "0", "_00", "a" * 500])
def test_an_unknown_row_is_said_to_be_unknown(client, model, pk):
    response = client.get(page_of(model, pk), follow=True)
    assert response.redirect_chain
    assert any("exist" in message for message in told(response))


# --- a run's page -------------------------------------------------------------------------------


def test_a_run_is_shown_with_its_data_tree_and_history(client):
    run_id = web.failed("o-1", correlation_id="c-1", idempotency_key="k-1", context={"tenant": 7})
    response = client.get(page_of("run", run_id))
    body = unescape(html(response))
    for text in ("web-order", "c-1", "k-1", '"order_id": "o-1"', '"tenant": 7', "ACTION_FAILED"):
        assert text in body
    assert "RuntimeError: o-1 refused" in body
    assert "Traceback (most recent call last)" in body
    tree = [(row["path"], row["status"], row["depth"]) for row in response.context["nodes"]]
    status = workflows.status(run_id)
    assert tree == [(node.path, node.status, node.path.count(".")) for node in status.nodes]
    history = response.context["history"]
    assert [item["seq"] for item in history] == list(range(len(history), 0, -1))
    assert history[0]["name"] == "failed"
    assert body.count("wf-depth-2") == 2
    for name in ("started", "action.started", "action.failed", "stage.failed", "failed"):
        assert f"<td>{name}</td>" in body


def test_a_section_that_has_nothing_to_show_is_left_out(client):
    def sections(model: str, pk: object) -> list[str]:
        response = client.get(page_of(model, pk))
        html(response)
        return [fieldset.name for fieldset in response.context["adminform"] if fieldset.name]

    failed, parked = web.failed("a"), web.waiting("b")
    assert sections("run", failed) == ["Error", "Data"]
    assert sections("run", parked) == ["Data"]
    charge, wait = "web-order.pay.charge", "web-order.approve"
    assert sections("node", Node.objects.get(run_id=failed, path=charge).pk) == ["Error", "Data"]
    assert sections("node", Node.objects.get(run_id=parked, path=wait).pk) == ["Wait", "Data"]


def test_a_run_that_waits_shows_what_for_and_one_to_be_run_shows_its_job(client):
    parked = html(client.get(page_of("run", web.waiting())))
    assert "waits for order.approved" in parked
    pending = client.get(page_of("run", workflows.dispatch(web.FREE, queue="slow").run_id))
    assert [job["queue"] for job in pending.context["jobs"]] == ["slow"]
    assert "Nothing has happened yet." in html(pending)


def test_a_run_that_has_everything_asks_as_many_questions_as_one_that_has_nothing(client):
    pending = workflows.dispatch(web.FREE).run_id
    with CaptureQueriesContext(connection) as few:
        html(client.get(page_of("run", pending)))
    run_id = web.failed()
    for _ in range(150):
        rows.note(run_id, "log", None, {"message": "m"})
    with CaptureQueriesContext(connection) as many:
        html(client.get(page_of("run", run_id)))
    assert len(many) == len(few)
    assert (
        len(few) <= 9
    )  # session, user, two kinds of permission, run, its queue's pause, nodes, jobs, history


def test_a_long_history_and_a_large_tree_are_shown_in_part(client):
    run_id = web.completed()
    for _ in range(LATEST):
        rows.note(run_id, "log", None, {"message": "m"})
    nodes = [
        Node(id=ids.node_id(run_id, number), run_id=run_id, path=f"p.s.a{number}", unit=1, kind="action")
        for number in range(100, 101 + MOST_NODES)
    ]
    Node.objects.bulk_create(nodes)
    response = client.get(page_of("run", run_id))
    body = " ".join(html(response).split())
    assert len(response.context["history"]) == LATEST
    assert f"These are the latest {LATEST} entries." in body
    assert len(response.context["nodes"]) == MOST_NODES
    assert f'<a href="{lists("node", q=str(run_id))}">All nodes of this run</a>' in body


def test_a_value_of_a_megabyte_is_cut_and_says_so(client):
    run_id = workflows.dispatch(web.FREE, {"text": "x" * 1_000_000}).run_id
    body = html(client.get(page_of("run", run_id)))
    assert len(body) < 3 * shown.MOST
    assert "more characters; the JSON API has all of it]" in body


def test_the_live_page_is_linked_where_there_is_one(client):
    run_id = web.waiting()
    patterns = [path("admin/", admin.site.urls)]
    with override_settings(ROOT_URLCONF=web.addresses(*patterns)):
        assert "Live page" not in html(client.get(page_of("run", run_id)))
    with override_settings(
        ROOT_URLCONF=web.addresses(*patterns, path("live/", include("workflow.dashboard.urls")))
    ):
        address = f"/live/{run_id}/"
        assert f'<a href="{address}" class="viewsitelink">' in html(client.get(page_of("run", run_id)))
        assert client.get(address).status_code == 200


def test_the_how_to_has_the_bounds_that_hold():
    text = HOW_TO.read_text()
    for bound in (paging.CAP, LATEST, MOST_NODES, shown.MOST, bulk.MOST):
        assert f" {bound:,} " in " ".join(text.split()), bound


# --- other pages --------------------------------------------------------------------------------


def test_a_node_is_shown_with_its_output_its_wait_and_its_ledger(client):
    run_id = web.failed("o-1")
    node = Node.objects.get(run_id=run_id, path="web-order.pay.charge")
    Step.objects.create(
        run_id=run_id, node_id=node.pk, key="bill", kind="run", status="completed", value={"n": 1}
    )
    body = unescape(html(client.get(page_of("node", node.pk))))
    for text in ("web-order.pay.charge", "ACTION_FAILED", "RuntimeError: o-1 refused", "bill", '{"n": 1}'):
        assert text in body
    assert page_of("run", run_id) in body
    parked = Node.objects.get(run_id=web.waiting("o-2"), path="web-order.approve")
    waits = html(client.get(page_of("node", parked.pk)))
    assert "order.approved" in waits
    assert "o-2" in waits


def test_a_job_an_event_and_a_worker_are_shown(client):
    there = one_of_each()
    run_id = workflows.dispatch(web.FREE).run_id
    job = Job.objects.get(run_id=run_id)
    Job.objects.filter(pk=job.pk).update(last_error="LEASE_HEARTBEAT_LOST: gone\nsecond line")
    body = html(client.get(page_of("job", job.pk)))
    assert "LEASE_HEARTBEAT_LOST: gone\nsecond line" in body
    assert page_of("run", run_id) in body
    assert page_of("node", job.node_id) in body
    assert page_of("event", there["event"]) in html(client.get(page_of("job", there["job"])))
    event = unescape(html(client.get(page_of("event", there["event"]))))
    assert '"a": 1' in event
    assert "order.sent" in event
    assert "h:1" in html(client.get(page_of("worker", there["worker"])))


@pytest.mark.parametrize(
    ("definition", "path"), [(web.ORDER, "web-order.approve"), (web.ASKING, "web-asking.ask.ask")]
)
def test_a_job_that_checks_a_wait_leads_to_its_node_and_its_run(client, definition, path):
    job = web.checking(definition)
    node = Node.objects.get(path=path)
    body = html(client.get(page_of("job", job.pk)))
    assert re.findall(r'href="([^"]*/(?:run|node|event)/[0-9a-f-]+/change/)"', body) == [
        page_of("run", node.run_id),
        page_of("node", node.pk),
    ]
    assert path in html(client.get(page_of("node", node.pk)))


def test_a_job_that_checks_a_step_which_is_gone_is_shown_without_a_node(client):
    job = web.checking(web.ASKING)
    Step.objects.all().delete()
    body = html(client.get(page_of("job", job.pk)))
    assert page_of("run", job.run_id) in body
    assert not re.search(r"/(node|event)/[0-9a-f-]+/change/", body)


def test_no_name_turns_a_page_round(client):
    workflows.publish("\u202egnp.exe", {"a": 1}, correlation="\u202ec")
    named = {
        "event": Event.objects.get().pk,
        "worker": Worker.objects.create(pid=1, concurrency=1, threads=1, hostname="\u202etsoh").pk,
    }
    for model, pk in named.items():
        page = page_of(model, pk)
        for address in (lists(model), page, page.replace("/change/", "/history/")):
            body = web.shown(client.get(address))
            assert "\u202e" not in body, address
            assert "\\u202e" in body, address


def test_the_pages_of_one_row_ask_a_constant_number_of_questions(client):
    there = one_of_each()
    for model, pk in there.items():
        with CaptureQueriesContext(connection) as asked:
            html(client.get(page_of(model, pk)))
        assert len(asked) <= 9, model


@override_settings(USE_TZ=False, TIME_ZONE="America/New_York")
def test_without_use_tz_all_pages_are_there(client):
    others = [web.completed(), web.failed(), workflows.dispatch(web.FREE, delay=60).run_id]
    there = one_of_each()
    for run_id in others:
        html(client.get(page_of("run", run_id)))
    for model, pk in there.items():
        for address in (lists(model), page_of(model, pk)):
            html(client.get(address))
