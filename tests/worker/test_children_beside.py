"""What follows children with jobs of their own does not wait for what their parent's unit has at work beside them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.support.moving import Worked, clean
from tests.support.runs import history, node
from workflow import Action, Fatal, Stage, Workflow, parallel, states, workflows
from workflow.results import RunHandle

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
