"""A plain wrapper around an async function looks plain until it is called: its answer counts all the same."""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.moving import Worked
from tests.support.runs import node
from workflow import Action, Stage, WaitFor, Workflow, states, workflows
from workflow.errors import FailureCode
from workflow.models import Node, Step
from workflow.results import RunHandle, RunStatus
from workflow.testing import drain

pytestmark = pytest.mark.django_db(transaction=True)

Go = Callable[[RunHandle], RunStatus]


def by_worker(handle: RunHandle) -> RunStatus:
    Worked()
    return handle.status()


def by_drain(handle: RunHandle) -> RunStatus:
    drain(handle.run_id)
    return handle.status()


@pytest.fixture(params=[by_drain, by_worker])
def go(request: pytest.FixtureRequest) -> Go:
    found: Go = request.param
    return found


def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return inner


@wrapped
async def no(state: dict[str, Any]) -> bool:
    return False


@wrapped
async def refuse(state: dict[str, Any]) -> None:
    raise ValueError("not today")


@wrapped
async def key(state: dict[str, Any]) -> str:
    return str(state["key"])


@wrapped
async def order(event: Any) -> dict[str, Any]:
    return {"order": event.payload["id"]}


@pytest.mark.parametrize("of_stage", [False, True])
def test_its_no_is_a_no(go: Go, of_stage: bool) -> None:
    called: list[str] = []
    act = Action("act", lambda state: called.append("act"), when=None if of_stage else no)
    stage = Stage("s", actions=[act], when=no if of_stage else None)
    status = go(workflows.dispatch(Workflow("w", stages=[stage]), {}))
    assert (called, status.run.status) == ([], states.COMPLETED)
    assert node(status, "w.s" if of_stage else "w.s.act").status == states.SKIPPED


def test_what_its_precheck_raises_fails_the_node(go: Go) -> None:
    called: list[str] = []
    act = Action("act", lambda state: called.append("act"), precheck=refuse)
    status = go(workflows.dispatch(Workflow("w", stages=[Stage("s", actions=[act])]), {}))
    error = node(status, "w.s.act").error
    assert error is not None
    assert (called, error["code"], error["message"]) == ([], FailureCode.PRECHECK_FAILED, "not today")


def test_its_correlation_and_what_it_picks_count(go: Go) -> None:
    stage = Stage("wait", wait_for=WaitFor("go", correlate=key, pick=order))
    handle = workflows.dispatch(Workflow("w", stages=[stage]), {"key": "k"})
    go(handle)
    assert Node.objects.get(run_id=handle.run_id, path="w.wait").wait_correlation == "k"
    workflows.publish("go", {"id": 7}, correlation="k")
    status = go(handle)
    assert (status.run.status, status.run.state) == (states.COMPLETED, {"key": "k", "order": 7})


@pytest.mark.parametrize("is_async", [False, True])
def test_its_correlation_of_a_step_counts(go: Go, is_async: bool) -> None:
    def plain(state: dict[str, Any], ctx: Any) -> Any:
        return {"got": ctx.step.wait_event("e", "go", correlate=key)}

    async def coroutine(state: dict[str, Any], ctx: Any) -> Any:
        return {"got": await ctx.step.await_event("e", "go", correlate=key)}

    act = Action("act", coroutine if is_async else plain, attempts=1)
    handle = workflows.dispatch(Workflow("w", stages=[Stage("s", actions=[act])]), {"key": "k"})
    go(handle)
    assert Step.objects.get(key="e").wait_correlation == "k"
    workflows.publish("go", 7, correlation="k")
    assert go(handle).run.state == {"key": "k", "got": 7}


def _awaited(fn: Callable[..., Any]) -> Callable[..., Any]:
    def plain(state: dict[str, Any], ctx: Any) -> Any:
        return asyncio.run(fn(state, ctx))

    return plain


@pytest.mark.parametrize("how", [wrapped, _awaited])
def test_its_steps_go_through_the_workers_own_loop(how: Callable[..., Any]) -> None:
    async def steps(state: dict[str, Any], ctx: Any) -> None:
        for n in range(10):
            await ctx.step.arun(f"step-{n}", asyncio.sleep, 0.001)

    act = Action("act", how(steps), attempts=1, timeout=5)
    workflow = Workflow("w", on_failure="halt", stages=[Stage("s", actions=[act])])
    handles = workflows.dispatch_many(workflow, [{}] * 12)
    Worked(concurrency=20)  # all at once: each has a loop of its own, and one connection to settle on
    assert [handle.status().run.error for handle in handles] == [None] * 12
    assert {handle.status().run.status for handle in handles} == {states.COMPLETED}


def test_what_has_ended_leaves_no_loop_behind(go: Go) -> None:
    left: list[int] = []

    def act(state: dict[str, Any], ctx: Any) -> None:
        loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

        async def step() -> None:
            loops.append(weakref.ref(asyncio.get_running_loop()))

        for n in range(5):
            ctx.step.run(f"step-{n}", step)
        gc.collect()
        left.append(sum(loop() is not None for loop in loops))

    status = go(workflows.dispatch(Workflow("w", stages=[Stage("s", actions=[Action("act", act)])]), {}))
    assert (status.run.status, left) == (states.COMPLETED, [0])
