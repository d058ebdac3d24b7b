"""Whether a unit's job moves on to the next node or goes through the queue: who comes first stays as it was.

The worker process is run inside the test, in a burst, so that handlers can do at the right moment what tells the
two apart.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from workflow import Action, Fatal, Stage, Workflow, states, workflows
from workflow.executor import moving
from workflow.ids import ordinal_of
from workflow.models import Job, Node, RunEvent
from workflow.registry import registry
from workflow.results import RunHandle
from workflow.store.ports import connection_parameters
from workflow.store.settle import Settlement
from workflow.testing import drain
from workflow.worker.options import Options
from workflow.worker.process import RETIRED, WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)

called: list[str] = []
"""Paths of handlers, in the order of their calls."""
undone_under: list[tuple[Any, str, bool]] = []
"""By compensation: its job's id and kind, and whether that is the run's."""
deeds: dict[str, Callable[[Any], Any]] = {}
"""By path: what its handler does."""


def handle(state: dict[str, Any], ctx: Any) -> None:
    called.append(ctx.path)
    if (deed := deeds.get(ctx.path)) is not None:
        deed(ctx)


async def ahandle(state: dict[str, Any], ctx: Any) -> None:
    called.append(ctx.path)
    if (deed := deeds.get(ctx.path)) is not None:
        await deed(ctx)


def gate(state: dict[str, Any]) -> bool:
    called.append("gate")
    workflows.pause_queue("default")
    return False


def undo(state: dict[str, Any], ctx: Any) -> None:
    called.append(f"undo {ctx.path}")
    job = Job.objects.get(run_id=ctx.run_id)
    undone_under.append((job.pk, job.kind, job.node_id == ctx.run_id))


def fatal(ctx: Any) -> None:
    raise Fatal("it does")


def of(run: Any, **options: Any) -> list[Action]:
    return [Action("a", run, **options)]


CHAIN = Workflow("chain", stages=[Stage(f"s{n}", actions=of(handle), via="queue") for n in range(4)])
ACHAIN = Workflow("achain", stages=[Stage(f"s{n}", actions=of(ahandle), via="queue") for n in range(4)])
ATOMIC = Workflow(
    "atomic", stages=[Stage(f"s{n}", actions=of(handle, via="queue", atomic=True)) for n in range(3)]
)
GATED = Workflow(
    "gated",
    stages=[Stage(f"s{n}", actions=of(handle), via="queue", when=gate if n == 1 else None) for n in range(3)],
)
SAGA = Workflow(
    "saga",
    stages=[
        Stage("s", actions=[Action(name, handle, compensate=undo, attempts=1, timeout=2) for name in "abc"])
    ],
)
MIXED = Workflow(
    "mixed",
    stages=[Stage(f"s{n}", actions=of(handle), via="inline" if n == 1 else "queue") for n in range(3)],
)
OTHER = Workflow("other", stages=[Stage("s", actions=of(handle))])
WHOLE = [f"chain.s{n}.a" for n in range(4)]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    called.clear()
    deeds.clear()
    undone_under.clear()
    monkeypatch.setattr(moving, "SLICE", 600.0)  # however slow the machine is
    with registry.isolated():
        for definition in (CHAIN, ACHAIN, ATOMIC, GATED, MIXED, SAGA, OTHER):
            workflows.register(definition)
        yield


class Worked:
    """A worker process that has run in this one until nothing was due."""

    def __init__(self, on_start: Callable[[WorkerProcess], None] | None = None, **options: Any) -> None:
        parameters = connection_parameters()

        async def main() -> None:
            self.process = WorkerProcess(parameters, Options(**{"concurrency": 1, "burst": True, **options}))
            if on_start is not None:
                on_start(self.process)
            self.code = await self.process.run()

        asyncio.run(main())

    @property
    def taken(self) -> int:
        return self.process._units.launched


def refused(caplog: pytest.LogCaptureFixture) -> int:
    """How many boundaries were refused because of their moves."""
    return sum("goes through the queue" in record.getMessage() for record in caplog.records)


def status(run: RunHandle) -> str:
    return run.status().run.status


def jobs(run: RunHandle) -> list[tuple[str, int]]:
    """The path of the node whose job it is, and the job's attempt, of those that are nobody's."""
    rows = Job.objects.filter(run_id=run.run_id, lease_token=None).values_list("node_id", "attempt")
    return [(Node.objects.get(pk=node).path, attempt) for node, attempt in rows]


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


# --- when the worker has had enough --------------------------------------------------------------


def test_each_move_counts_as_a_job_that_was_taken() -> None:
    run = workflows.dispatch("chain", {})
    worked = Worked(max_jobs=3)
    assert (worked.taken, worked.code) == (3, RETIRED)
    assert (called, jobs(run)) == (WHOLE[:1], [("chain.s1", 0)])
    while status(run) != states.COMPLETED:
        worked = Worked(max_jobs=3)
        assert worked.taken <= 3
    assert called == WHOLE


@pytest.mark.parametrize("how", ["stop", "hurry"])
def test_a_worker_that_stops_begins_nothing_new(how: str) -> None:
    processes: list[WorkerProcess] = []

    async def stop(ctx: Any) -> None:
        getattr(processes[0], how)()

    deeds["achain.s1.a"] = stop
    run = workflows.dispatch("achain", {})
    Worked(processes.append)
    assert called == ["achain.s0.a", "achain.s1.a"]
    ((path, attempt),) = jobs(run)
    assert (path in ("achain", "achain.s1"), attempt) == (True, 0)
    deeds.clear()
    Worked()
    assert status(run) == states.COMPLETED
    attempts = Node.objects.filter(run_id=run.run_id, kind="action").values_list("attempt", flat=True)
    assert set(attempts) == {1}


def test_a_worker_that_cannot_heartbeat_moves_nothing(settings: Any) -> None:
    settings.WORKFLOW = {"HEARTBEAT_INTERVAL": 1, "POLL_INTERVAL": 0.1}
    processes: list[WorkerProcess] = []
    seen: list[Any] = []

    def look(ctx: Any) -> None:
        seen.append(Job.objects.get(run_id=ctx.run_id).pk)
        if ctx.path == WHOLE[1]:
            processes[0]._heartbeat.silent = True  # until the next beat

    deeds.update(dict.fromkeys(WHOLE, look))
    run = workflows.dispatch("chain", {})
    Worked(processes.append)
    assert status(run) == states.COMPLETED
    assert seen[0] == seen[1]
    assert seen[2] == seen[3] != seen[1]


def test_each_node_has_the_whole_of_the_units_timeout(settings: Any) -> None:
    settings.WORKFLOW = {"UNIT_TIMEOUT": 2}
    deeds.update({f"achain.s{n}.a": lambda ctx: asyncio.sleep(0.8) for n in range(4)})
    run = workflows.dispatch("achain", {})
    assert Worked().taken == 9
    assert status(run) == states.COMPLETED
    assert set(Node.objects.filter(run_id=run.run_id, kind="action").values_list("attempt", flat=True)) == {1}


def test_past_it_the_child_in_hand_has_had_an_attempt(settings: Any) -> None:
    settings.WORKFLOW = {"UNIT_TIMEOUT": 1}
    tries: list[int] = []

    async def slow(ctx: Any) -> None:
        tries.append(ctx.attempt)
        await asyncio.sleep(60 if ctx.attempt == 1 else 0)

    deeds["achain.s1.a"] = slow
    run = workflows.dispatch("achain", {})
    Worked()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workflow_job SET available_at = now()")
        cursor.execute("UPDATE workflow_node SET due_at = now() WHERE due_at IS NOT NULL")
    Worked()
    assert (status(run), tries) == (states.COMPLETED, [1, 2])
