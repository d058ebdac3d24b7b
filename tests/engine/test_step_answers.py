"""Steps that wait, answered by hand or by an event that comes at an awkward moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import rows
from tests.support.runs import PATIENCE, history, names, node, staged
from workflow import Action, Fatal, RunConflict, Stage, WaitFor, WaitTimeout, Workflow, parallel, workflows
from workflow.models import Job, Run, RunEvent, Step
from workflow.results import RunHandle
from workflow.testing import advance, drain


def started(definition: Workflow, data: Any = None) -> RunHandle:
    handle = workflows.dispatch(definition, data or {})
    go_on(handle)
    return handle


def go_on(handle: RunHandle) -> None:
    drain(handle.run_id, timeout=PATIENCE)


def answers(handle: RunHandle) -> list[tuple[str | None, Any]]:
    """Who answered what, by the history."""
    entries = RunEvent.objects.filter(run_id=handle.run_id, name="log").order_by("seq")
    return [(entry.node, entry.data) for entry in entries]


def told(key: str, by: str | None = None) -> dict[str, Any]:
    return {"message": "step answered", "fields": {"step": key}, "by": by}


def waits_for_event(state: dict[str, Any], ctx: Any) -> Any:
    return ctx.step.wait_event("paid", "payment", correlate="id")


async def awaits_event(state: dict[str, Any], ctx: Any) -> Any:
    return await ctx.step.await_event("paid", "payment", correlate="id")


def polls(state: dict[str, Any], ctx: Any) -> Any:
    return ctx.step.wait_for("paid", lambda: None, interval=600)


async def apolls(state: dict[str, Any], ctx: Any) -> Any:
    return await ctx.step.await_for("paid", lambda: None, interval=600)


@pytest.mark.parametrize("handler", [waits_for_event, awaits_event, polls, apolls])
@pytest.mark.parametrize("via", ["inline", "queue"])
def test_a_step_that_waits_is_answered_by_hand(handler: Callable[..., Any], via: Any) -> None:
    handle = started(staged(Action("act", handler, via=via)), {"id": "x"})
    assert handle.status().run.status == "running"
    workflows.resume(handle.run_id, {"cents": 5}, by="ann")
    (row,) = Step.objects.all()
    assert (row.status, row.value, row.wait_event, row.wait_correlation) == (
        "completed",
        {"cents": 5},
        None,
        None,
    )
    go_on(handle)
    status = handle.status()
    assert (status.run.status, status.run.state) == ("completed", {"id": "x", "cents": 5})
    assert node(status, "w.s.act").attempt == 1
    assert answers(handle) == [("w.s.act", told("paid", "ann"))]
    assert names(status) == [
        "started",
        "action.started",
        "waiting",
        "log",
        "resumed",
        "action.completed",
        "stage.completed",
        "completed",
    ]
    assert Job.objects.filter(run_id=handle.run_id).count() == 0


@pytest.mark.parametrize("payload", [None, 0, "", [], {"a": [None]}, "null"])
def test_any_payload_is_what_the_step_returns(payload: Any) -> None:
    seen = []

    def handler(state: dict[str, Any], ctx: Any) -> None:
        seen.append(ctx.step.wait_event("e", "tick"))

    handle = started(staged(Action("act", handler)))
    workflows.resume(handle.run_id, payload)
    go_on(handle)
    assert seen == [payload]


def test_a_sleep_is_not_cut_short() -> None:
    handle = started(staged(Action("act", lambda state, ctx: ctx.step.sleep("nap", 60))))
    with pytest.raises(RunConflict, match="not parked"):
        workflows.resume(handle.run_id)
    assert answers(handle) == []
    advance(60)
    go_on(handle)
    assert handle.status().run.status == "completed"


def test_a_second_answer_is_refused_also_before_the_handler_goes_on() -> None:
    handle = started(staged(Action("act", waits_for_event)), {"id": "x"})
    workflows.resume(handle.run_id, 1)
    with pytest.raises(RunConflict, match="not parked"):
        workflows.resume(handle.run_id, 2)
    go_on(handle)
    assert handle.status().run.state == {"id": "x", "act": 1}
    with pytest.raises(RunConflict, match="completed"):
        workflows.resume(handle.run_id, 3)


def test_an_event_that_comes_after_the_answer_is_left_for_the_next_wait() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> Any:
        return [ctx.step.wait_event(key, "tick", correlate="id") for key in ("a", "b")]

    handle = started(staged(Action("act", handler)), {"id": "x"})
    workflows.resume(handle.run_id, "by hand")
    workflows.publish("tick", "by event", correlation="x")
    go_on(handle)
    assert handle.status().run.state["act"] == ["by hand", "by event"]


def test_an_answer_that_comes_after_the_event_is_refused() -> None:
    handle = started(staged(Action("act", waits_for_event)), {"id": "x"})
    workflows.publish("payment", "by event", correlation="x")
    drain(timeout=PATIENCE)
    with pytest.raises(RunConflict):
        workflows.resume(handle.run_id, "by hand")
    assert handle.status().run.state["act"] == "by event"


def test_an_answer_that_comes_after_the_deadline_but_before_anybody_looked_counts() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> Any:
        return ctx.step.wait_event("e", "tick", timeout=30)

    handle = started(staged(Action("act", handler)))
    advance(60)
    workflows.resume(handle.run_id, "late")
    go_on(handle)
    assert handle.status().run.state == {"act": "late"}


def test_after_the_timeout_there_is_nothing_to_answer() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> Any:
        try:
            return ctx.step.wait_event("e", "tick", timeout=30)
        except WaitTimeout:
            ctx.step.sleep("nap", 60)
            return "timeout"

    handle = started(staged(Action("act", handler)))
    advance(31)
    go_on(handle)
    with pytest.raises(RunConflict):
        workflows.resume(handle.run_id, "too late")
    advance(60)
    go_on(handle)
    assert handle.status().run.state == {"act": "timeout"}


def test_waits_of_every_kind_are_answered_at_once() -> None:
    definition = Workflow(
        "many",
        stages=[
            parallel(
                Stage("stage", wait_for=WaitFor("nothing")),
                Stage("one", actions=[Action("event", waits_for_event)]),
                Stage("two", actions=[Action("poll", polls, via="queue")]),
            )
        ],
    )
    handle = started(definition, {"id": "x"})
    assert Run.objects.get().status == "running"
    workflows.resume(handle.run_id, 7, by="ann")
    assert [path for path, _ in answers(handle)] == ["many.one.event", "many.two.poll"]
    go_on(handle)
    status = handle.status()
    assert (status.run.status, status.run.state) == (
        "completed",
        {"id": "x", "stage": 7, "event": 7, "poll": 7},
    )
    assert ("resumed", "many.stage") in history(status)


def test_a_compensation_that_waits_is_answered_too() -> None:
    undone = []

    def undo(state: dict[str, Any], ctx: Any) -> None:
        undone.append(ctx.step.wait_event("refunded", "refund", correlate="id"))

    def fail(state: dict[str, Any]) -> None:
        raise Fatal("no")

    handle = started(
        staged(Action("act", lambda state: None, compensate=undo), Action("fail", fail)), {"id": "x"}
    )
    assert handle.status().run.status == "compensating"
    workflows.resume(handle.run_id, "in cash", by="ann")
    assert handle.status().run.status == "compensating"
    assert answers(handle) == [("w.s.act", told("refunded", "ann"))]
    go_on(handle)
    assert undone == ["in cash"]
    assert handle.status().run.status == "compensated"
    assert node(handle.status(), "w.s.act").status == "compensated"


@pytest.mark.parametrize("via", ["inline", "queue"])
def test_an_event_that_comes_while_the_handler_is_called_again_wakes_it(via: Any) -> None:
    """A retried run has a row that waits already: the handler has read it when the event comes, then parks on it."""
    rounds = []

    def handler(state: dict[str, Any], ctx: Any) -> Any:
        rounds.append(ctx.attempt)
        ctx.step.run("before", lambda: None)
        if len(rounds) == 2:
            workflows.publish("tick", "just then", correlation="x")
            drain(timeout=PATIENCE)
        return ctx.step.wait_event("e", "tick", correlate="id")

    handle = started(staged(Action("act", handler, via=via)), {"id": "x"})
    rows.end(handle.run_id, "failed", rows.fault("w.s.act"))  # as one that the engine could not go on with
    workflows.retry(handle.run_id)
    go_on(handle)
    assert handle.status().run.state["act"] == "just then"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", ["event", "poll"])
def test_a_timeout_that_the_handler_caught_is_one_again_when_it_is_replayed(
    kind: str, is_async: bool
) -> None:
    """And is not waited for anew, with its whole timeout."""
    timeouts = []

    def plain(state: dict[str, Any], ctx: Any) -> str:
        try:
            if kind == "event":
                ctx.step.wait_event("e", "tick", timeout=30)
            else:
                ctx.step.wait_for("e", lambda: None, timeout=30, interval=30)
        except WaitTimeout as error:
            timeouts.append(str(error))
        ctx.step.sleep("nap", 10)
        return str(ctx.step.wait_event("f", "tock"))

    async def coroutine(state: dict[str, Any], ctx: Any) -> str:
        try:
            if kind == "event":
                await ctx.step.await_event("e", "tick", timeout=30)
            else:
                await ctx.step.await_for("e", lambda: None, timeout=30, interval=30)
        except WaitTimeout as error:
            timeouts.append(str(error))
        await ctx.step.asleep("nap", 10)
        return str(await ctx.step.await_event("f", "tock"))

    handle = started(staged(Action("act", coroutine if is_async else plain)))
    for seconds in (31, 11):
        advance(seconds)
        go_on(handle)
    workflows.publish("tock", 5)
    drain(timeout=PATIENCE)
    assert handle.status().run.state == {"act": "5"}
    assert len(timeouts) == 3
    assert len(set(timeouts)) == 1


def test_the_next_attempt_waits_anew_and_so_does_a_retried_run() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> Any:
        return ctx.step.wait_event("e", "tick", timeout=30)

    handle = started(staged(Action("act", handler, attempts=2, backoff=0), on_failure="halt"))
    for _ in range(2):
        assert handle.status().run.status == "running"
        advance(31)
        go_on(handle)
    assert handle.status().run.status == "failed"
    workflows.retry(handle.run_id)
    go_on(handle)
    assert handle.status().run.status == "running"
    workflows.publish("tick", 5)
    drain(timeout=PATIENCE)
    assert handle.status().run.state == {"act": 5}
