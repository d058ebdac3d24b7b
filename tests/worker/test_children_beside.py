"""What follows children with jobs of their own does not wait for what their parent's unit has at work beside them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest
from django.conf import settings as django_settings
from django.test import override_settings

from tests.support.moving import Worked, clean
from tests.support.runs import history, node
from tests.support.workers import eventually
from workflow import Action, Fatal, Stage, Workflow, parallel, states, workflows
from workflow.executor.execution import Execution
from workflow.models import Job, Node
from workflow.plan import RunSnapshot
from workflow.results import RunHandle
from workflow.signals import LEASE_LOST
from workflow.sql import claim as claim_sql
from workflow.store.pipeline import Rows, Statement
from workflow.store.ports import Port
from workflow.worker.process import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["clean"]

PATIENCE = 30
"""Seconds that a handler waits, at most, for what is to happen beside it."""


class Beside:
    """A handler that is at work until what follows a queued mate has happened, or for too long."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.followed = threading.Event()
        self.in_time: bool | None = None

    def queued(self, state: dict[str, Any]) -> dict[str, int]:
        self.calls.append("queued")
        return {"queued": 1}

    def follower(self, state: dict[str, Any]) -> dict[str, int]:
        self.calls.append("follower")
        self.followed.set()
        return {"seen": state["queued"]}

    def long(self, state: dict[str, Any]) -> dict[str, int]:
        self.calls.append("long")
        self.in_time = self.followed.wait(PATIENCE)
        return {"long": 1}

    async def along(self, state: dict[str, Any]) -> dict[str, int]:
        return await asyncio.to_thread(self.long, state)

    def asked(self, state: dict[str, Any]) -> bool:
        self.calls.append("asked")
        return True

    def failing(self, state: dict[str, Any]) -> None:
        self.calls.append("failing")
        raise Fatal("no")


def once_read(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Execution], Awaitable[None]]) -> None:
    """`meanwhile` happens when the run of `w` has been read again for the first time and is not planned on from yet."""
    original, read = Execution._read_again, []

    async def read_again(self: Execution) -> RunSnapshot | None:
        found = await original(self)
        if self.workflow.name == "w" and not read:
            read.append(True)
            await meanwhile(self)
        return found

    monkeypatch.setattr(Execution, "_read_again", read_again)


def run(*branches: Stage, concurrency: int = 4) -> RunHandle:
    handle = workflows.dispatch(Workflow("w", on_failure="halt", stages=[parallel(*branches)]), {})
    Worked(concurrency=concurrency)
    return handle


@pytest.mark.parametrize("kind", ["plain", "async", "atomic"])
def test_what_follows_a_queued_action_begins_while_another_branch_is_at_work(kind: str) -> None:
    beside = Beside()
    long = Action("l", beside.along if kind == "async" else beside.long, atomic=kind == "atomic")
    follower = Action("f", beside.follower, when=beside.asked)
    handle = run(
        Stage("a", actions=[Action("q", beside.queued, via="queue"), follower]), Stage("b", actions=[long])
    )
    found = handle.status()
    assert (found.run.status, beside.in_time) == (states.COMPLETED, True)
    assert found.run.state == {"queued": 1, "seen": 1, "long": 1}
    assert sorted(beside.calls) == ["asked", "follower", "long", "queued"]


def test_it_begins_once_the_whole_group_is_over() -> None:
    beside = Beside()
    pair = parallel(Action("q", beside.queued, via="queue"), Action("r", beside.queued, via="queue"))
    handle = run(
        Stage("a", actions=[pair, Action("f", beside.follower)]),
        Stage("b", actions=[Action("l", beside.long)]),
    )
    assert (handle.status().run.status, beside.in_time) == (states.COMPLETED, True)
    assert beside.calls.index("follower") > 1
    assert sorted(beside.calls) == ["follower", "long", "queued", "queued"]


def test_a_queued_action_after_another_is_added_while_another_branch_is_at_work() -> None:
    beside = Beside()
    first, second = Action("q", beside.queued, via="queue"), Action("f", beside.follower, via="queue")
    handle = run(Stage("a", actions=[first, second]), Stage("b", actions=[Action("l", beside.long)]))
    assert (handle.status().run.status, beside.in_time) == (states.COMPLETED, True)
    assert sorted(beside.calls) == ["follower", "long", "queued"]


def test_a_suspended_handler_goes_on_suspended_and_is_called_again_once() -> None:
    beside, resumed = Beside(), threading.Event()

    def suspends(state: dict[str, Any], ctx: Any) -> None:
        beside.calls.append("suspends")
        ctx.step.sleep("nap", 3)
        resumed.set()

    def long(state: dict[str, Any]) -> None:
        beside.long(state)
        resumed.wait(PATIENCE)

    handle = run(
        Stage("a", actions=[Action("q", beside.queued, via="queue"), Action("f", beside.follower)]),
        Stage("b", actions=[Action("l", long)]),
        Stage("c", actions=[Action("s", suspends)]),
    )
    assert (handle.status().run.status, beside.in_time) == (states.COMPLETED, True)
    assert sorted(beside.calls) == ["follower", "long", "queued", "suspends", "suspends"]


def test_a_branch_that_has_failed_in_the_queue_is_told_of_while_another_is_at_work() -> None:
    beside = Beside()
    told: list[str] = []

    def long(state: dict[str, Any], ctx: Any) -> None:
        while not told and not ctx.signal.wait(0.1):
            status = workflows.status(ctx.run_id)
            told.extend(n.status for n in status.nodes if n.path == "w.a" and n.status == states.FAILED)

    handle = run(
        Stage("a", actions=[Action("q", beside.failing, via="queue")]),
        Stage("b", actions=[Action("l", long, timeout=PATIENCE)]),
    )
    found = handle.status()
    assert (found.run.status, told) == (states.FAILED, [states.FAILED])
    assert node(found, "w.b.l").status == states.COMPLETED
    names = [name for name, _ in history(found)]
    assert names.index("stage.failed") < names.index("failed")


@pytest.mark.parametrize("how", ["stop", "hurry"])
def test_a_stop_while_the_run_is_read_again_spends_no_attempt(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for a thread, and what does not end in time, is given back as ever."""
    processes: list[WorkerProcess] = []
    beside, is_stopped = Beside(), threading.Event()

    async def stop(execution: Execution) -> None:
        getattr(processes[0], how)()
        is_stopped.set()
        await asyncio.sleep(0.3)

    def long(state: dict[str, Any]) -> None:
        is_stopped.wait(PATIENCE)
        time.sleep(0.6)

    async def aqueued(state: dict[str, Any]) -> dict[str, int]:
        return beside.queued(state)

    once_read(monkeypatch, stop)
    queued = [Action("q", aqueued, via="queue"), Action("f", beside.follower)]
    branches = [
        Stage("a", actions=queued),
        Stage("b", actions=[Action("l", long, attempts=1)]),
        Stage("c", actions=[Action("m", long, attempts=1)]),
    ]
    handle = workflows.dispatch(Workflow("w", on_failure="halt", stages=[parallel(*branches)]), {})
    settings = {"THREADS": 1} if how == "stop" else {}
    with override_settings(WORKFLOW={**django_settings.WORKFLOW, **settings}):
        Worked(processes.append, concurrency=4)
        assert is_stopped.is_set()
        assert handle.status().run.status == states.RUNNING
        Worked(concurrency=4)
    found = handle.status()
    assert found.run.status == states.COMPLETED
    assert [node(found, path).attempt for path in ("w.a.q", "w.a.f", "w.b.l", "w.c.m")] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"),
        psycopg.errors.FeatureNotSupported("cached plan must not change result type"),
    ],
    ids=["a migration's lock", "a plan made void"],
)
def test_a_read_that_fails_beside_what_is_at_work_costs_it_nothing(
    error: psycopg.Error, caplog: pytest.LogCaptureFixture
) -> None:
    beside, failures = Beside(), [error]

    class Failing:
        """The worker's port, which fails to read the run once."""

        def __init__(self, port: Port) -> None:
            self._port = port

        async def run(self, statements: Sequence[Statement]) -> list[Rows]:
            if failures and statements[0][0] == claim_sql.RUN:
                raise failures.pop()
            return await self._port.run(statements)

    def fail_once(process: WorkerProcess) -> None:
        process._runtime.port = Failing(process._runtime.port)  # type: ignore[assignment]

    queued = [Action("q", beside.queued, via="queue"), Action("f", beside.follower)]
    branches = Stage("a", actions=queued), Stage("b", actions=[Action("l", beside.long, attempts=1)])
    handle = workflows.dispatch(Workflow("w", on_failure="halt", stages=[parallel(*branches)]), {})
    Worked(fail_once, concurrency=4)
    assert (failures, handle.status().run.status, beside.in_time) == ([], states.COMPLETED, True)
    assert node(handle.status(), "w.b.l").attempt == 1
    assert "is read again in a moment" in caplog.text


def test_a_child_that_settles_while_the_run_is_read_again_leaves_no_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plan that is made from that reading takes it for one that has yet to begin."""
    beside = Beside()
    is_read, is_over = threading.Event(), threading.Event()

    async def until_over(execution: Execution) -> None:
        is_read.set()
        await asyncio.to_thread(is_over.wait, PATIENCE)

    def until_read(state: dict[str, Any]) -> None:
        is_read.wait(PATIENCE)

    def first(state: dict[str, Any]) -> dict[str, int]:
        # Comes before the second one, for which there is no room beside it.
        blocking = Workflow("block", stages=[Stage("s", actions=[Action("a", until_read)])])
        workflows.dispatch(blocking, {}, priority=5)
        return beside.queued(state)

    def second(state: dict[str, Any]) -> None:
        assert is_read.is_set()
        workflows.pause_queue("default")  # what is left is not claimed

    def long(state: dict[str, Any], ctx: Any) -> None:
        settled = Node.objects.filter(run_id=ctx.run_id, path="w.b.r", status=states.COMPLETED)
        eventually(settled.exists)
        is_over.set()
        beside.long(state)

    once_read(monkeypatch, until_over)
    handle = run(
        Stage("a", actions=[Action("q", first, via="queue"), Action("f", beside.follower)]),
        Stage("b", actions=[Action("r", second, via="queue", attempts=1)]),
        Stage("c", actions=[Action("l", long)]),
        concurrency=2,
    )
    assert beside.in_time
    assert [job.node_id for job in Job.objects.all()] == [Node.objects.get(path="w").pk]
    workflows.resume_queue("default")
    Worked(concurrency=2)
    assert handle.status().run.status == states.COMPLETED


def test_a_lease_that_is_lost_while_the_run_is_read_again_settles_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside, is_lost = Beside(), threading.Event()

    async def lose(execution: Execution) -> None:
        execution.abandon(LEASE_LOST)
        is_lost.set()

    def long(state: dict[str, Any]) -> None:
        is_lost.wait(PATIENCE)

    once_read(monkeypatch, lose)
    handle = run(
        Stage("a", actions=[Action("q", beside.queued, via="queue"), Action("f", beside.follower)]),
        Stage("b", actions=[Action("l", long, attempts=2, backoff=0)]),
    )
    assert is_lost.is_set()
    found = handle.status()
    assert (node(found, "w.b.l").status, node(found, "w.b.l").attempt) == (states.RUNNING, 1)
    assert beside.calls == ["queued"]


def test_a_gate_that_is_being_asked_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look ends while the run is read again, and says once more that the group is over."""
    beside = Beside()

    async def say_it_again(execution: Execution) -> None:
        execution.outdate()

    def asked(state: dict[str, Any]) -> bool:
        time.sleep(0.5)
        return beside.asked(state)

    once_read(monkeypatch, say_it_again)
    handle = run(
        Stage(
            "a", actions=[Action("q", beside.queued, via="queue"), Action("f", beside.follower, when=asked)]
        ),
        Stage("b", actions=[Action("l", beside.long)]),
    )
    assert (handle.status().run.status, beside.in_time) == (states.COMPLETED, True)
    assert sorted(beside.calls) == ["asked", "follower", "long", "queued"]
