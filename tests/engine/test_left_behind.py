"""Waits that their handler has left behind: they are closed with it, and take no event from a later wait."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from tests.support.invariants import AT_REST
from workflow import Action, Fatal, Retry, Stage, WaitFor, Workflow, parallel, workflows
from workflow.models import Event, Step
from workflow.registry import registry
from workflow.testing import advance, drain

got: list[Any] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    got.clear()


async def quick() -> str:
    await asyncio.sleep(0.05)
    return "done"


async def broken() -> None:
    await asyncio.sleep(0.05)
    raise Fatal("broken")


async def first_of(state: Any, ctx: Any) -> dict[str, Any]:
    """Whichever comes first: an event, or a step. The other one is left behind."""
    event = asyncio.create_task(ctx.step.await_event("event", "paid", correlate="k"))
    work = asyncio.create_task(ctx.step.arun("work", quick, compensate=lambda: got.append("undone")))
    _, others = await asyncio.wait({event, work}, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    return {}


async def fails(state: Any, ctx: Any) -> None:
    """A step fails while another one waits."""
    await asyncio.gather(
        ctx.step.await_event("event", "paid", correlate="k"), ctx.step.arun("broken", broken)
    )


def naps(state: Any, ctx: Any) -> None:
    ctx.step.sleep("nap", 10)


def waits(state: Any, ctx: Any) -> None:
    got.append(ctx.step.wait_event("later", "paid", correlate="k"))


def stage(name: str, *actions: Any) -> Stage:
    return Stage(name, actions=list(actions))


def begun(*stages: Stage, **options: Any) -> Any:
    handle = workflows.dispatch(Workflow("w", stages=list(stages), **options), {"k": "K"})
    drain(handle.run_id)
    return handle


def paid(amount: int) -> None:
    workflows.publish("paid", amount, correlation="K")
    drain()


def after_ten_seconds(handle: Any) -> Any:
    advance(10)
    drain(handle.run_id)
    drain()
    drain(handle.run_id)
    return handle.status().run


def at_rest() -> None:
    with connection.cursor() as cursor:
        cursor.execute(AT_REST["nothing is open in a ledger whose handler is over for good"])
        assert cursor.fetchall() == []


def row(key: str) -> Step:
    return Step.objects.get(key=key)


@pytest.mark.parametrize(
    "later",
    [Stage("wait", wait_for=WaitFor("paid", correlate="k", timeout=100)), stage("wait", Action("a", waits))],
    ids=["a stage", "a step"],
)
def test_an_event_that_comes_before_a_later_wait_is_that_ones(later: Stage) -> None:
    handle = begun(stage("s", Action("first", first_of)), stage("n", Action("naps", naps)), later)
    left = row("event")
    assert (left.status, left.wait_event) == ("failed", None)
    assert left.error["message"] == "the action was over before this step was"
    paid(7)
    assert not Event.objects.get().taken
    assert after_ten_seconds(handle).status == "completed"
    assert Event.objects.get().taken
    at_rest()


def test_an_event_is_not_taken_from_the_compensation_of_another_action() -> None:
    def undo(state: Any, ctx: Any) -> None:
        ctx.step.sleep("nap", 10)
        waits(state, ctx)

    done = Action("done", lambda state: None, compensate=undo)
    handle = begun(stage("s", done, Action("fails", fails)))
    assert (row("event").status, row("event").error["code"]) == ("failed", "ACTION_FAILED")
    paid(7)
    assert (after_ten_seconds(handle).status, got) == ("compensated", [7])
    at_rest()


@pytest.mark.parametrize("ends", ["completes", "fails"])
def test_what_a_compensation_leaves_behind_takes_nothing_from_the_next_one(ends: str) -> None:
    async def undo(state: Any, ctx: Any) -> None:
        if ends == "completes":
            await first_of_undo(ctx)
        else:
            await fails(state, ctx)

    async def first_of_undo(ctx: Any) -> None:
        event = asyncio.create_task(ctx.step.await_event("event", "paid", correlate="k"))
        await ctx.step.arun("work", quick)
        event.cancel()

    def undo_before(state: Any, ctx: Any) -> None:
        ctx.step.sleep("nap", 10)
        waits(state, ctx)

    def fail(state: Any) -> None:
        raise Fatal("turn back")

    actions = [
        Action("before", lambda state: None, compensate=undo_before),
        Action("after", lambda state: None, compensate=undo),
        Action("fail", fail),
    ]
    handle = begun(stage("s", *actions))
    assert row("event").status == "failed"
    paid(7)
    assert (after_ten_seconds(handle).status, got) == ("compensated", [7])
    at_rest()


def test_what_has_failed_for_good_takes_no_event_from_its_mate_and_goes_on_when_it_is_retried() -> None:
    """Its wait is kept for a retry: it is not closed, but passed by."""
    healed = False

    async def heals(state: Any, ctx: Any) -> None:
        if healed:
            got.append(("retried", await ctx.step.await_event("event", "paid", correlate="k")))
        else:
            await fails(state, ctx)

    def mate(state: Any, ctx: Any) -> None:
        ctx.step.sleep("nap", 10)
        waits(state, ctx)

    members = parallel(Action("heals", heals), Action("mate", mate))
    handle = begun(stage("s", members), on_failure="halt")
    deadline = row("event").deadline
    paid(7)
    assert (after_ten_seconds(handle).status, got) == ("failed", [7])
    assert row("event").status == "waiting"
    healed = True
    workflows.retry(handle.run_id)
    drain(handle.run_id)
    assert got == [7]
    assert row("event").deadline == deadline - timedelta(seconds=10)  # as `advance` has it
    paid(8)
    drain(handle.run_id)
    assert (handle.status().run.status, got) == ("completed", [7, ("retried", 8)])
    at_rest()


def test_an_attempt_that_is_made_again_keeps_its_wait() -> None:
    async def once_more(state: Any, ctx: Any) -> None:
        if ctx.attempt == 1:
            event = asyncio.create_task(ctx.step.await_event("event", "paid", correlate="k"))
            await ctx.step.arun("work", quick)
            event.cancel()
            raise Retry(delay=10)
        got.append(await ctx.step.await_event("event", "paid", correlate="k"))

    handle = begun(stage("s", Action("a", once_more)))
    assert row("event").status == "waiting"
    paid(7)
    assert row("event").status == "completed"
    assert (after_ten_seconds(handle).status, got) == ("completed", [7])


@pytest.mark.parametrize("atomic", [False, True])
def test_an_attempt_that_does_not_look_closes_what_an_earlier_one_has_left(atomic: bool) -> None:
    def plain(state: Any) -> None:
        """What newer code does instead."""

    async def leaves(state: Any, ctx: Any) -> None:
        event = asyncio.create_task(ctx.step.await_event("event", "paid", correlate="k"))
        await ctx.step.arun("work", quick)
        event.cancel()
        raise Retry(delay=10)

    handle = begun(stage("s", Action("a", leaves)), stage("t", Action("naps", naps)))
    assert row("event").status == "waiting"
    registry.clear()
    newer = [stage("s", Action("a", plain, atomic=atomic)), stage("t", Action("naps", naps))]
    registry.register(Workflow("w", stages=newer))
    after_ten_seconds(handle)
    assert row("event").status == "failed"
    at_rest()


def test_a_step_of_such_a_handler_is_undone_still() -> None:
    def fail(state: Any) -> None:
        raise Fatal("turn back")

    handle = begun(stage("s", Action("first", first_of), Action("fail", fail)))
    assert (handle.status().run.status, got) == ("compensated", ["undone"])
    assert handle.status().run.error.get("compensation_failures") is None
