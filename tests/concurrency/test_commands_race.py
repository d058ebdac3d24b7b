"""Two people steer one run at the same moment: one wins, the other is told, and the history has no gap."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from tests.support import rows
from tests.support.definitions import ORDER, PLAIN, WAITS
from tests.support.threads import elsewhere, together, until_blocked
from workflow import RunConflict, RunNotFound, ids, states, workflows
from workflow.models import Job, Node, Run
from workflow.registry import registry

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 15


@pytest.fixture(autouse=True)
def _registry() -> Any:
    with registry.isolated():
        for definition in (PLAIN, ORDER, WAITS):
            workflows.register(definition)
        yield


def parked() -> uuid.UUID:
    run_id = workflows.dispatch("waits").run_id
    rows.park_run(run_id, "waits.one", "one.happened")
    return run_id


def failed() -> uuid.UUID:
    run_id = workflows.dispatch("order", {"order_id": "o"}).run_id
    rows.start(run_id)
    rows.complete(run_id, "order.reserve.stock", {"stock": 1})
    rows.fail(run_id, "order.reserve.label")
    return run_id


def race(*calls: Callable[[], None]) -> list[int]:
    """The indexes of the winners; a loser must have been told of the conflict."""
    found = together(list(calls))
    for outcome in found:
        assert outcome is None or isinstance(outcome, RunConflict), outcome
    return [index for index, outcome in enumerate(found) if outcome is None]


def legal(run_id: uuid.UUID) -> None:
    """The history is a path that a run can take: nothing follows its end but an explicit retry."""
    rows.check_whole(run_id)
    for earlier, later in zip(rows.names(run_id), rows.names(run_id)[1:], strict=False):
        if earlier in ("cancelled", "completed", "compensated", "failed"):
            assert (earlier, later) in (("failed", "resumed"), ("cancelled", "compensating"))


def test_of_many_cancels_one_wins() -> None:
    for _ in range(ROUNDS):
        run_id = workflows.dispatch("plain").run_id
        assert len(race(*[lambda r=run_id: workflows.cancel(r)] * 6)) == 1
        assert rows.names(run_id) == ["cancelled"]
        legal(run_id)


def test_of_many_retries_one_wins() -> None:
    for _ in range(ROUNDS):
        run_id = failed()
        paths = (None, "order.reserve", None, "order.reserve.stock")
        winners = race(*[lambda r=run_id, p=p: workflows.retry(r, p) for p in paths])
        assert len(winners) == 1
        assert rows.names(run_id).count("resumed") == 1
        assert Job.objects.filter(run_id=run_id).count() == 1
        legal(run_id)


def test_of_many_resumes_one_wins_and_its_payload_counts() -> None:
    for _ in range(ROUNDS):
        run_id = parked()
        (winner,) = race(*[lambda r=run_id, n=n: workflows.resume(r, n) for n in range(5)])
        assert rows.node(run_id, "waits.one").wait_outcome == {"payload": winner}
        assert rows.names(run_id).count("resumed") == 1
        assert Job.objects.filter(run_id=run_id).count() == 1
        legal(run_id)


def test_cancel_against_resume() -> None:
    seen = set()
    for _ in range(ROUNDS):
        run_id = parked()
        winners = race(lambda r=run_id: workflows.cancel(r), lambda r=run_id: workflows.resume(r))
        seen.add(tuple(winners))
        assert 0 in winners  # a resumed run can still be cancelled, a cancelled one not resumed
        assert Run.objects.get(pk=run_id).status == "cancelled"
        assert rows.names(run_id)[-1] == "cancelled"
        legal(run_id)
    assert seen <= {(0,), (0, 1)}


def test_cancel_against_retry() -> None:
    for _ in range(ROUNDS):
        run_id = failed()
        winners = race(lambda r=run_id: workflows.cancel(r), lambda r=run_id: workflows.retry(r))
        assert 1 in winners  # a failed run can't be cancelled, a retried one can
        status = Run.objects.get(pk=run_id).status
        assert status == ("cancelled" if 0 in winners else "running")
        legal(run_id)


def test_cancel_against_cancel_with_compensation() -> None:
    for _ in range(ROUNDS):
        run_id = parked()
        winners = race(
            lambda r=run_id: workflows.cancel(r),
            lambda r=run_id: workflows.cancel(r, compensate=True),
        )
        assert len(winners) == 1
        assert Run.objects.get(pk=run_id).status == ("cancelled", "compensating")[winners[0]]
        legal(run_id)


def test_a_command_sees_the_job_that_the_holder_of_the_lock_added() -> None:
    """It waits for the run's row, then looks again: a job added meanwhile would outlive the run."""
    run_id = workflows.dispatch("waits").run_id
    rows.start(run_id)
    with elsewhere() as start:
        with transaction.atomic():
            Run.objects.select_for_update(no_key=True).get(pk=run_id)
            other = start(lambda: workflows.cancel(run_id))
            until_blocked()
            rows.begin(run_id, "waits.then.then#run")
            Job.objects.create(run_id=run_id, node_id=ids.node_id(run_id, 3))
            rows.note(run_id, "action.started", "waits.then.then#run")
        other.result(30)
    assert rows.names(run_id) == ["started", "action.started", "cancelled"]
    legal(run_id)


def test_a_cancel_that_waited_for_the_end_of_the_run_is_told_so() -> None:
    run_id = workflows.dispatch("plain").run_id
    rows.start(run_id)
    with elsewhere() as start:
        with transaction.atomic():
            Run.objects.select_for_update(no_key=True).get(pk=run_id)
            other = start(lambda: workflows.cancel(run_id))
            until_blocked()
            for path in ("plain.s.s#run", "plain.s", "plain"):
                rows.complete(run_id, path)
            rows.note(run_id, "completed")
            rows.end(run_id, "completed")
        with pytest.raises(RunConflict, match="completed"):
            other.result(30)
    assert rows.names(run_id)[-1] == "completed"
    legal(run_id)


def test_a_command_that_waited_for_a_rollback_finds_the_run_as_it_was() -> None:
    run_id = failed()
    with elsewhere() as start:
        with transaction.atomic():
            workflows.retry(run_id)
            other = start(lambda: workflows.retry(run_id, "order.reserve.stock"))
            until_blocked()
            transaction.set_rollback(True)
        assert other.result(30) is None
    assert rows.statuses(run_id)["order.reserve.stock"] == "pending"
    assert rows.names(run_id).count("resumed") == 1
    legal(run_id)


def test_a_run_that_is_pruned_under_a_command_is_not_found() -> None:
    run_id = failed()
    rows.age(run_id, 2)
    with elsewhere() as start:
        with transaction.atomic():
            assert workflows.prune(1) == 1
            other = start(lambda: workflows.retry(run_id))
            until_blocked()
        with pytest.raises(RunNotFound):
            other.result(30)
    assert set(rows.counts().values()) == {0}


def test_commands_keep_the_lock_order_among_many_runs() -> None:
    """Cancels and retries of the same runs, in all orders, wait for one another but never deadlock."""
    run_ids = [failed() for _ in range(6)]

    def steer(order: list[uuid.UUID]) -> int:
        done = 0
        for run_id in order:
            for command in (workflows.retry, workflows.cancel):
                try:
                    command(run_id)
                    done += 1
                except RunConflict:
                    pass
        return done

    found = together([lambda o=o: steer(o) for o in (run_ids, run_ids[::-1], run_ids[3:] + run_ids[:3])])
    assert [outcome for outcome in found if not isinstance(outcome, int)] == []
    for run_id in run_ids:
        legal(run_id)
        assert Run.objects.get(pk=run_id).status == "cancelled"


def test_workers_hear_of_a_cancel_that_took_their_lease() -> None:
    """The leased job is gone, so what the worker still writes under its token changes nothing."""
    run_id = workflows.dispatch("plain").run_id
    rows.start(run_id)
    token = Job.objects.get(run_id=run_id).lease_token
    workflows.cancel(run_id)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workflow_job SET locked_at = now() WHERE lease_token = %s", [token])
        assert cursor.rowcount == 0
    with pytest.raises(Exception, match="illegal status change"), transaction.atomic():
        Node.objects.filter(run_id=run_id, path="plain.s.s#run").update(status=states.COMPLETED)
    legal(run_id)
