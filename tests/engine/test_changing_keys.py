"""A handler whose keys change from replay to replay would do everything again for ever: it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from tests.support.runs import node, run_through
from tests.support.stepping import calls, clear, note, stepping
from workflow import Action, Fatal, Stage, WaitTimeout, Workflow, workflows
from workflow.models import Step
from workflow.results import RunStatus
from workflow.testing import advance, drain

__all__ = ["clear"]

ids = count(1)


def misses(new: str, missed: str) -> str:
    return (
        f"step {new!r}: replayed for step {missed!r}, which the handler did not come to; "
        "keys must be the same in every replay (no uuid, no time in them)"
    )


def keys() -> list[str]:
    return list(Step.objects.exclude(kind="run").order_by("id").values_list("key", flat=True))


def failure(status: RunStatus) -> tuple[int, str, str | None]:
    act = node(status, "w.s.act")
    assert act.error is not None, act
    return act.attempt, act.error["code"], act.error["message"]


def sleeps(ctx: Any) -> None:
    ctx.step.sleep(f"z{next(ids)}", 1)


def polls(ctx: Any) -> None:
    ctx.step.wait_for(f"z{next(ids)}", lambda: None, interval=1)


def times_out(ctx: Any) -> None:
    ctx.step.wait_event(f"z{next(ids)}", "never", timeout=1)


@pytest.mark.parametrize("wait", [sleeps, polls, times_out])
def test_a_wait_under_another_key_in_every_replay_fails_the_action_for_good(
    wait: Callable[[Any], None],
) -> None:
    def handler(state: dict[str, Any], ctx: Any) -> Any:
        ctx.step.run(f"charge {next(ids)}", note, "charge")
        wait(ctx)
        return {"done": 1}

    status = run_through(stepping(handler, attempts=5), seconds=2, rounds=6)
    first, second = keys()[:2]
    third = f"z{int(second[1:]) + 2}"
    assert failure(status) == (1, "ACTION_FAILED", misses(third, second))
    assert (calls, first[:1]) == (["charge"] * 3, "z")


def test_it_does_so_when_an_event_has_woken_it() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        calls.append("called")
        ctx.step.wait_event(f"z{next(ids)}", "paid", timeout=None)

    handle = workflows.dispatch(stepping(handler), {})
    for _ in range(6):
        drain(handle.run_id)
        workflows.publish("paid", 1)
        drain()
    assert failure(handle.status())[1] == "ACTION_FAILED"
    assert calls == ["called"] * 3


@pytest.mark.parametrize("is_async", [False, True])
def test_waits_before_and_beside_that_keep_their_keys_hide_no_wait_that_does_not(is_async: bool) -> None:
    def plain(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.sleep("stable", 1)
        calls.append("called")
        sleeps(ctx)

    async def coroutine(state: dict[str, Any], ctx: Any) -> None:
        await ctx.step.asleep("stable", 1)
        calls.append("called")
        await asyncio.gather(
            ctx.step.asleep(f"z{next(ids)}", 1),
            ctx.step.await_event("beside", "never"),
            ctx.step.asleep(f"y{next(ids)}", 100),
        )

    status = run_through(stepping(coroutine if is_async else plain), seconds=2, rounds=10)
    assert failure(status)[1] == "ACTION_FAILED"
    assert len(calls) <= 5


def test_a_compensation_is_stopped_too() -> None:
    def undo(state: dict[str, Any], ctx: Any) -> None:
        calls.append("called")
        sleeps(ctx)

    def fail(state: dict[str, Any]) -> None:
        raise Fatal("turn back")

    actions = [
        Action("act", lambda state: None, compensate=undo, compensate_attempts=5),
        Action("fail", fail),
    ]
    status = run_through(Workflow("w", stages=[Stage("s", actions=actions)]), seconds=2, rounds=6)
    assert status.run.error is not None
    assert len(status.run.error["compensation_failures"]) == 1
    assert calls == ["called"] * 3


def test_a_key_that_changes_with_the_code_makes_its_handler_wait_once_more_and_go_on() -> None:
    prefix = ["old"]

    def handler(state: dict[str, Any], ctx: Any) -> Any:
        for name in "abc":
            ctx.step.sleep(f"{prefix[0]}-{name}", 1)
        return "done"

    handle = workflows.dispatch(stepping(handler), {})
    for _ in range(3):
        drain(handle.run_id)
        advance(1)
    prefix[0] = "new"
    for _ in range(4):
        drain(handle.run_id)
        advance(1)
    assert handle.status().run.state == {"act": "done"}
    assert len(keys()) == 6


def test_another_attempt_may_wait_for_something_else() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> Any:
        for number in range(3):
            ctx.step.sleep(f"{ctx.attempt}-{number}", 1)
        if ctx.attempt < 3:
            raise RuntimeError("once more")
        return "done"

    status = run_through(stepping(handler, attempts=3, backoff=1), seconds=1, rounds=15)
    assert status.run.state == {"act": "done"}


def test_waits_that_a_handler_leaves_out_once_they_are_over_are_no_mistake() -> None:
    """Each round has a limit, which is looked after only until the event has come."""

    async def handler(state: dict[str, Any], ctx: Any) -> Any:
        for number in range(4):
            event = asyncio.create_task(ctx.step.await_event(f"event-{number}", "paid"))
            if not (await asyncio.wait({event}, timeout=0.1))[0]:
                limits = [asyncio.create_task(ctx.step.asleep(f"{n}-{number}", 1)) for n in ("a", "b")]
                await asyncio.wait({event, *limits})
        return "done"

    handle = workflows.dispatch(stepping(handler), {})
    for _ in range(4):
        drain(handle.run_id)
        workflows.publish("paid", 1)
        advance(2)
        drain()
    drain(handle.run_id)
    assert handle.status().run.state == {"act": "done"}


def test_waits_under_keys_of_their_attempt_are_no_mistake() -> None:
    """Each attempt misses the pause of the one before, which is no business of its own."""

    def handler(state: dict[str, Any], ctx: Any) -> Any:
        try:
            return ctx.step.wait_event("paid", "order.paid", timeout=1)
        except WaitTimeout:
            ctx.step.sleep(f"pause-{ctx.attempt}", 1)
            raise

    status = run_through(stepping(handler, attempts=5, backoff=0), seconds=2, rounds=14)
    assert failure(status)[:2] == (5, "WAIT_TIMEOUT")
    assert keys() == ["paid", *(f"pause-{number}" for number in range(1, 6))]


def test_branches_that_race_to_their_first_waits_are_no_mistake() -> None:
    turn = count(0)

    async def handler(state: dict[str, Any], ctx: Any) -> Any:
        first = next(turn) % 2

        async def branch(name: str, *, slow: bool) -> None:
            if slow:
                await asyncio.sleep(0.2)
            for number in range(3):
                await ctx.step.asleep(f"{name}-{number}", 1)

        await asyncio.gather(branch("a", slow=first == 0), branch("b", slow=first == 1))
        return "done"

    status = run_through(stepping(handler), seconds=1, rounds=12)
    assert status.run.state == {"act": "done"}
