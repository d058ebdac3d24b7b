"""Sweeps: runs that nothing would ever touch again, waits past their deadline, and errors on the way."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from tests.support.runs import names, node
from workflow import Action, Stage, WaitFor, Workflow, states, sweeps, workflows
from workflow.errors import FailureCode
from workflow.models import Job, Run
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
