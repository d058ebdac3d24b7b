"""The lists of Django's admin: what they find, filter, refuse and cost."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from tests.edges.admin.conftest import (
    HOSTILE,
    MODELS,
    html,
    listed,
    lists,
    one_of_each,
    worker,
)
from tests.support import rows, web
from workflow import states, workflows
from workflow.admin import paging
from workflow.models import Event, Job, Node, Run, Worker

pytestmark = pytest.mark.django_db


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


@pytest.mark.parametrize(
    ("definition", "path"), [(web.ORDER, "web-order.approve"), (web.ASKING, "web-asking.ask.ask")]
)
def test_a_job_that_checks_a_wait_is_found_by_its_run_and_its_node(client, definition, path):
    web.checking(definition)  # of another run
    job = web.checking(definition)
    node = Node.objects.filter(path=path).latest("pk")
    checks = Job.objects.filter(kind=states.CHECK)
    for term in (job.pk, node.run_id, node.pk):
        found = listed(client.get(lists("job", q=str(term))))
        assert list(checks.filter(pk__in=found)) == [job], term
    above = Node.objects.get(run_id=node.run_id, path=definition.name)
    assert not checks.filter(pk__in=listed(client.get(lists("job", q=str(above.pk))))).exists()


def test_events_are_found_by_type_correlation_or_their_id(client):
    workflows.publish("a.happened", correlation="c-1", event_id="e-1")
    workflows.publish("b.happened")
    event = Event.objects.get(type="a.happened")
    for term in ("a.happened", "c-1", "e-1", str(event.pk)):
        assert listed(client.get(lists("event", q=term))) == [event.pk]
    assert listed(client.get(lists("event", q="happened"))) == []


def test_a_worker_that_was_not_seen_for_long_or_has_stopped_is_not_alive(client):
    alive = worker(hostname="up", units=3, queues=["a", "b"])  # three at its last heartbeat
    for _ in range(2):
        rows.lease(workflows.dispatch(web.FREE).run_id)
    Job.objects.update(worker_id=alive.pk)
    stopped = worker(hostname="down", stopped_at=Now())
    lost = worker(hostname="lost")
    Worker.objects.filter(pk=lost.pk).update(seen_at=F("seen_at") - timedelta(seconds=301))
    assert listed(client.get(lists("worker", alive="yes"))) == [alive.pk]
    assert set(listed(client.get(lists("worker", alive="no")))) == {stopped.pk, lost.pk}
    assert listed(client.get(lists("worker", q="up"))) == [alive.pk]
    body = html(client.get(lists("worker")))
    assert "2 of 100" in body
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
