"""What a run's status says."""

from __future__ import annotations

import json
import threading
import uuid
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from tests.support import rows
from tests.support.definitions import ORDER, PHASES, PLAIN
from workflow import RunNotFound, RunStatus, workflows
from workflow.models import Node, Run
from workflow.testing import drain

pytestmark = pytest.mark.django_db

MALFORMED = ["", "x", "1234", "0190-0000", 7, None, b"0", "\0", "\udcff", object(), {"id": 1}, "x" * 10_000]


def test_a_fresh_run_shows_its_whole_tree_in_order() -> None:
    handle = workflows.dispatch(ORDER, {"order_id": "o"}, correlation_id="c")
    found = handle.status()

    assert isinstance(found, RunStatus)
    assert (found.run.id, found.run.workflow, found.run.version) == (handle.run_id, "order", 1)
    assert (found.run.status, found.run.error, found.run.correlation_id) == ("pending", None, "c")
    assert found.run.input == found.run.state == {"order_id": "o", "total": 0}
    assert found.run.created_at == Run.objects.get().created_at
    assert (found.run.started_at, found.run.finished_at) == (None, None)
    assert [(n.path, n.kind, n.parent) for n in found.nodes] == [
        (t.path, t.kind, ORDER.tree.nodes[t.parent].path or None) for t in ORDER.tree.nodes[1:]
    ]
    assert {(n.status, n.attempt, n.progress, n.output, n.error) for n in found.nodes} == {
        ("pending", 0, None, None, None)
    }


def test_one_statement_reads_a_run_however_large() -> None:
    run_id = workflows.dispatch(PHASES).run_id
    with CaptureQueriesContext(connection) as queries:
        workflows.status(run_id)
    assert len(queries) == 1


def test_a_run_may_be_named_by_its_text() -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    assert workflows.status(str(run_id)).run.id == run_id
    assert workflows.status(str(run_id).upper()).run.id == run_id


def test_a_run_under_way() -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}).run_id
    rows.start(run_id)
    rows.complete(run_id, "order.reserve.stock", {"stock": 3})
    rows.begin(run_id, "order.reserve.label")
    Node.objects.filter(path="order.reserve.label").update(progress=40.5)

    found = workflows.status(run_id)
    assert found.run.status == "running"
    assert found.run.started_at is not None
    by_path = {n.path: n for n in found.nodes}
    stock, label = by_path["order.reserve.stock"], by_path["order.reserve.label"]
    assert (stock.status, stock.attempt, stock.output) == ("completed", 1, {"stock": 3})
    assert stock.started_at is not None
    assert stock.finished_at is not None
    assert (label.status, label.progress, label.finished_at) == ("running", 40.5, None)
    assert by_path["order.reserve"].output == {"stock": 3}
    assert by_path["order.pay"].output is None


def test_a_stage_shows_what_its_actions_put_out_in_the_order_of_their_completion() -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}).run_id
    rows.start(run_id)
    rows.complete(run_id, "order.reserve.label", {"who": "label", "label": 1})
    rows.complete(run_id, "order.reserve.stock", {"who": "stock"})
    rows.complete(run_id, "order.pay.pay#run", 4200)
    rows.complete(run_id, "order.ship.notify", [1, 2])
    rows.complete(run_id, "order.ship.pack", None)
    rows.begin(run_id, "order.ship.send")

    outputs = {n.path: n.output for n in workflows.status(run_id).nodes}
    assert outputs["order.reserve"] == {"who": "stock", "label": 1}
    assert outputs["order.pay"] == {"pay": 4200}
    assert outputs["order.pay.pay#run"] == 4200
    assert outputs["order.ship"] == {"notify": [1, 2]}
    assert outputs["order"] is None


def test_a_stage_with_an_output_of_its_own_shows_that() -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}).run_id
    rows.start(run_id)
    rows.complete(run_id, "order.reserve.stock", {"stock": 3})
    rows.complete(run_id, "order.reserve", {"checked": True})
    rows.complete(run_id, "order.paid", "by card")
    outputs = {n.path: n.output for n in workflows.status(run_id).nodes}
    assert outputs["order.reserve"] == {"checked": True}
    assert outputs["order.paid"] == "by card"


def test_false_and_empty_outputs_are_outputs() -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}).run_id
    rows.start(run_id)
    rows.complete(run_id, "order.reserve.stock", {})
    rows.complete(run_id, "order.pay.pay#run", 0)
    rows.complete(run_id, "order.paid", False)
    outputs = {n.path: n.output for n in workflows.status(run_id).nodes}
    assert (outputs["order.reserve"], outputs["order.pay"], outputs["order.paid"]) == ({}, {"pay": 0}, False)


def test_a_failed_run_shows_its_error() -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}).run_id
    rows.fail(run_id, "order.pay.pay#run")
    found = workflows.status(run_id)
    assert found.run.status == "failed"
    assert found.run.error == rows.fault("order.pay.pay#run")
    assert {n.path for n in found.nodes if n.error} == {"order", "order.pay", "order.pay.pay#run"}


def test_a_status_is_json() -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "ünï 🙂"}).run_id
    document = json.loads(workflows.status(run_id).model_dump_json())
    assert set(document) == {"run", "nodes"}
    assert set(document["run"]) == {
        *("id", "workflow", "version", "status", "state", "input", "error"),
        *("correlation_id", "created_at", "started_at", "finished_at"),
    }
    assert set(document["nodes"][0]) == {
        *("path", "kind", "parent", "status", "attempt", "progress", "output", "error"),
        *("started_at", "finished_at"),
    }
    assert document["run"]["id"] == str(run_id)
    assert RunStatus.model_validate(document) == workflows.status(run_id)


CALLS = (workflows.status, workflows.cancel, workflows.retry, workflows.resume, workflows.wait)
"""What is asked of one run."""


@pytest.mark.parametrize("run_id", MALFORMED)
def test_what_is_no_run_id_is_no_run(run_id: Any) -> None:
    with CaptureQueriesContext(connection) as queries:
        for call in CALLS:
            with pytest.raises(RunNotFound) as caught:
                call(run_id)
            assert str(caught.value).isprintable()
            assert len(str(caught.value)) < 200
    assert len(queries) == 0


def test_a_handle_in_place_of_its_run_id_is_told_as_such() -> None:
    handle = workflows.dispatch(PLAIN)
    for call in (*CALLS, drain):
        with pytest.raises(
            TypeError, match=r"^run_id must be a UUID or its text, not a RunHandle; take handle\.run_id$"
        ):
            call(handle)  # type: ignore[arg-type]
    assert handle.status().run.status == "pending"


def test_an_unknown_run_is_not_found_and_leaves_the_transaction_usable() -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    node_id = Node.objects.filter(run_id=run_id)[0].id
    for unknown in (uuid.uuid4(), node_id):
        with transaction.atomic():
            for call in CALLS:
                with pytest.raises(RunNotFound, match=str(unknown)):
                    call(unknown)
            assert workflows.status(run_id).run.status == "pending"


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "UTC"])
def test_without_use_tz_times_are_naive_as_everywhere_in_django(settings: Any, zone: str) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, zone
    run_id = workflows.dispatch(PLAIN, delay=5).run_id
    rows.start(run_id)
    found = workflows.status(run_id).run
    assert found.created_at == Run.objects.get(pk=run_id).created_at
    assert found.created_at.tzinfo is None
    assert found.model_dump_json()
    workflows.cancel(run_id)
    assert workflows.list().items[0].finished_at is not None


# --- waiting ------------------------------------------------------------------------------------


def test_waiting_for_a_finished_run_is_its_status() -> None:
    handle = workflows.dispatch(PLAIN)
    rows.end(handle.run_id, "completed")
    assert handle.wait() == handle.status()
    assert handle.wait(timeout=0).run.status == "completed"


@pytest.mark.parametrize("timeout", [0, 0.02])
def test_waiting_ends_with_a_timeout(timeout: float) -> None:
    handle = workflows.dispatch(PLAIN)
    with pytest.raises(TimeoutError, match="still pending"):
        handle.wait(timeout=timeout)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError), (True, TypeError)],
)
def test_a_timeout_that_is_none_is_refused(timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="timeout"):
        workflows.dispatch(PLAIN).wait(timeout=timeout)


def test_waiting_without_end_inside_a_transaction_is_refused() -> None:
    with pytest.raises(transaction.TransactionManagementError, match="timeout"):
        workflows.dispatch(PLAIN).wait()


@pytest.mark.django_db(transaction=True)
def test_waiting_sees_what_another_connection_does() -> None:
    handle = workflows.dispatch(PLAIN)

    def finish() -> None:
        try:
            workflows.cancel(handle.run_id)
        finally:
            connections.close_all()

    other = threading.Thread(target=finish)
    other.start()
    assert handle.wait(timeout=30).run.status == "cancelled"
    other.join()
