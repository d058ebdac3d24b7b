"""Sweeps: runs that nothing would ever touch again, waits past their deadline, and errors on the way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from tests.support.refusals import refusing
from tests.support.runs import names, node
from workflow import Action, Stage, WaitFor, Workflow, states, sweeps, workflows
from workflow.errors import FailureCode
from workflow.models import Job, PausedQueue, Run
from workflow.testing import advance, drain


def nothing(state: dict[str, Any]) -> None:
    """A handler."""


PLAIN = Workflow(
    "plain",
    stages=[
        Stage("a", actions=[Action("a1", nothing, compensate=nothing)]),
        Stage("b", actions=[Action("b1", nothing)]),
    ],
)
WAITS = Workflow("waits", stages=[Stage("s", wait_for=WaitFor("never", timeout=100))])


def orphaned(definition: Workflow = PLAIN) -> Any:
    """A run whose jobs somebody has deleted."""
    handle = workflows.dispatch(definition, {})
    Job.objects.filter(run_id=handle.run_id).delete()
    return handle


def test_a_run_without_a_job_is_left_alone_while_it_is_young() -> None:
    handle = orphaned()
    assert sweeps.run_once()["runs"] == 0
    assert not Job.objects.filter(run_id=handle.run_id).exists()


def test_a_run_without_a_job_is_given_the_one_that_its_tree_says_comes_next() -> None:
    handle = orphaned()
    advance(61)
    assert sweeps.run_once()["runs"] == 1
    drain(handle.run_id)
    assert handle.status().run.status == "completed"


def test_a_queued_part_without_a_job_is_given_its_own() -> None:
    """Its parent would await it for good, and be given a job again by every sweep."""
    tries: list[int] = []

    def loses_its_job(state: dict[str, Any], ctx: Any) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt == 1:
            Job.objects.filter(run_id=ctx.run_id).delete()

    parts = [Action("a", loses_its_job, via="queue"), Action("b", lambda state: None)]
    handle = workflows.dispatch(Workflow("apart", stages=[Stage("s", actions=parts, via="queue")]), {})
    drain(handle.run_id)
    assert not Job.objects.filter(run_id=handle.run_id).exists()
    advance(61)
    assert sweeps.run_once()["runs"] == 1
    for _ in range(2):  # the attempt that was lost, and the next one after its backoff
        advance(10)
        drain(handle.run_id)
    assert (handle.status().run.status, tries) == ("completed", [1, 2])


def test_a_compensation_without_a_job_goes_on_too() -> None:
    handle = workflows.dispatch(PLAIN, {})
    drain(handle.run_id)
    Run.objects.filter(pk=handle.run_id).delete()
    handle = workflows.dispatch(PLAIN, {})
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workflow_run SET status = 'running', started_at = now() WHERE id = %s", (handle.run_id,)
        )
        cursor.execute("UPDATE workflow_run SET status = 'compensating' WHERE id = %s", (handle.run_id,))
    Job.objects.filter(run_id=handle.run_id).delete()
    advance(61)
    assert sweeps.run_once()["runs"] == 1
    assert Job.objects.get(run_id=handle.run_id).kind == states.COMPENSATE
    drain(handle.run_id)
    assert handle.status().run.status == "compensated"


def test_a_run_that_nobody_could_bring_on_for_long_is_stuck_and_fails() -> None:
    handle = orphaned()
    advance(1000)
    assert sweeps.run_once()["runs"] == 1
    status = handle.status()
    assert (status.run.status, status.run.error["code"]) == ("failed", FailureCode.STUCK_RUN_REAPED)
    assert {n.status for n in status.nodes} == {"cancelled"}
    assert names(status)[-1] == "failed"


def test_the_threshold_is_a_setting() -> None:
    handle = orphaned()
    advance(40)
    with override_settings(WORKFLOW={"STUCK_THRESHOLD": 30}):
        assert sweeps.run_once()["runs"] == 1
    assert handle.status().run.status == "failed"


def test_runs_that_wait_are_not_stuck_however_long() -> None:
    handle = workflows.dispatch(
        Workflow("patient", stages=[Stage("s", wait_for=WaitFor("never", timeout=None))]), {}
    )
    drain(handle.run_id)
    advance(10_000_000)
    assert sweeps.run_once()["runs"] == 0
    assert handle.status().run.status == "waiting"


def test_a_wait_past_its_deadline_is_over_however_late_the_sweep_comes() -> None:
    handle = workflows.dispatch(WAITS, {})
    drain(handle.run_id)
    advance(1_000_000)
    assert sweeps.run_once()["waits"] == 1
    assert sweeps.run_once()["waits"] == 0
    drain(handle.run_id)
    assert node(handle.status(), "waits.s").error["code"] == "WAIT_TIMEOUT"


def test_pages_of_expired_waits_are_all_gone_through() -> None:
    handles = workflows.dispatch_many(WAITS, [{} for _ in range(7)])
    for handle in handles:
        drain(handle.run_id)
    advance(101)
    from workflow.store.drive import drive
    from workflow.store.events import expire_waits
    from workflow.store.ports import DjangoPort

    assert drive(expire_waits(DjangoPort(), limit=2)) == 7


def test_an_error_in_one_sweep_keeps_no_other_from_running(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(port: Any) -> int:
        raise ValueError("a bad row")

    handle = workflows.dispatch(WAITS, {})
    drain(handle.run_id)
    advance(101)
    monkeypatch.setitem(sweeps.SWEEPS, "leases", broken)
    assert sweeps.run_once()["waits"] == 1
    assert "the sweep of leases failed" in caplog.text


def test_one_run_that_cannot_be_mended_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handles = sorted((orphaned() for _ in range(3)), key=lambda handle: handle.run_id)
    advance(61)
    mend = sweeps._mend

    async def sometimes(port: Any, run_id: str, *arguments: Any) -> int:
        if run_id == str(handles[1].run_id):
            raise ValueError("a bad row")
        return await mend(port, run_id, *arguments)

    monkeypatch.setattr(sweeps, "_mend", sometimes)
    assert sweeps.run_once()["runs"] == 2
    monkeypatch.undo()
    assert sweeps.run_once()["runs"] == 1, "the next pass finds it again"


def test_a_wait_that_the_database_refuses_to_end_keeps_no_other_from_its_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handles = workflows.dispatch_many(WAITS, [{} for _ in range(7)])
    drain()
    advance(101)
    bad = handles[3]
    with refusing("UPDATE", "workflow_node", f"NEW.run_id = '{bad.run_id}' AND NEW.wait_outcome IS NOT NULL"):
        assert [sweeps.run_once()["waits"] for _ in range(3)] == [6, 0, 0]
    assert caplog.text.count("the database refuses to") == 1, "it is named once, and not by every pass"
    assert sweeps.run_once()["waits"] == 1


def lease_all() -> None:
    """All jobs are held by a worker that has been gone for an hour."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workflow_job SET lease_token = gen_random_uuid(), worker_id = gen_random_uuid(), attempt = 1, "
            "locked_at = now() - interval '1 hour', started_at = now()"
        )


@pytest.mark.parametrize("deliveries", [False, True])
def test_a_lease_that_the_database_refuses_to_free_keeps_no_other_from_being_freed(deliveries: bool) -> None:
    if deliveries:
        for _ in range(5):
            workflows.publish("paid")
    else:
        workflows.dispatch_many(PLAIN, [{} for _ in range(5)])
    lease_all()
    bad = Job.objects.order_by("id")[2]
    with refusing("UPDATE", "workflow_job", f"NEW.id = '{bad.pk}'"):
        assert [sweeps.run_once()["leases"] for _ in range(2)] == [4, 0]
    assert list(Job.objects.exclude(lease_token=None)) == [bad]
    assert sweeps.run_once()["leases"] == 1


@pytest.mark.parametrize("sweep", ["pauses", "workers"])
def test_a_row_that_the_database_refuses_to_drop_keeps_no_other(sweep: str) -> None:
    for n in range(3):
        workflows.pause_queue(f"q{n}", until=timezone.now() + timedelta(hours=1))
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO workflow_worker (id, hostname, pid, queues, serves, concurrency, threads, started_at, "
                "seen_at, units, abandoned_threads) VALUES (gen_random_uuid(), 'h', %s, '[]', '[]', 1, 1, "
                "now() - interval '2 days', now() - interval '2 days', 0, 0)",
                (n,),
            )
    PausedQueue.objects.update(until=timezone.now() - timedelta(hours=1))
    table, condition = {
        "pauses": ("workflow_pausedqueue", "OLD.queue = 'q1'"),
        "workers": ("workflow_worker", "OLD.pid = 1"),
    }[sweep]
    with refusing("DELETE", table, condition):
        assert [sweeps.run_once()[sweep] for _ in range(2)] == [2, 0]
    assert sweeps.run_once()[sweep] == 1


def test_a_sweep_inside_a_transaction_leaves_its_lock_timeout_as_it_was() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '7s'")
        sweeps.run_once()
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("7s",)
