"""`ctx.step.run(..., compensate=)`: a step takes its own place in the walk back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel, model_validator

from tests.support.runs import names, node, run_through, staged
from workflow import Action, Fatal, Stage, WaitTimeout, Workflow, parallel, workflows
from workflow.errors import PayloadInvalid
from workflow.models import RunEvent, Step
from workflow.testing import advance, drain

undone: list[Any] = []
done: list[Any] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    undone.clear()
    done.clear()


def do(value: Any) -> Any:
    done.append(value)
    return value


def bad(state: dict[str, Any]) -> None:
    raise Fatal("no")


def booking(state: dict[str, Any], ctx: Any) -> None:
    """Two steps that can be undone, and one between them that cannot."""
    ctx.step.run("hotel", do, "hotel 1", compensate=undone.append)
    ctx.step.run("mail", do, "mail 2")
    ctx.step.run("car", do, "car 3", compensate=undone.append)


def test_steps_of_a_completed_action_are_undone_newest_first_with_their_results() -> None:
    status = run_through(staged(Action("book", booking), Action("bad", bad)))
    assert status.run.status == "compensated"
    assert undone == ["car 3", "hotel 1"]
    assert done == ["hotel 1", "mail 2", "car 3"]


def test_steps_of_the_action_that_failed_are_undone_too() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        booking(state, ctx)
        raise Fatal("after all of it")

    status = run_through(staged(Action("book", handler, compensate=lambda state: undone.append("never"))))
    assert undone == ["car 3", "hotel 1"]
    assert node(status, "w.s.book").status == "failed"
    assert status.run.error is not None
    assert "after all of it" in status.run.error["message"]


def test_a_validator_that_has_a_bad_moment_does_not_end_the_way_back() -> None:
    moments = ["fine", "bad", "fine"]

    class Moody(BaseModel):
        @model_validator(mode="after")
        def check(self) -> Any:
            if moments.pop(0) == "bad":
                raise ConnectionError("gone for a moment")
            return self

    act = Action(
        "book", lambda given, ctx: ctx.step.run("a", do, 1, compensate=undone.append), input=Moody, backoff=0
    )
    status = run_through(staged(act, Action("bad", bad)))
    assert (status.run.status, undone, moments) == ("compensated", [1], [])
    assert "action.compensation_failed" not in names(status)


def test_an_action_is_undone_before_its_steps() -> None:
    booked = Action("book", booking, compensate=lambda state: undone.append("book"))
    run_through(staged(booked, Action("bad", bad)))
    assert undone == ["book", "car 3", "hotel 1"]


def test_a_step_keeps_its_place_between_other_actions() -> None:
    """`slow` does its first step, then sleeps; `quick` completes; `slow` does its second step and completes."""

    def slow(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("early", do, "early", compensate=undone.append)
        ctx.step.sleep("nap", 60)
        ctx.step.run("late", do, "late", compensate=undone.append)

    group = parallel(
        Action("slow", slow),
        Action("quick", lambda state: None, compensate=lambda state: undone.append("quick")),
    )
    definition = Workflow(
        "walk", stages=[Stage("both", actions=[group]), Stage("end", actions=[Action("bad", bad)])]
    )
    handle = workflows.dispatch(definition, {})
    drain(handle.run_id)
    advance(61)
    drain(handle.run_id)
    assert handle.status().run.status == "compensated"
    assert undone == ["late", "quick", "early"]


def test_what_a_compensation_takes_is_what_it_is_given() -> None:
    keys: list[str] = []

    def handler(state: dict[str, Any], ctx: Any) -> None:
        bound = "bound"
        ctx.step.run("none", do, 1, compensate=lambda: undone.append("none"))
        ctx.step.run("one", do, 2, compensate=lambda value, bound=bound: undone.append((value, bound)))
        ctx.step.run(
            "two", do, 3, compensate=lambda value, ctx: undone.append((value, ctx.attempt, ctx.path))
        )
        ctx.step.run("keys", do, 4, compensate=lambda _, ctx: keys.append(ctx.idempotency_key))
        ctx.step.run("more", do, 5, compensate=lambda _, ctx: keys.append(ctx.idempotency_key))
        raise Fatal("no")

    status = run_through(staged(Action("act", handler)))
    assert undone == [(3, 1, node(status, "w.s.act").path), (2, "bound"), "none"]
    assert len(set(keys)) == 2


def test_async_handlers_and_async_compensations() -> None:
    async def cancel(value: Any) -> None:
        await asyncio.sleep(0)
        undone.append(value)

    async def handler(state: dict[str, Any], ctx: Any) -> None:
        await ctx.step.arun("plain", do, 1, compensate=undone.append)
        await ctx.step.arun("async", do, 2, compensate=cancel)
        raise Fatal("no")

    def plain(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("third", do, 0, compensate=cancel)

    run_through(staged(Action("plain", plain), Action("act", handler)))
    assert undone == [2, 1, 0]


def test_a_step_that_did_not_complete_is_not_undone() -> None:
    def boom() -> None:
        raise RuntimeError("in the body")

    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("done", do, 1, compensate=undone.append)
        ctx.step.run("boom", boom, compensate=undone.append)

    run_through(staged(Action("act", handler, attempts=1)))
    assert undone == [1]


def test_the_handler_is_led_back_through_sleeps_waits_and_its_first_state() -> None:
    def first(state: dict[str, Any]) -> dict[str, Any]:
        return {"route": "left"}

    def handler(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
        assert state["route"] == "left"
        ctx.step.sleep("nap", 5)
        try:
            ctx.step.wait_event("answer", "never", timeout=5)
        except WaitTimeout:
            answer = "late"
        seen = ctx.step.wait_for("poll", lambda: "seen")
        ctx.step.run(state["route"], do, [answer, seen], compensate=undone.append)
        return {"route": "right"}

    definition = staged(Action("first", first), Action("act", handler), Action("bad", bad))
    handle = workflows.dispatch(definition, {})
    for _ in range(3):
        drain(handle.run_id)
        advance(6)
    drain(handle.run_id)
    assert handle.status().run.status == "compensated"
    assert undone == [["late", "seen"]]


def test_what_the_replay_reports_is_not_kept_and_what_the_compensation_reports_is() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.log("on the way")
        ctx.progress(50)
        ctx.step.run("step", do, 1, compensate=lambda _, ctx: ctx.log("back"))
        raise Fatal("no")

    status = run_through(staged(Action("act", handler)))
    logged = [
        e.data["message"] for e in RunEvent.objects.filter(run_id=status.run.id, name="log").order_by("seq")
    ]
    assert logged == ["on the way", "back", "step step compensated"]
    assert names(status).count("action.progress") <= 1


def test_a_compensation_that_fails_is_tried_again_and_then_undone_once() -> None:
    def shaky(value: Any, ctx: Any) -> None:
        undone.append(ctx.attempt)
        if ctx.attempt < 3:
            raise RuntimeError("not yet")

    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("first", do, 1, compensate=lambda: undone.append("first"))
        ctx.step.run("step", do, 1, compensate=shaky)
        raise Fatal("no")

    status = run_through(
        staged(Action("act", handler, backoff=2, compensate_attempts=3)), seconds=10, rounds=2
    )
    assert status.run.status == "compensated"
    assert undone == [1, 2, 3, "first"]
    assert status.run.error is not None
    assert "compensation_failures" not in status.run.error


def test_one_that_fails_for_good_is_recorded_and_stops_nothing() -> None:
    def never(value: Any) -> None:
        raise RuntimeError("never")

    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("first", do, 1, compensate=undone.append)
        ctx.step.run("second", do, 2, compensate=never)
        ctx.step.run("third", do, 3, compensate=never)
        raise Fatal("the reason")

    status = run_through(staged(Action("act", handler, backoff=0, compensate_attempts=2)))
    path = node(status, "w.s.act").path
    assert status.run.status == "compensated"
    assert undone == [1]
    assert status.run.error is not None
    assert status.run.error["compensation_failures"] == [path]
    failures = RunEvent.objects.filter(run_id=status.run.id, name="action.compensation_failed").order_by(
        "seq"
    )
    assert [(e.node, e.data["step"], e.data["attempt"]) for e in failures] == [
        (path, "third", 2),
        (path, "second", 2),
    ]
    assert failures[0].data["error"]["message"] == "never"
    row = Step.objects.get(run_id=status.run.id, phase="undo", key="second")
    assert (row.status, row.error["code"]) == ("failed", "COMPENSATION_FAILED")


def test_a_handler_that_does_not_come_to_the_step_again_fails_its_compensation_once() -> None:
    way = {"changed": False}

    def handler(state: dict[str, Any], ctx: Any) -> None:
        if not way["changed"]:
            ctx.step.run("first", do, 1, compensate=undone.append)
            way["changed"] = True
            raise Fatal("no")
        ctx.step.run("new", do, 2)

    status = run_through(staged(Action("act", handler)))
    assert status.run.status == "compensated"
    assert done == [1]
    (failure,) = RunEvent.objects.filter(run_id=status.run.id, name="action.compensation_failed")
    assert failure.data["attempt"] == 1
    assert "step 'first' cannot be undone" in failure.data["error"]["message"]
    assert "'new'" in failure.data["error"]["message"]


def test_a_cancelled_run_that_is_to_be_undone_undoes_its_steps() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("first", do, 1, compensate=undone.append)
        ctx.step.sleep("nap", 600)

    handle = workflows.dispatch(staged(Action("act", handler)), {})
    drain(handle.run_id)
    workflows.cancel(handle.run_id, compensate=True)
    drain(handle.run_id)
    assert undone == [1]


def test_halt_undoes_nothing() -> None:
    status = run_through(
        Workflow(
            "halt",
            on_failure="halt",
            stages=[Stage("s", actions=[Action("book", booking), Action("bad", bad)])],
        )
    )
    assert status.run.status == "failed"
    assert undone == []


@pytest.mark.parametrize("wrong", [5, "name", lambda a, b, c: None])
def test_what_is_no_compensation_is_refused_before_the_step_begins(wrong: Any) -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("step", do, 1, compensate=wrong)

    status = run_through(staged(Action("act", handler, attempts=1)))
    assert done == []
    assert status.run.error is not None
    assert "step 'step'" in status.run.error["message"]
    assert "compensate=" in status.run.error["message"]


def test_a_step_of_a_compensation_has_none_itself() -> None:
    def undo(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("step", do, 1, compensate=undone.append)

    status = run_through(
        staged(Action("act", lambda state: None, compensate=undo, compensate_attempts=1), Action("bad", bad))
    )
    assert done == []
    (failure,) = RunEvent.objects.filter(run_id=status.run.id, name="action.compensation_failed")
    assert "which nothing undoes" in failure.data["error"]["message"]


class OutOfStock(LookupError):
    def __init__(self, sku: str, left: int) -> None:
        super().__init__(f"{left} of {sku}")
        self.sku = sku


def test_a_step_that_took_the_place_of_a_failed_one_is_undone() -> None:
    class Local(OutOfStock):
        pass

    def fast(error: Exception) -> None:
        raise error

    def handler(state: dict[str, Any], ctx: Any) -> None:
        for number, error in enumerate(
            (ValueError("no"), OutOfStock("x", 0), Local("y", 1), OSError(2, "none"))
        ):
            try:
                ctx.step.run(f"fast {number}", fast, error)
            except (ValueError, OSError, OutOfStock) as caught:
                ctx.step.run(f"slow {number}", do, str(caught), compensate=undone.append)

    status = run_through(staged(Action("book", handler), Action("bad", bad)))
    assert status.run.error is not None
    assert "compensation_failures" not in status.run.error
    assert undone == ["[Errno 2] none", "1 of y", "0 of x", "no"]


def test_an_async_step_that_took_the_place_of_one_with_an_unstorable_result_is_undone() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> None:
        try:
            await ctx.step.arun("fast", lambda: b"bytes")
        except PayloadInvalid as caught:
            await ctx.step.arun("slow", do, type(caught).__name__, compensate=undone.append)

    status = run_through(staged(Action("book", handler), Action("bad", bad)))
    assert undone == ["PayloadInvalid"]
    assert status.run.error is not None
    assert "compensation_failures" not in status.run.error


def test_a_failed_step_whose_exception_cannot_be_made_again_is_told_by_a_plain_one() -> None:
    class Odd(Exception):
        pass

    def fast() -> None:
        raise Odd("strange")

    def handler(state: dict[str, Any], ctx: Any) -> None:
        try:
            ctx.step.run("fast", fast)
        except Exception as caught:
            done.append(type(caught).__name__)
            done.append(str(caught))
            ctx.step.run("slow", do, "slow", compensate=undone.append)

    run_through(staged(Action("book", handler), Action("bad", bad)))
    assert undone == ["slow"]
    assert done == ["Odd", "strange", "slow", "Recorded", "Odd: strange"]
