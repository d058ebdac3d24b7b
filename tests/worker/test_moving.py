"""Whether a unit's job moves on to the next node or goes through the queue: who comes first stays as it was."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Any

import pytest
from django.db import connection

from tests.support.moving import (
    WHOLE,
    Worked,
    called,
    clean,
    deeds,
    fatal,
    handle,
    jobs,
    of,
    refused,
    status,
    undone_under,
)
from workflow import Fatal, Stage, Workflow, states, workflows
from workflow.executor import moving
from workflow.ids import ordinal_of
from workflow.models import Job, Node, RunEvent
from workflow.registry import registry
from workflow.store.settle import Settlement
from workflow.testing import drain
from workflow.worker.process import WorkerProcess

__all__ = ["clean"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_chain_is_done_under_one_job_that_is_each_nodes_in_turn() -> None:
    seen: list[Any] = []
    seen_at: list[Any] = []

    def look(ctx: Any) -> None:
        (job,) = Job.objects.filter(run_id=ctx.run_id)
        seen.append(
            (job.pk, job.lease_token, Node.objects.get(pk=job.node_id).path, job.attempt, job.last_error)
        )
        seen_at.append(job.started_at)

    deeds.update(dict.fromkeys(WHOLE, look))
    run = workflows.dispatch("chain", {})
    Job.objects.update(attempt=4, last_error="it has come back before")
    assert Worked().taken == 1 + 2 * 4  # the pipeline, and each stage and then the pipeline again
    assert (status(run), called) == (states.COMPLETED, WHOLE)
    assert len({(pk, token) for pk, token, *_ in seen}) == 1
    assert [rest for _, _, *rest in seen] == [[f"chain.s{n}", 1, ""] for n in range(4)]
    assert seen_at == sorted(set(seen_at))


def test_an_inline_stage_after_a_queued_one_is_the_pipelines_again() -> None:
    seen: list[str] = []

    def look(ctx: Any) -> None:
        (job,) = Job.objects.filter(run_id=ctx.run_id)
        seen.append(Node.objects.get(pk=job.node_id).path)

    deeds.update({f"mixed.s{n}.a": look for n in range(3)})
    run = workflows.dispatch("mixed", {})
    Worked()
    assert (status(run), seen) == (states.COMPLETED, ["mixed.s0", "mixed", "mixed.s2"])


def test_the_history_is_that_of_a_run_whose_units_are_claimed_one_by_one() -> None:
    moved = workflows.dispatch("chain", {})
    Worked()
    claimed = workflows.dispatch("chain", {})
    drain(claimed.run_id)
    told = [
        list(
            RunEvent.objects.filter(run_id=run.run_id)
            .order_by("seq")
            .values_list("seq", "name", "node", "data")
        )
        for run in (moved, claimed)
    ]
    assert told[0] == told[1]
    assert status(moved) == status(claimed) == states.COMPLETED


# --- who comes first ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chain", "atomic"])
def test_a_queue_that_is_paused_gets_no_next_child_begun(name: str, caplog: pytest.LogCaptureFixture) -> None:
    deeds[f"{name}.s1.a"] = lambda ctx: workflows.pause_queue("default")
    run = workflows.dispatch(name, {})
    Worked()
    assert (status(run), called) == (states.RUNNING, [f"{name}.s0.a", f"{name}.s1.a"])
    nodes = {n.path: (n.status, n.attempt) for n in Node.objects.filter(run_id=run.run_id, kind="action")}
    assert nodes[f"{name}.s1.a"] == (states.COMPLETED, 1)  # what was in hand has gone on
    assert nodes[f"{name}.s2.a"] == (states.PENDING, 0)
    assert jobs(run) == [(name, 0)]
    assert refused(caplog) == 1
    workflows.resume_queue("default")
    Worked()
    assert status(run) == states.COMPLETED
    assert called == [f"{name}.s{n}.a" for n in range(len(called))]


def test_a_run_of_another_version_goes_through_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(moving.Mover, "allows", lambda mover, at: asked.append(at) or 99)
    run = workflows.dispatch("chain", {})
    with registry.isolated():
        registry.clear()
        stages = [Stage(f"s{n}", actions=of(handle), via="queue" if n else "inline") for n in range(4)]
        workflows.register(Workflow("chain", version=2, stages=stages, compatible_versions=[1]))
        Worked()
    assert (status(run), called, asked) == (states.COMPLETED, WHOLE, [])


def test_what_was_asked_before_a_refusal_is_not_asked_again() -> None:
    run = workflows.dispatch("gated", {})
    Worked()
    assert (called, jobs(run)) == (["gated.s0.a", "gate"], [("gated", 0)])
    assert Node.objects.get(run_id=run.run_id, path="gated.s1").status == states.SKIPPED
    workflows.resume_queue("default")
    Worked()
    assert (status(run), called) == (states.COMPLETED, ["gated.s0.a", "gate", "gated.s2.a"])


def test_not_even_the_end_of_a_run_of_a_paused_queue_comes_without_a_claim() -> None:
    deeds[WHOLE[-1]] = lambda ctx: workflows.pause_queue("default")
    run = workflows.dispatch("chain", {})
    Worked()
    assert (status(run), jobs(run)) == (states.RUNNING, [("chain", 0)])
    workflows.resume_queue("default")
    Worked()
    assert (status(run), called) == (states.COMPLETED, WHOLE)


@pytest.mark.parametrize("paused", [False, True])
def test_a_run_that_fails_is_undone_without_a_claim_unless_its_queue_is_paused(paused: bool) -> None:
    def fail(ctx: Any) -> None:
        (job,) = Job.objects.filter(run_id=ctx.run_id)
        seen.append(job.pk)
        if paused:
            workflows.pause_queue("default")
        raise Fatal("it does")

    seen: list[Any] = []
    deeds["saga.s.c"] = fail
    run = workflows.dispatch("saga", {})
    worked = Worked()
    forward, back = ["saga.s.a", "saga.s.b", "saga.s.c"], ["undo saga.s.b", "undo saga.s.a"]
    if paused:
        assert (called, status(run)) == (forward, states.COMPENSATING)
        assert list(Job.objects.values_list("kind", "attempt")) == [(states.COMPENSATE, 0)]
        workflows.resume_queue("default")
        Worked()
    else:
        assert worked.taken == 2  # the pipeline's, and the compensation's
    assert (called, status(run)) == ([*forward, *back], states.COMPENSATED)
    assert [rest for _, *rest in undone_under] == [[states.COMPENSATE, True]] * 2
    assert ({pk for pk, *_ in undone_under} == set(seen)) is not paused
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("how", "undone"),
    [
        ("steps", ["undo saga.s.b", "undo k", "undo saga.s.a"]),
        ("steps, late", ["undo k", "undo saga.s.a"]),
        ("late", ["undo saga.s.a"]),
    ],
)
def test_what_perhaps_only_the_ledger_knows_is_read_before_it_is_undone(how: str, undone: list[str]) -> None:
    def leave(ctx: Any) -> None:
        (job,) = Job.objects.filter(run_id=ctx.run_id)
        if not seen:  # it is called again to find the way back
            seen.append(job.pk)
        if "steps" in how:
            ctx.step.run("k", lambda: 1, compensate=lambda: called.append("undo k"))
        if "late" in how:
            ctx.signal.wait(60)

    seen: list[Any] = []
    deeds["saga.s.b"] = leave
    deeds["saga.s.c"] = fatal
    run = workflows.dispatch("saga", {})
    Worked()
    assert status(run) == states.COMPENSATED
    assert [what for what in called if what.startswith("undo")] == undone
    assert undone_under[0][0] not in seen  # the job was added, and claimed


@pytest.mark.parametrize("cut", ["workflow sweep", "workflow %"])
def test_connections_that_are_cut_when_a_move_is_refused_cost_no_attempt(
    cut: str, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    """What the handler has returned is in hand while the run is read again."""
    settings.WORKFLOW = {"POLL_INTERVAL": 30}  # nobody finds out in between

    def pause(ctx: Any) -> None:
        workflows.pause_queue("default")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name LIKE %s",
                [cut],
            )
            assert cursor.fetchall()

    deeds[WHOLE[1]] = pause
    run = workflows.dispatch("chain", {})
    Worked()
    assert refused(caplog) == 1
    done = Node.objects.get(run_id=run.run_id, path=WHOLE[1])
    assert (done.status, done.attempt) == (states.COMPLETED, 1)
    workflows.resume_queue("default")
    Worked()
    assert (status(run), called) == (states.COMPLETED, WHOLE)


def test_what_has_a_higher_priority_goes_first() -> None:
    deeds[WHOLE[1]] = lambda ctx: workflows.dispatch("other", {}, priority=1)
    workflows.dispatch("chain", {})
    Worked()
    assert called == [*WHOLE[:2], "other.s.a", *WHOLE[2:]]


@pytest.mark.parametrize(
    "options", [{"priority": 0}, {"priority": 1, "delay": 3600}, {"priority": 1, "queue": "b"}]
)
def test_what_has_not_is_not_due_or_is_not_for_this_worker_comes_after_the_slice(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    deeds[WHOLE[1]] = lambda ctx: workflows.dispatch("other", {}, **options)
    workflows.dispatch("chain", {}, queue="a")
    worked = Worked(queues=("a", "default"))
    assert (called[:4], refused(caplog)) == (WHOLE, 0)
    assert worked.taken >= 9


@pytest.mark.parametrize(("concurrency", "times"), [(1, 1), (2, 0)])
def test_an_event_is_delivered_first_where_there_is_no_other_place_for_it(
    concurrency: int, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    deeds[WHOLE[1]] = lambda ctx: workflows.publish("nobodys")
    workflows.dispatch("chain", {})
    Worked(concurrency=concurrency)
    assert (called, refused(caplog)) == (WHOLE, times)


def test_what_is_paused_itself_goes_before_nobody(caplog: pytest.LogCaptureFixture) -> None:
    workflows.pause_queue("b")
    deeds[WHOLE[1]] = lambda ctx: workflows.dispatch("other", {}, priority=1, queue="b")
    workflows.dispatch("chain", {})
    Worked()
    assert (called, refused(caplog)) == (WHOLE, 0)


def test_once_its_slice_is_over_a_unit_goes_through_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "SLICE", 0.0)
    deeds[WHOLE[0]] = lambda ctx: workflows.dispatch("other", {})
    workflows.dispatch("chain", {})
    Worked()
    assert called == [WHOLE[0], "other.s.a", *WHOLE[1:]]


def test_after_a_refusal_nobody_tries_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "REST", 3600.0)
    deeds[WHOLE[0]] = lambda ctx: workflows.dispatch("other", {}, priority=1)
    runs = [workflows.dispatch("chain", {}) for _ in range(2)]
    worked = Worked()
    assert [status(run) for run in runs] == [states.COMPLETED] * 2
    assert worked.process._runtime.mover is not None
    assert worked.process._runtime.mover.allows(time.monotonic()) == 0


def test_another_job_of_the_run_keeps_its_job_from_moving_and_breaks_nothing() -> None:
    def once_more(ctx: Any) -> None:
        node = Node.objects.get(run_id=ctx.run_id, path="chain")
        Job.objects.create(
            id=uuid.uuid4(), run_id=ctx.run_id, node_id=node.pk, available_at="2100-01-01T00:00Z"
        )

    deeds[WHOLE[1]] = once_more
    run = workflows.dispatch("chain", {})
    Worked()
    assert (status(run), called) == (states.COMPLETED, WHOLE)
    assert not Job.objects.exists()


def test_what_does_not_fit_where_the_job_was_to_go_is_not_the_fault_of_what_came_before() -> None:
    def begin_the_next(ctx: Any) -> None:
        Node.objects.filter(run_id=ctx.run_id, path="chain.s2").update(status=states.RUNNING)

    deeds[WHOLE[1]] = begin_the_next
    run = workflows.dispatch("chain", {})
    Worked()
    assert called == WHOLE[:2]
    done = Node.objects.get(run_id=run.run_id, path=WHOLE[1])
    assert (done.status, done.attempt, done.error) == (states.COMPLETED, 1, None)
    assert status(run) == states.RUNNING


def test_a_child_that_its_own_job_has_completed_meanwhile_is_not_begun_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both jobs are there once the parent's worker was lost, and each may be in another worker's hands."""
    caplog.set_level(logging.INFO, "workflow")
    run = workflows.dispatch("mixed", {})
    child = Node.objects.get(run_id=run.run_id, path="mixed.s2")
    others: list[Worked] = []

    def complete_it() -> None:
        Job.objects.create(id=uuid.uuid4(), run_id=run.run_id, node_id=child.pk)
        others.append(Worked())
        connection.close()

    def before_it_moves_there(process: WorkerProcess) -> None:
        settle = process.committer.settle

        async def late(settlement: Settlement) -> Settlement:
            if settlement.boundary.moves == (ordinal_of(child.pk),):
                await asyncio.to_thread(complete_it)
            return await settle(settlement)

        monkeypatch.setattr(process.committer, "settle", late)

    Worked(before_it_moves_there)
    assert (len(others), others[0].taken, refused(caplog)) == (1, 1, 1)
    assert called == ["mixed.s0.a", "mixed.s1.a", "mixed.s2.a"]
    assert (status(run), Job.objects.exists()) == (states.COMPLETED, False)
    assert set(Node.objects.filter(run_id=run.run_id, kind="action").values_list("attempt", flat=True)) == {1}
