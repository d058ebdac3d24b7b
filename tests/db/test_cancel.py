"""Cancelling: at once and whole, or not at all."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from tests.support import rows
from tests.support.definitions import ORDER, PLAIN, WAITS
from workflow import RunConflict, workflows
from workflow.models import Job, Node, Run, RunEvent, Step

pytestmark = pytest.mark.django_db


def test_a_run_that_has_not_begun() -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}).run_id
    workflows.cancel(run_id)
    assert set(rows.statuses(run_id).values()) == {"cancelled"}
    run = Run.objects.get()
    assert run.finished_at is not None
    assert (run.error, run.started_at) == (None, None)
    assert Job.objects.count() == 0
    assert rows.history(run_id) == [(1, "cancelled", None)]
    rows.check_whole(run_id)


def test_a_run_at_work_keeps_what_is_over_and_loses_its_leased_job() -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}).run_id
    rows.start(run_id)
    rows.complete(run_id, "order.reserve.stock", {"stock": 1})
    rows.skip(run_id, ["order.reserve.label"])
    rows.begin(run_id, "order.pay.pay#run")

    workflows.cancel(run_id, "customer called")

    found = rows.statuses(run_id)
    assert found.pop("order.reserve.stock") == "completed"
    assert found.pop("order.reserve.label") == "skipped"
    assert set(found.values()) == {"cancelled"}
    assert Run.objects.get().state == {"order_id": "o", "total": 0, "stock": 1}
    assert not Node.objects.filter(finished_at=None).exists()
    rows.check_whole(run_id)


def test_parked_waits_and_ledgers_are_let_go() -> None:
    run_id = workflows.dispatch(WAITS).run_id
    rows.park_run(run_id, "waits.one", "one.happened", "c")
    node_id = rows.node(run_id, "waits.then.then#run").id
    for key, wait, status in (("a", "some.event", "waiting"), ("b", None, "completed")):
        Step.objects.create(
            run_id=run_id, node_id=node_id, key=key, kind="wait", status=status, wait_event=wait
        )

    workflows.cancel(run_id)

    assert rows.statuses(run_id)["waits.one"] == "cancelled"
    assert Job.objects.count() == 0
    assert list(Step.objects.order_by("key").values_list("status", "wait_event")) == [
        ("failed", None),
        ("completed", None),
    ]
    rows.check_whole(run_id)


def test_the_reason_and_who_gave_it_are_kept() -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    workflows.cancel(run_id, reason="over it: ' \" \\ %s ü", by="ann")
    event = rows.last_event(run_id)
    assert event.data == {"reason": "over it: ' \" \\ %s ü", "by": "ann"}


def test_without_a_reason_there_is_none() -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    workflows.dispatch(PLAIN).cancel()
    workflows.cancel(run_id)
    assert rows.last_event(run_id).data == {"reason": None, "by": None}


@pytest.mark.parametrize("status", ["completed", "failed", "compensated", "cancelled", "compensating"])
@pytest.mark.parametrize("compensate", [False, True])
def test_a_run_that_is_over_or_turned_back_is_refused_and_nothing_changes(
    status: str, compensate: bool
) -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    rows.start(run_id)
    if status in ("compensated", "compensating"):
        Run.objects.update(status="compensating")
    if status != "compensating":
        rows.end(run_id, status)
    before = rows.statuses(run_id), rows.history(run_id), rows.counts()

    with transaction.atomic():
        with pytest.raises(RunConflict, match=status) as caught:
            workflows.cancel(run_id, compensate=compensate)
        assert caught.value.code == "RUN_STATE_CONFLICT"
        assert (rows.statuses(run_id), rows.history(run_id), rows.counts()) == before


def test_the_caller_can_roll_a_cancel_back() -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    with transaction.atomic():
        workflows.cancel(run_id)
        transaction.set_rollback(True)
    assert set(rows.statuses(run_id).values()) == {"pending"}
    assert Job.objects.count() == 1
    workflows.cancel(run_id)
    rows.check_whole(run_id)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"reason": 5}, TypeError),
        ({"reason": "a\0b"}, ValueError),
        ({"reason": "\udcff"}, ValueError),
        ({"reason": "r" * 10_001}, ValueError),
        ({"by": ""}, ValueError),
        ({"by": object()}, TypeError),
        ({"compensate": 1}, TypeError),
    ],
)
def test_options_that_cannot_be_right_change_nothing(options: dict[str, Any], error: type[Exception]) -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    with pytest.raises(error):
        workflows.cancel(run_id, **options)
    assert Run.objects.get().status == "pending"


@pytest.mark.django_db(transaction=True)
def test_workers_are_told_when_the_cancel_is_committed() -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    with psycopg.connect(**_parameters(), autocommit=True) as listener:
        listener.execute("LISTEN workflow_signal")
        with transaction.atomic():
            workflows.cancel(run_id)
            assert list(listener.notifies(timeout=0)) == []
        (notify,) = listener.notifies(timeout=10, stop_after=1)
    assert notify.payload == str(run_id)


def _parameters() -> dict[str, Any]:
    parameters = connection.get_connection_params()
    return {
        name: parameters[name]
        for name in ("dbname", "user", "password", "host", "port")
        if parameters.get(name)
    }


# --- with compensation --------------------------------------------------------------------------


def test_a_run_that_has_begun_can_be_cancelled_and_undone() -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}, queue="q", priority=4).run_id
    rows.start(run_id)
    rows.complete(run_id, "order.reserve.stock", {"stock": 1})
    rows.begin(run_id, "order.pay.pay#run")

    workflows.cancel(run_id, "changed my mind", compensate=True, by="ann")

    found = rows.statuses(run_id)
    assert found.pop("") == "compensating"
    assert found.pop("order.reserve.stock") == "completed"
    assert set(found.values()) == {"cancelled"}
    run, job = Run.objects.get(), Job.objects.get()
    assert run.finished_at is None
    assert (job.kind, job.run_id, job.node_id, job.queue, job.priority) == (
        "compensate",
        run_id,
        run_id,
        "q",
        4,
    )
    assert rows.due(job)
    assert rows.names(run_id)[-2:] == ["cancelled", "compensating"]
    cancelled = run.history.get(name="cancelled")
    assert cancelled.data == {"reason": "changed my mind", "by": "ann", "compensate": True}
    rows.check_whole(run_id)


def test_a_parked_run_can_be_cancelled_and_undone() -> None:
    run_id = workflows.dispatch(WAITS).run_id
    rows.park_run(run_id, "waits.one", "one.happened")
    workflows.cancel(run_id, compensate=True)
    assert rows.statuses(run_id)[""] == "compensating"
    assert [job.kind for job in Job.objects.all()] == ["compensate"]
    rows.check_whole(run_id)


def test_a_run_that_has_not_begun_has_nothing_to_undo() -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    workflows.cancel(run_id, compensate=True)
    assert set(rows.statuses(run_id).values()) == {"cancelled"}
    assert rows.names(run_id) == ["cancelled"]


# --- what is announced --------------------------------------------------------------------------


def test_what_was_written_is_what_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr("workflow.store.commands.announce", lambda rows, using: told.extend(rows))
    run_id = workflows.dispatch(WAITS, by="ann").run_id
    rows.park_run(run_id, "waits.one", "one.happened")
    workflows.resume(run_id, by="ann")
    workflows.cancel(run_id, "enough", compensate=True)

    announced = {row[1]: row for row in told}
    assert [announced[seq][2] for seq in sorted(announced)] == ["log", "resumed", "cancelled", "compensating"]
    for event in RunEvent.objects.filter(run_id=run_id, seq__in=announced):
        assert announced[event.seq] == (run_id, event.seq, event.name, event.node, event.at, event.data)


def test_what_was_refused_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    workflows.cancel(run_id)
    told: list[Any] = []
    monkeypatch.setattr("workflow.store.commands.announce", lambda rows, using: told.extend(rows))
    for command in (workflows.cancel, workflows.retry, workflows.resume):
        with pytest.raises(RunConflict):
            command(run_id)
    assert told == []
