"""The pages of Django's admin: what they show, find, refuse and cost, and what their actions do."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import include, path, reverse

from tests.support import rows, web
from workflow import bulk, ids, states, workflows
from workflow.admin import paging, shown
from workflow.admin.runs import LATEST, MOST_NODES
from workflow.models import Event, Job, Node, Run, RunEvent, Step, Worker
from workflow.redact import MASK
from workflow.registry import registry
from workflow.testing import drain

pytestmark = pytest.mark.django_db
HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "admin.md"
MODELS = ["run", "node", "job", "event", "worker"]
NOBODY = uuid.UUID("01997a5e-6c00-7d41-9b1e-4a5c2f300000")
HOSTILE = "</script><img src=x onerror=alert(1)>\u202egnp.exe\x1b[31m\x85'\""


@pytest.fixture(autouse=True)
def _registered() -> Any:
    web.FAULTY.clear()
    with registry.isolated():
        workflows.register(web.ORDER)
        workflows.register(web.FREE)
        yield


@pytest.fixture
def client() -> Client:
    """Somebody who may look at everything and steer runs."""
    return web.client_of(web.person("olga", *(f"view_{model}" for model in MODELS), "manage_run"))


@pytest.fixture
def viewer() -> Client:
    return web.client_of(web.person("vera", *(f"view_{model}" for model in MODELS)))


def lists(model: str, **query: str) -> str:
    return reverse(f"admin:workflow_{model}_changelist", query=query or None)


def page_of(model: str, pk: object) -> str:
    return reverse(f"admin:workflow_{model}_change", args=[pk])


def html(response: Any) -> str:
    assert response.status_code == 200, response
    body: str = response.content.decode()
    return body


def listed(response: Any) -> list[Any]:
    html(response)
    return [row.pk for row in response.context["cl"].result_list]


def act(client: Client, action: str, *run_ids: object, **options: str) -> Any:
    chosen = {"action": action, "_selected_action": [str(run_id) for run_id in run_ids], **options}
    return client.post(lists("run"), chosen, follow=True)


def told(response: Any) -> list[str]:
    html(response)
    return [str(message) for message in response.context["messages"]]


def worker(**fields: Any) -> Worker:
    defaults = {"hostname": "h", "pid": 1, "concurrency": 100, "threads": 16}
    return Worker.objects.create(**{**defaults, **fields})


def one_of_each() -> dict[str, Any]:
    """A row of every model, by name."""
    run_id = web.waiting()
    workflows.publish("order.sent", {"a": 1}, correlation="c", event_id="e-1")
    return {
        "run": run_id,
        "node": Node.objects.get(run_id=run_id, path="web-order.pay.charge").pk,
        "job": Job.objects.get(run_id__isnull=True).pk,
        "event": Event.objects.get().pk,
        "worker": worker().pk,
    }


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


# --- lists --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "lookup"),
    [
        ("run", "input__password__startswith"),
        ("run", "input__order_id"),
        ("run", "status"),
        ("run", "workflow__startswith"),
        ("run", "history__data__icontains"),
        ("run", "nodes__output__contains"),
        ("run", "_connector"),
        ("run", "_negated"),
        ("node", "run__input__card__startswith"),
        ("node", "output__startswith"),
        ("node", "run__id__exact"),
        ("job", "run__state__isnull"),
        ("job", "last_error__icontains"),
        ("event", "payload__a"),
        ("event", "payload__contains"),
        ("worker", "hostname__startswith"),
        ("worker", "nonsense"),
        ("run", "input__a'b"),
    ],
)
def test_a_lookup_that_is_no_filter_is_400(client, model, lookup):
    one_of_each()
    with CaptureQueriesContext(connection) as asked:
        assert client.get(lists(model), {lookup: "S"}).status_code == 400
    assert not any(f'FROM "workflow_{model}"' in query["sql"] for query in asked.captured_queries)


@pytest.mark.parametrize(
    ("model", "parameter", "value"),
    [
        ("run", "status__exact", "done"),
        ("run", "workflow__exact", "a\0b"),
        ("run", "created", "year"),
        ("node", "status__exact", "completed"),  # without a run
        ("node", "kind__exact", "action"),
        ("node", "parked", "no"),
        ("job", "state", "x"),
        ("job", "queue__exact", "\0"),
        ("event", "created", ""),
        ("worker", "alive", "maybe"),
        ("run", "p", "99"),
        ("run", "p", "x' OR 1=1"),
    ],
)
def test_a_value_that_a_filter_does_not_offer_shows_nothing_wrong(client, model, parameter, value):
    one_of_each()
    response = client.get(lists(model), {parameter: value})
    if parameter == "p":  # all is on one page
        assert len(listed(response)) == 1
    else:
        assert response.status_code == 302
        assert response["Location"].endswith("?e=1")


def test_no_other_order_than_that_of_an_index(client):
    first, second = web.completed(), web.waiting()
    for order in ("1", "-1", "3", "5.-2", "99", "x"):
        with CaptureQueriesContext(connection) as asked:
            assert listed(client.get(lists("run", o=order))) == [second, first]
        orders = [q["sql"] for q in asked.captured_queries if "ORDER BY" in q["sql"]]
        assert any('ORDER BY "workflow_run"."id" DESC' in sql for sql in orders)
    assert "sortable" not in html(client.get(lists("run"))).split("<tbody>")[0].split("result_list")[1]


def test_runs_are_found_by_whole_id_correlation_id_or_idempotency_key(client):
    run_id = workflows.dispatch(web.FREE, correlation_id="c-1", idempotency_key="k-1").run_id
    other = workflows.dispatch(web.FREE, correlation_id="c-2", idempotency_key=str(run_id)).run_id
    assert listed(client.get(lists("run", q="c-1"))) == [run_id]
    assert listed(client.get(lists("run", q=" k-1 "))) == [run_id]
    assert listed(client.get(lists("run", q=str(run_id)))) == [other, run_id]
    assert listed(client.get(lists("run", q=run_id.hex))) == [run_id]
    for nothing in ("c-", "C-1", "c-1 k-1", "'", "%", HOSTILE, "x" * 5000):
        assert listed(client.get(lists("run", q=nothing))) == []
    assert client.get(lists("run", q="a\0b")).status_code == 200


def test_runs_are_filtered_by_workflow_status_and_age(client):
    old, parked = web.completed(), web.waiting()
    # Ids tell when a run was made: this one is moved to the year 2020.
    moved = uuid.UUID(int=(1_577_836_800_000 << 80) | (old.int & ((1 << 80) - 1)))
    Run.objects.filter(pk=old).update(id=moved)
    assert listed(client.get(lists("run"))) == [parked, moved]
    assert listed(client.get(lists("run", status__exact="completed"))) == [moved]
    assert listed(client.get(lists("run", workflow__exact="web-order"))) == [parked]
    assert listed(client.get(lists("run", workflow__exact="web-order", status__exact="failed"))) == []
    for age in ("hour", "day", "week", "month"):
        assert listed(client.get(lists("run", created=age))) == [parked]
    body = html(client.get(lists("run")))
    for choice in ("web-free", "web-order", *states.RUN_STATUSES):
        assert f">{choice}</a>" in re.sub(r">\s+|\s+<", lambda m: m[0].strip(), body)


def test_nodes_are_those_of_a_run_in_tree_order_or_those_that_wait(client):
    run_id, parked = web.completed(), web.waiting()
    of_run = list(Node.objects.filter(run_id=run_id).order_by("id").values_list("pk", flat=True))
    wait = Node.objects.get(run_id=parked, path="web-order.approve").pk
    assert listed(client.get(lists("node", q=str(run_id)))) == of_run
    assert listed(client.get(lists("node", q=str(of_run[1])))) == [of_run[1]]
    assert listed(client.get(lists("node", q="order.approved"))) == [wait]
    assert listed(client.get(lists("node", parked="yes"))) == [wait]
    assert listed(client.get(lists("node", q=str(parked), status__exact="waiting"))) == [
        node.pk for node in Node.objects.filter(run_id=parked, status="waiting").order_by("id")
    ]
    assert len(listed(client.get(lists("node", q=str(parked), kind__exact="action")))) == 2
    everything = listed(client.get(lists("node")))
    assert everything == sorted(everything, reverse=True)


def test_jobs_are_found_by_id_run_or_node_and_filtered_by_state_and_queue(client):
    due = workflows.dispatch(web.FREE, queue="slow").run_id
    later = workflows.dispatch(web.FREE, delay=3600).run_id
    leased = workflows.dispatch(web.FREE).run_id
    rows.lease(leased)
    job = {run_id: Job.objects.get(run_id=run_id) for run_id in (due, later, leased)}
    assert listed(client.get(lists("job", q=str(job[due].pk)))) == [job[due].pk]
    assert listed(client.get(lists("job", q=str(due)))) == [job[due].pk]
    assert listed(client.get(lists("job", q=str(job[due].node_id)))) == [job[due].pk]
    assert listed(client.get(lists("job", q="text"))) == []
    assert listed(client.get(lists("job", state="due"))) == [job[due].pk]
    assert listed(client.get(lists("job", state="later"))) == [job[later].pk]
    assert listed(client.get(lists("job", state="leased"))) == [job[leased].pk]
    assert listed(client.get(lists("job", queue__exact="slow"))) == [job[due].pk]
    assert ">slow</a>" in html(client.get(lists("job")))


def test_events_are_found_by_type_correlation_or_their_id(client):
    workflows.publish("a.happened", correlation="c-1", event_id="e-1")
    workflows.publish("b.happened")
    event = Event.objects.get(type="a.happened")
    for term in ("a.happened", "c-1", "e-1", str(event.pk)):
        assert listed(client.get(lists("event", q=term))) == [event.pk]
    assert listed(client.get(lists("event", q="happened"))) == []


def test_a_worker_that_was_not_seen_for_long_or_has_stopped_is_not_alive(client):
    alive = worker(hostname="up", units=3, queues=["a", "b"])
    stopped = worker(hostname="down", stopped_at=Now())
    lost = worker(hostname="lost")
    Worker.objects.filter(pk=lost.pk).update(seen_at=F("seen_at") - timedelta(seconds=301))
    assert listed(client.get(lists("worker", alive="yes"))) == [alive.pk]
    assert set(listed(client.get(lists("worker", alive="no")))) == {stopped.pk, lost.pk}
    assert listed(client.get(lists("worker", q="up"))) == [alive.pk]
    body = html(client.get(lists("worker")))
    assert "3 of 100" in body
    assert "a, b" in body


def test_a_list_counts_only_so_far_and_says_so(client, monkeypatch):
    monkeypatch.setattr(paging, "CAP", 3)
    for _ in range(5):
        workflows.dispatch(web.FREE)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE workflow_run")
    with CaptureQueriesContext(connection) as asked:
        response = client.get(lists("run"))
    body = " ".join(html(response).split())
    assert "These are the first 3 matches; the whole table has about 5 rows." in body
    counts = [query["sql"] for query in asked.captured_queries if "COUNT(" in query["sql"].upper()]
    assert len(counts) == 1
    assert "LIMIT 4" in counts[0]
    assert "3 results" not in body
    assert "the first" not in html(client.get(lists("run", status__exact="failed")))


@pytest.mark.parametrize("model", MODELS)
def test_no_list_reads_a_payload(client, model):
    one_of_each()
    with CaptureQueriesContext(connection) as asked:
        html(client.get(lists(model)))
    payloads = ("input", "state", "context", "output", "payload", "wait_outcome", "last_error", "serves")
    for query in asked.captured_queries:
        for column in payloads:
            assert f'workflow_{model}"."{column}"' not in query["sql"]
        assert '"workflow_run"."input"' not in query["sql"]


@pytest.mark.parametrize("model", MODELS)
def test_a_list_asks_as_many_questions_for_fifty_rows_as_for_one(client, model):
    def questions() -> int:
        with CaptureQueriesContext(connection) as asked:
            response = client.get(lists(model))
            html(response)
        counted.append(len(response.context["cl"].result_list))
        return len(asked)

    counted: list[int] = []
    one_of_each()
    before = questions()
    for number in range(30):
        workflows.dispatch(web.ORDER, {"order_id": "o"}, queue=f"q-{number % 3}")
        workflows.publish("x", {"n": number})
        worker()
    assert questions() == before
    assert before <= 8  # session, user, two kinds of permission, a count, the rows, a filter's choices
    assert counted[1] > counted[0]


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


def test_the_pages_of_one_row_ask_a_constant_number_of_questions(client):
    there = one_of_each()
    for model, pk in there.items():
        with CaptureQueriesContext(connection) as asked:
            html(client.get(page_of(model, pk)))
        assert len(asked) <= 9, model


# --- hostile and secret texts -------------------------------------------------------------------


def hostile_rows() -> dict[str, list[Any]]:
    """Every text column that a person can see holds markup, a direction override and control characters."""
    run_id = web.failed(
        HOSTILE, correlation_id=HOSTILE[:200], idempotency_key=HOSTILE, context={HOSTILE: HOSTILE}
    )
    Run.objects.filter(pk=run_id).update(workflow=HOSTILE, queue=HOSTILE)
    Node.objects.filter(run_id=run_id).update(path=HOSTILE, output={HOSTILE: [HOSTILE]}, wait_event=HOSTILE)
    node = Node.objects.filter(run_id=run_id).latest("id")
    rows.note(run_id, HOSTILE[:40], HOSTILE, {HOSTILE: HOSTILE, "message": "m" * 1_000_000})
    Step.objects.create(
        run_id=run_id,
        node_id=node.pk,
        key=HOSTILE,
        kind="run",
        status="failed",
        value=HOSTILE,
        error={"message": HOSTILE},
    )
    other = workflows.dispatch(web.FREE, queue=HOSTILE).run_id
    Job.objects.filter(run_id=other).update(last_error=HOSTILE)
    workflows.publish(HOSTILE, {HOSTILE: HOSTILE}, correlation=HOSTILE, event_id=HOSTILE)
    lost = worker(hostname=HOSTILE, queues=[HOSTILE], serves=[{"name": HOSTILE}])
    return {
        "run": [run_id, other],
        "node": [node.pk],
        "job": list(Job.objects.values_list("pk", flat=True)),
        "event": list(Event.objects.values_list("pk", flat=True)),
        "worker": [lost.pk],
    }


@pytest.mark.parametrize("model", MODELS)
def test_hostile_texts_are_shown_as_the_texts_they_are(client, model):
    there = hostile_rows()
    addresses = [lists(model), lists(model, q=HOSTILE), *(page_of(model, pk) for pk in there[model])]
    for address in addresses:
        body = html(client.get(address))
        assert "<img src=x" not in body
        assert body.count("<script") == body.count("</script>")
        # Addresses, what was typed into the search box, and the names of checkboxes are not laid out.
        content = re.sub(r' (?:value|href|aria-label)="[^"]*"', "", body)
        for hidden in "\u202e\x1b\x85":
            assert hidden not in content
        assert len(body) < 500_000


@pytest.mark.parametrize("action", ["retry", "cancel", "resume"])
def test_hostile_texts_in_what_an_action_tells(client, action):
    there = hostile_rows()
    body = html(act(client, action, *there["run"]))
    assert "<img src=x" not in body


@override_settings(WORKFLOW={"REDACT": ["card"]})
def test_secrets_are_masked_on_every_page(client):
    secret = "4111-1111-1111"
    run_id = web.failed("o", card=secret, context={"card": secret})
    node = Node.objects.get(run_id=run_id, path="web-order.pay.charge")
    Step.objects.create(
        run_id=run_id, node_id=node.pk, key="card", kind="run", status="completed", value=secret
    )
    Step.objects.create(
        run_id=run_id,
        node_id=node.pk,
        key="k",
        kind="run",
        status="failed",
        error={"message": f"no {secret}"},
    )
    again = workflows.dispatch(web.ORDER, {"order_id": "p", "card": secret}).run_id
    Job.objects.filter(run_id=again).update(last_error=f"ACTION_FAILED: {secret} refused")
    workflows.publish("paid", {"card": secret})
    pages = [lists(model) for model in MODELS]
    pages += [page_of("run", run_id), page_of("run", again), page_of("node", node.pk)]
    pages += [page_of("job", pk) for pk in Job.objects.values_list("pk", flat=True)]
    pages += [page_of("event", Event.objects.get().pk)]
    for address in pages:
        assert secret not in html(client.get(address)), address
    assert MASK in html(client.get(page_of("run", run_id)))
    assert "ACTION_FAILED" in html(client.get(page_of("run", run_id)))
    assert Run.objects.get(pk=run_id).input["card"] == secret


# --- actions ------------------------------------------------------------------------------------


def test_the_actions_are_offered_to_who_may_and_to_nobody_else(client, viewer):
    run_id = web.failed()
    for action in ("retry", "cancel", "resume"):
        assert f'value="{action}"' in html(client.get(lists("run")))
        assert f'value="{action}"' not in html(viewer.get(lists("run")))
        act(viewer, action, run_id)
    assert workflows.status(run_id).run.status == "failed"
    assert RunEvent.objects.filter(run_id=run_id, name="resumed").count() == 0


def test_retry_says_how_many_go_on_and_why_others_do_not(client):
    good = [web.failed("a"), web.failed("b")]
    parked, over = web.waiting("c"), [web.completed(), web.completed()]
    web.FAULTY.clear()
    messages = told(act(client, "retry", *good, parked, *over))
    assert messages[0] == "2 runs retried."
    assert messages[1].startswith("2 runs refused: the run is completed, so it can't be retried (")
    assert all(str(run_id) in messages[1] for run_id in over)
    assert messages[2] == f"1 run refused: the run is waiting, so it can't be retried ({parked})."
    for run_id in good:
        assert RunEvent.objects.filter(run_id=run_id, name="resumed").get().data["by"] == "olga"
        drain(run_id)
        assert workflows.status(run_id).run.status == "waiting"


def test_cancel_and_resume_record_who_asked(client):
    one, two = web.waiting("a"), web.waiting("b")
    assert told(act(client, "cancel", one)) == ["1 run cancelled."]
    assert told(act(client, "resume", two)) == ["1 run resumed."]
    assert RunEvent.objects.get(run_id=one, name="cancelled").data["by"] == "olga"
    assert RunEvent.objects.get(run_id=two, name="resumed").data["by"] == "olga"
    drain(two)
    assert [workflows.status(run_id).run.status for run_id in (one, two)] == ["cancelled", "completed"]


def test_an_action_on_all_that_a_filter_matches_stops_at_a_bound_and_says_so(client, monkeypatch):
    monkeypatch.setattr(bulk, "MOST", 3)
    runs = [workflows.dispatch(web.FREE).run_id for _ in range(5)]
    address = lists("run", status__exact="pending")
    body = {"action": "cancel", "select_across": "1", "_selected_action": [str(runs[0])]}
    first = told(client.post(address, body, follow=True))
    assert first[0] == "3 runs cancelled."
    assert first[1].startswith("That was the first 3; more runs match.")
    assert told(client.post(address, body, follow=True)) == ["2 runs cancelled."]
    assert {workflows.status(run_id).run.status for run_id in runs} == {"cancelled"}


def test_an_action_needs_csrf_and_ids_and_a_post(client):
    run_id = web.waiting()
    strict = web.client_of(User.objects.get(username="olga"), enforce_csrf_checks=True)
    chosen = {"action": "cancel", "_selected_action": [str(run_id)]}
    assert strict.post(lists("run"), chosen).status_code == 403
    assert client.post(lists("run"), {**chosen, "_selected_action": ["x' OR 1=1"]}).status_code == 400
    assert client.get(lists("run"), chosen).status_code == 400
    assert told(act(client, "cancel", NOBODY)) == []
    assert workflows.status(run_id).run.status == "waiting"
