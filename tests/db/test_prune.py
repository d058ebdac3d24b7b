"""Pruning: what is dropped, what stays, and in what steps."""

from __future__ import annotations

import uuid
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from tests.support import rows
from tests.support.definitions import ORDER, PLAIN, WAITS
from workflow import workflows
from workflow.models import Event, Job, Run, RunEvent, Step

pytestmark = pytest.mark.django_db


def finished(days: float, status: str = "completed") -> uuid.UUID:
    run_id = workflows.dispatch(PLAIN).run_id
    rows.end(run_id, status)
    rows.age(run_id, days)
    return run_id


def event(days: float, type: str = "t", **options: Any) -> uuid.UUID:  # noqa: A002
    """An event of that age which has been delivered to nobody."""
    workflows.publish(type, **options)
    found = Event.objects.latest("id").id
    Event.objects.filter(pk=found).update(at=F("at") - timedelta(days=days))
    Job.objects.filter(node_id=found).delete()
    return found


def kept(model: Any) -> set[uuid.UUID]:
    return set(model.objects.values_list("pk", flat=True))


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_runs_that_finished_long_ago_go_with_all_that_is_theirs(status: str) -> None:
    old = finished(8, status)
    young = finished(6, status)
    for run_id in (old, young):
        Step.objects.create(run_id=run_id, node_id=run_id, key="k", kind="run", status="completed")
    Job.objects.create(run_id=old, node_id=old)  # left behind by an accident

    assert workflows.prune(7) == 1

    assert kept(Run) == {young}
    assert set(RunEvent.objects.values_list("run_id", flat=True)) == {young}
    assert rows.counts() == {"run": 1, "node": 3, "job": 0, "step": 1, "event": 0, "runevent": 1}


def test_live_runs_stay_however_old() -> None:
    pending = workflows.dispatch(PLAIN).run_id
    running = workflows.dispatch(PLAIN).run_id
    rows.start(running)
    parked = workflows.dispatch(WAITS).run_id
    rows.park_run(parked, "waits.one", "one.happened")
    for run_id in (pending, running, parked):
        rows.age(run_id, 4000)
    assert workflows.prune(0) == 0
    assert kept(Run) == {pending, running, parked}


def test_days_may_be_a_fraction() -> None:
    finished(1.1)
    half = finished(0.4)
    assert workflows.prune(0.5) == 1
    assert kept(Run) == {half}


def test_zero_days_is_all_that_is_over() -> None:
    finished(0.0001)
    assert workflows.prune(0) == 1


def test_zero_days_is_also_what_was_over_within_the_same_transaction() -> None:
    """As in a project's `TestCase`, in which `now()` stands still."""
    workflows.cancel(workflows.dispatch(PLAIN).run_id)
    workflows.publish("nobody.waits")
    counted = StringIO()
    call_command("workflow:prune", days=0, dry_run=True, stdout=counted)
    assert workflows.prune(0) == 1
    assert kept(Run) == kept(Event) == set()
    assert counted.getvalue() == "Would drop 1 run and 1 event.\n"


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_batches_of_any_size_drop_the_same(batch_size: int) -> None:
    for _ in range(7):
        finished(2)
        event(2)
    young = finished(0)
    assert workflows.prune(1, batch_size=batch_size) == 7
    assert kept(Run) == {young}
    assert Event.objects.count() == 0


def test_a_batch_is_one_statement() -> None:
    for _ in range(5):
        finished(2)
    with CaptureQueriesContext(connection) as queries:
        workflows.prune(1, batch_size=10)
    assert len(queries) == 3  # the cutoff, the runs, the events


@pytest.mark.django_db(transaction=True)
def test_each_batch_is_a_transaction_of_its_own() -> None:
    for _ in range(4):
        finished(2)
    other = connections.create_connection("default")
    seen: list[int] = []

    def look(execute: Any, sql: str, *arguments: Any) -> Any:
        with other.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM workflow_run")
            seen.append(cursor.fetchone()[0])
        return execute(sql, *arguments)

    try:
        with connection.execute_wrapper(look):
            workflows.prune(1, batch_size=2)
    finally:
        other.close()
    assert seen == [4, 4, 2, 0, 0]


@pytest.mark.django_db(transaction=True)
def test_a_run_that_somebody_holds_is_left_for_another_time() -> None:
    held, free = finished(2, "failed"), finished(2)
    other = connections.create_connection("default")
    other.inc_thread_sharing()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT 1 FROM workflow_run WHERE id = %s FOR NO KEY UPDATE", [held])
            assert workflows.prune(1) == 1
        other.rollback()
    finally:
        other.close()
    assert kept(Run) == {held}
    assert free not in kept(Run)
    assert workflows.prune(1) == 1


def test_inside_a_transaction_it_is_part_of_it() -> None:
    run_id = finished(2)
    with transaction.atomic():
        assert workflows.prune(1) == 1
        transaction.set_rollback(True)
    assert kept(Run) == {run_id}


# --- events -------------------------------------------------------------------------------------


def test_old_events_go_taken_or_not_and_do_not_count() -> None:
    event(8)
    event(8, correlation="c")
    taken = event(8)
    Event.objects.filter(pk=taken).update(taken=True)
    young = event(6)
    assert workflows.prune(7) == 0
    assert kept(Event) == {young}


def test_a_correlated_event_stays_while_a_run_from_before_it_lives() -> None:
    """The run's wait may still park, and counts what was published since the run was created."""
    before, after = event(30, correlation="o"), event(10, correlation="o")
    plain = event(10)
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}).run_id
    rows.age(run_id, 20)
    workflows.prune(7)
    assert before not in kept(Event)
    assert plain not in kept(Event)
    assert kept(Event) == {after}
    workflows.cancel(run_id)
    workflows.prune(7)
    assert kept(Event) == set()


def test_an_event_that_is_still_to_be_delivered_to_a_parked_wait_stays() -> None:
    run_id = workflows.dispatch(WAITS).run_id
    rows.park_run(run_id, "waits.one", "one.happened")
    workflows.publish("one.happened")
    workflows.publish("nobody.waits")
    Event.objects.update(at=F("at") - timedelta(days=30))
    workflows.prune(7)
    found = Event.objects.get()
    assert found.type == "one.happened"
    assert Job.objects.get(kind="deliver").node_id == found.id


def test_an_event_that_is_still_to_be_delivered_to_a_parked_step_stays() -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    Step.objects.create(
        run_id=run_id, node_id=run_id, key="k", kind="wait", status="waiting", wait_event="one.happened"
    )
    workflows.publish("one.happened")
    Event.objects.update(at=F("at") - timedelta(days=30))
    workflows.prune(7)
    assert Event.objects.count() == 1
    workflows.cancel(run_id)
    workflows.prune(7)
    assert Event.objects.count() == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((-1,), ValueError),
        ((float("nan"),), ValueError),
        ((float("inf"),), ValueError),
        ((10**400,), ValueError),
        ((36_526,), ValueError),
        (("7",), TypeError),
        ((None,), TypeError),
        ((True,), TypeError),
        ((7, 0), ValueError),
        ((7, -5), ValueError),
        ((7, 100_001), ValueError),
        ((7, 2.5), TypeError),
        ((7, None), TypeError),
    ],
)
def test_arguments_that_cannot_be_right_drop_nothing(
    arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with CaptureQueriesContext(connection) as queries, pytest.raises(error):
        workflows.prune(*arguments)
    assert len(queries) == 0
