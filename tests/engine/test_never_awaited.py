"""A call that an `async` handler forgets to await fails its action: it would never happen, and nobody would know."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction

from tests.support.runs import node, run_through
from tests.support.stepping import calls, clear, note, stepping
from workflow import Action, Fatal, Stage, Workflow
from workflow.models import Step
from workflow.results import RunStatus

__all__ = ["clear"]


def outcome(status: RunStatus) -> tuple[str, int, str, str | None]:
    """The run's status, the attempts it took, and what its action has failed of."""
    act = node(status, "w.s.act")
    assert act.error is not None
    return status.run.status, act.attempt, act.error["code"], act.error["message"]


FORGOTTEN: list[Any] = [
    (lambda ctx: ctx.step.arun("charge", note, 1), "step 'charge': ctx.step.arun"),
    (lambda ctx: ctx.step.arun(key="charge", fn=note, value=1), "step 'charge': ctx.step.arun"),
    (lambda ctx: ctx.step.asleep("nap", 5), "step 'nap': ctx.step.asleep"),
    (lambda ctx: ctx.step.await_for("poll", lambda: 1), "step 'poll': ctx.step.await_for"),
    (lambda ctx: ctx.step.await_event("paid", "payment"), "step 'paid': ctx.step.await_event"),
    (lambda ctx: ctx.step.asleep(5, 5), "step 5: ctx.step.asleep"),
    (lambda ctx: ctx.alog("hello"), "ctx.alog"),
    (lambda ctx: ctx.aprogress(5), "ctx.aprogress"),
]


@pytest.mark.parametrize(("forget", "what"), FORGOTTEN)
def test_a_call_that_is_never_awaited_fails_the_action_for_good(
    forget: Callable[[Any], Any], what: str
) -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> Any:
        forget(ctx)
        return {"done": 1}

    status = run_through(stepping(handler, attempts=5))
    assert outcome(status) == ("compensated", 1, "ACTION_FAILED", f"{what} was never awaited")
    assert (calls, Step.objects.count()) == ([], 0)


def test_one_message_tells_of_all_that_were_never_awaited() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> Any:
        await ctx.step.arun("first", note, 0)
        for number in range(3):
            ctx.step.arun(f"charge-{number}", note, number)

    message = outcome(run_through(stepping(handler)))[3]
    assert message == "step 'charge-0': ctx.step.arun was never awaited, and 2 more were not"
    assert calls == [0]


def test_a_result_that_holds_what_was_never_awaited_is_told_as_that() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> Any:
        return {"charged": ctx.step.arun("charge", note, 1)}

    assert outcome(run_through(stepping(handler)))[3] == "step 'charge': ctx.step.arun was never awaited"


@pytest.mark.parametrize("atomic", [False, True])
def test_a_plain_handler_is_told_so_too(atomic: bool) -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.alog("hello")

    assert outcome(run_through(stepping(handler, atomic=atomic)))[3] == "ctx.alog was never awaited"


def test_a_compensation_that_forgets_to_await_a_step_has_failed() -> None:
    async def undo(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.arun("refund", note, 1)

    def fail(state: dict[str, Any]) -> None:
        raise Fatal("turn back")

    actions = [Action("act", lambda state: None, compensate=undo), Action("fail", fail)]
    status = run_through(Workflow("w", stages=[Stage("s", actions=actions)]))
    act = node(status, "w.s.act").error
    assert act is not None
    assert act["message"] == "step 'refund': ctx.step.arun was never awaited"


def test_the_error_that_a_handler_has_raised_itself_wins() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.arun("charge", note, 1)
        raise Fatal("no stock")

    assert outcome(run_through(stepping(handler)))[3] == "no stock"


async def gathers(ctx: Any) -> Any:
    return await asyncio.gather(*(ctx.step.arun(f"n{number}", note, number) for number in range(200)))


async def groups(ctx: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ctx.step.arun(f"n{number}", note, number)) for number in range(200)]
    return [task.result() for task in tasks]


async def one_by_one(ctx: Any) -> Any:
    later = [ctx.step.arun(f"n{number}", note, number) for number in range(200)]
    return [await each for each in later]


@pytest.mark.parametrize("way", [gathers, groups, one_by_one])
def test_what_is_made_first_and_awaited_later_is_no_mistake(way: Callable[[Any], Any]) -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> Any:
        return await way(ctx)

    assert run_through(stepping(handler)).run.state == {"act": list(range(200))}


def test_a_task_that_has_not_begun_when_its_handler_ends_is_left_behind_and_not_forgotten() -> None:
    raised: list[str] = []

    async def wrapped(step: Any) -> None:
        await asyncio.sleep(0)
        try:
            await step
        except RuntimeError as error:
            raised.append(str(error))

    async def handler(state: dict[str, Any], ctx: Any) -> Any:
        calls.append(asyncio.create_task(wrapped(ctx.step.arun("late", note, 1))))
        return "done"

    assert run_through(stepping(handler)).run.state == {"act": "done"}
    assert raised == ["step 'late' was begun when its handler had ended already"]


def test_a_task_that_was_cancelled_before_it_began_and_a_call_that_was_closed_are_no_mistakes() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> Any:
        ctx.step.arun("closed", note, 1).close()
        task = asyncio.create_task(ctx.step.arun("cancelled", note, 2))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return "done"

    assert run_through(stepping(handler)).run.state == {"act": "done"}
    assert calls == []


def test_a_handler_may_suspend_between_a_call_and_its_await() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> Any:
        charge = ctx.step.arun("charge", note, 1)
        await ctx.step.asleep("nap", 5)
        return await charge

    assert run_through(stepping(handler), seconds=5).run.state == {"act": 1}
    assert calls == [1]


def test_a_call_that_is_never_awaited_is_told_at_the_end_of_a_handler_that_was_suspended_meanwhile() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> Any:
        ctx.step.arun("charge", note, 1)
        await ctx.step.asleep("nap", 5)

    status = run_through(stepping(handler), seconds=5)
    assert outcome(status)[3] == "step 'charge': ctx.step.arun was never awaited"


def test_a_handler_that_is_called_again_to_undo_a_step_leaves_what_it_had_not_come_to() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> Any:
        later = ctx.step.arun("later", note, "later")
        await ctx.step.arun("first", note, "first", compensate=lambda: calls.append("undone"))
        await later
        raise Fatal("turn back")

    assert run_through(stepping(handler)).run.status == "compensated"
    assert calls == ["first", "later", "undone"]


def test_the_twins_are_still_functions_of_coroutines() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> Any:
        coroutine = ctx.step.arun("one", note, 1)
        calls.append((iscoroutinefunction(ctx.step.arun), inspect.iscoroutine(coroutine)))
        await coroutine

    run_through(stepping(handler))
    assert calls == [(True, True), 1]
