"""Resuming: a person answers what a run is parked on."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from tests.support import rows
from tests.support.definitions import ORDER, PLAIN, WAITS
from workflow import PayloadInvalid, RunConflict, workflows
from workflow.models import Job, Node, Run

pytestmark = pytest.mark.django_db


def parked() -> Any:
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}, queue="q", priority=3).run_id
    rows.start(run_id)
    rows.complete(run_id, "order.reserve")
    rows.complete(run_id, "order.pay")
    rows.park_run(run_id, "order.paid", "payment.succeeded", "o")
    return run_id


def test_a_parked_run_goes_on_with_the_payload() -> None:
    run_id = parked()
    workflows.resume(run_id, {"paid": "in cash"}, by="ann")

    node = rows.node(run_id, "order.paid")
    assert node.status == "waiting"  # its unit completes it
    assert node.wait_outcome == {"payload": {"paid": "in cash"}}
    assert (node.wait_event, node.wait_correlation, node.wait_until) == (None, None, None)
    job = Job.objects.get()
    assert (job.kind, job.node_id, job.queue, job.priority) == ("unit", rows.node(run_id, "order").id, "q", 3)
    assert rows.due(job)
    assert Run.objects.get().status == "running"
    event = rows.last_event(run_id)
    assert (event.name, event.node, event.data) == ("resumed", "order.paid", {"by": "ann"})
    rows.check_whole(run_id)


@pytest.mark.parametrize("payload", [None, 0, "", [], {}, {"a": [None, "ü'\"\\%s"]}, "null"])
def test_any_payload_is_kept_as_it_is(payload: Any) -> None:
    run_id = parked()
    workflows.resume(run_id, payload)
    assert rows.node(run_id, "order.paid").wait_outcome == {"payload": payload}


def test_without_a_payload_it_is_null() -> None:
    run_id = parked()
    workflows.resume(run_id)
    assert rows.node(run_id, "order.paid").wait_outcome == {"payload": None}


def test_all_waits_of_a_run_are_answered_each_with_an_entry_and_each_unit_woken() -> None:
    run_id = workflows.dispatch(WAITS).run_id
    rows.start(run_id)
    rows.park(run_id, "waits.one", "one.happened")
    rows.park_run(run_id, "waits.two", "two.happened", "c")
    workflows.resume(run_id, 5)

    outcomes = Node.objects.filter(kind="stage", status="waiting").order_by("id").values_list("wait_outcome")
    assert list(outcomes) == [({"payload": 5},), ({"payload": 5},)]
    assert rows.history(run_id)[-2:] == [
        (run_id_seq - 1 + offset, "resumed", path)
        for run_id_seq in (Run.objects.get().seq,)
        for offset, path in enumerate(["waits.one", "waits.two"])
    ]
    expected = {rows.node(run_id, "waits").id, rows.node(run_id, "waits.two").id}
    assert {job.node_id for job in Job.objects.all() if rows.due(job)} == expected
    rows.check_whole(run_id)


def test_a_wait_beside_work_in_progress_is_answered_too() -> None:
    run_id = workflows.dispatch(WAITS).run_id
    rows.start(run_id)
    rows.park(run_id, "waits.one", "one.happened")
    token = Job.objects.get().lease_token
    workflows.resume(run_id)
    job = Job.objects.get()
    assert job.lease_token == token  # its worker hears the signal
    assert Run.objects.get().status == "running"
    assert rows.names(run_id)[-1] == "resumed"
    rows.check_whole(run_id)


def test_a_unit_that_was_due_later_is_due_now() -> None:
    run_id = workflows.dispatch(WAITS, delay=3600).run_id
    Run.objects.update(status="running", started_at=Now())
    rows.note(run_id, "started")
    rows.park(run_id, "waits.one", "one.happened")
    assert not rows.due(Job.objects.get())
    workflows.resume(run_id)
    assert rows.due(Job.objects.get())


def test_a_second_resume_is_refused() -> None:
    run_id = parked()
    workflows.resume(run_id, 1)
    with transaction.atomic():
        with pytest.raises(RunConflict):
            workflows.resume(run_id, 2)
        assert rows.node(run_id, "order.paid").wait_outcome == {"payload": 1}


def test_a_run_with_nothing_parked_is_refused() -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    with pytest.raises(RunConflict, match="pending"):
        workflows.resume(run_id)
    rows.start(run_id)
    with pytest.raises(RunConflict, match="not parked"):
        workflows.resume(run_id)
    rows.end(run_id, "completed")
    with pytest.raises(RunConflict, match="completed"):
        workflows.resume(run_id)
    assert rows.names(run_id) == ["started"]


@pytest.mark.parametrize("payload", [float("nan"), {"a": "\0"}, b"x", object()])
def test_a_payload_that_json_cannot_hold_is_refused_before_anything_is_read(payload: Any) -> None:
    run_id = parked()
    with CaptureQueriesContext(connection) as queries, pytest.raises(PayloadInvalid, match=r"^payload"):
        workflows.resume(run_id, payload)
    assert len(queries) == 0


def test_a_resume_can_be_rolled_back() -> None:
    run_id = parked()
    before = rows.statuses(run_id), Node.objects.values().get(path="order.paid")
    with transaction.atomic():
        workflows.resume(run_id)
        transaction.set_rollback(True)
    assert (rows.statuses(run_id), Node.objects.values().get(path="order.paid")) == before
    assert Job.objects.count() == 0
