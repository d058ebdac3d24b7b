"""Durable steps: replay, suspension, and the ledger's rules."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.db.utils import DatabaseError
from django.test.utils import CaptureQueriesContext

from tests.support.runs import names, node, run_through, staged
from tests.support.stepping import calls, clear, note, stepping
from workflow import Action, Fatal, Stage, WaitTimeout, Workflow, parallel, workflows
from workflow.models import Job, Step
from workflow.testing import advance, drain

__all__ = ["clear"]


def test_what_a_step_did_once_is_answered_from_the_ledger() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> Any:
        first = ctx.step.run("first", note, {"n": (1, Decimal("1.5"))})
        if ctx.attempt == 1:
            raise RuntimeError("after the first step")
        return [first, ctx.step.run("second", note, 2)]

    status = run_through(stepping(handler, backoff=1), seconds=1)
    assert status.run.state == {"act": [{"n": [1, "1.5"]}, 2]}
    assert len(calls) == 2


def test_the_first_execution_and_a_replay_see_the_same_value() -> None:
    seen: list[Any] = []

    def handler(state: dict[str, Any], ctx: Any) -> None:
        seen.append(ctx.step.run("value", lambda: {1: (2, {3}), "d": Decimal("0.1")}))
        if ctx.attempt == 1:
            raise RuntimeError

    run_through(stepping(handler, backoff=1), seconds=1)
    assert seen[0] == seen[1] == {"1": [2, [3]], "d": "0.1"}


def test_a_handler_that_iterates_over_what_a_step_returned_is_led_to_the_same_steps_by_a_replay() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        plan = ctx.step.run("plan", lambda: {"zebra": 1, "ant": {"tall": 1, "old": 2}})
        for name in plan:
            ctx.step.run(f"ship-{name}", note, name)
            ctx.step.sleep(f"after-{name}", 10)

    run_through(stepping(handler), seconds=10, rounds=2)
    assert calls == ["ant", "zebra"]


def test_a_handler_sees_its_state_in_the_same_order_whenever_it_is_called() -> None:
    def first(state: dict[str, Any]) -> Any:
        return {"zebra": 1, "ant": 2, "hippopotamus": 3}

    def member(state: dict[str, Any], ctx: Any) -> Any:
        calls.append((ctx.path, list(state), list(ctx.state)))
        ctx.step.sleep("nap", 10)
        return {ctx.path: 1}

    stages = parallel(
        Stage("left", actions=[Action("first", first), Action("one", member), Action("two", member)]),
        Stage("right", actions=[Action("three", member)]),
    )
    workflow = Workflow("w", stages=[Stage("s", actions=[Action("zero", first)]), stages])
    run_through(workflow, {"wombat": 0, "ox": 0}, seconds=10, rounds=2)
    seen: dict[str, set[tuple[str, ...]]] = {}
    for path, given, state in calls:
        assert given == state
        seen.setdefault(path, set()).add(tuple(given))
    assert len(calls) == 6
    assert {path: len(orders) for path, orders in seen.items()} == dict.fromkeys(seen, 1)


def test_a_failed_step_is_recorded_and_opened_again_by_a_retry() -> None:
    def body(attempt: int) -> str:
        calls.append(attempt)
        if attempt == 1:
            raise ValueError("first time")
        return "ok"

    def handler(state: dict[str, Any], ctx: Any) -> Any:
        return ctx.step.run("body", body, ctx.attempt)

    handle = workflows.dispatch(stepping(handler, backoff=5), {})
    drain(handle.run_id)
    row = Step.objects.get()
    assert (row.status, row.error["type"]) == ("failed", "ValueError")
    advance(5)
    drain(handle.run_id)
    assert handle.status().run.state == {"act": "ok"}
    assert Step.objects.get().status == "completed"


def test_a_step_may_try_more_than_once_within_one_attempt() -> None:
    def body() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError
        return "third"

    status = run_through(stepping(lambda state, ctx: ctx.step.run("body", body, attempts=3)))
    assert status.run.state == {"act": "third"}
    assert node(status, "w.s.act").attempt == 1


def test_a_key_used_twice_fails_the_action_for_good() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("k", note, 1)
        ctx.step.run("k", note, 2)

    status = run_through(stepping(handler, attempts=5))
    assert status.run.error is not None
    assert status.run.error["type"] == "StepKeyReused"
    assert node(status, "w.s.act").attempt == 1
    assert calls == [1]


@pytest.mark.parametrize("key", ["", None, 1, "k" * 256, "nul\x00"])
def test_a_bad_key_is_refused(key: Any) -> None:
    status = run_through(stepping(lambda state, ctx: ctx.step.run(key, note, 1), attempts=1))
    assert status.run.status == "compensated"
    assert calls == []


def test_a_plain_handler_may_give_its_steps_async_functions() -> None:
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    async def poll() -> int:
        return 4

    def handler(state: dict[str, Any], ctx: Any) -> list[int]:
        return [ctx.step.run("sum", add, 1, b=2), ctx.step.wait_for("poll", poll)]

    assert run_through(stepping(handler, attempts=1)).run.state == {"act": [3, 4]}


@pytest.mark.parametrize("is_async", [False, True])
def test_what_cannot_be_called_is_no_step(is_async: bool) -> None:
    def plain(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("a", 5)

    async def coroutine(state: dict[str, Any], ctx: Any) -> None:
        await ctx.step.arun("a", 5)

    error = run_through(stepping(coroutine if is_async else plain, attempts=1)).run.error
    assert error is not None
    assert (error["type"], error["message"]) == ("TypeError", "step 'a' needs a callable, not 5")
    assert not Step.objects.exists(), "nothing was begun"


def test_a_sleeping_handler_holds_no_lease_and_spends_no_attempt() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> dict[str, int]:
        ctx.step.run("before", note, "before")
        ctx.step.sleep("nap", 3600)
        ctx.step.run("after", note, "after")
        return {"attempt": ctx.attempt}

    handle = workflows.dispatch(stepping(handler, attempts=1), {})
    drain(handle.run_id)
    status = handle.status()
    assert (status.run.status, node(status, "w.s.act").status) == ("running", "waiting")
    assert Job.objects.get().lease_token is None
    advance(3599)
    drain(handle.run_id)
    assert calls == ["before"]
    advance(1)
    drain(handle.run_id)
    assert calls == ["before", "after"]
    assert handle.status().run.state == {"attempt": 1}
    assert not Job.objects.exists()


def test_a_sleep_is_not_begun_anew_by_a_retry() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.sleep("nap", 10)
        if ctx.attempt == 1:
            raise RuntimeError

    handle = workflows.dispatch(stepping(handler, backoff=1), {})
    drain(handle.run_id)
    advance(10)
    drain(handle.run_id)
    advance(1)
    drain(handle.run_id)
    assert handle.status().run.status == "completed"


def test_a_suspended_action_does_not_hold_up_its_parallel_mates() -> None:
    def sleepy(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.sleep("nap", 10)
        calls.append("woke")

    group = parallel(Action("sleepy", sleepy), Action("quick", lambda state: calls.append("quick")))
    handle = workflows.dispatch(Workflow("w", stages=[Stage("s", actions=[group])]), {})
    drain(handle.run_id)
    assert calls == ["quick"]
    advance(10)
    drain(handle.run_id)
    assert calls == ["quick", "woke"]
    assert handle.status().run.status == "completed"


@pytest.mark.parametrize("how", ["returns", "raises", "goes on"])
def test_a_suspension_that_the_handler_catches_suspends_it_all_the_same(how: str) -> None:
    def handler(state: dict[str, Any], ctx: Any) -> Any:
        try:
            ctx.step.sleep("nap", 5)
        except BaseException:
            if how == "raises":
                raise ValueError("not what it seems") from None
            if how == "goes on":
                return ctx.step.run("next", note, "too early")
            return "too early"
        return ctx.step.run("next", note, "in time")

    definition = stepping(handler, attempts=1)
    handle = workflows.dispatch(definition, {})
    drain(handle.run_id)
    assert node(handle.status(), "w.s.act").status == "waiting"
    advance(5)
    drain(handle.run_id)
    assert handle.status().run.state == {"act": "in time"}
    assert calls == ["in time"]


def test_a_key_used_twice_fails_the_action_for_good_also_where_the_handler_catches_it() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> Any:
        for _ in range(2):
            with suppress(Exception):
                ctx.step.run("key", note, 1)
        with suppress(Exception):
            ctx.step.run("other", note, 2)

    status = run_through(stepping(handler, attempts=3))
    error = node(status, "w.s.act").error
    assert error is not None
    assert (error["type"], node(status, "w.s.act").attempt) == ("StepKeyReused", 1)
    assert calls == [1]


def test_durations_are_seconds_or_a_timedelta() -> None:
    second = timedelta(seconds=1)

    def handler(state: dict[str, Any], ctx: Any) -> Any:
        ctx.step.run("run", note, 1, lease=60 * second)
        ctx.step.sleep("sleep", 5 * second)
        with suppress(WaitTimeout):
            ctx.step.wait_for("poll", lambda: None, interval=2 * second, timeout=4 * second)
        ctx.step.wait_event("event", "never", timeout=3 * second)

    status = run_through(stepping(handler, attempts=1), seconds=2.5, rounds=9)
    error = node(status, "w.s.act").error
    assert error is not None
    assert error["code"] == "WAIT_TIMEOUT"


@pytest.mark.parametrize("name", ["run", "sleep", "wait_for", "wait_event"])
def test_a_plain_step_on_the_event_loop_is_refused_by_the_name_of_its_twin(name: str) -> None:
    arguments = {"run": (note,), "sleep": (1,), "wait_for": (note,), "wait_event": ("it-happened",)}[name]

    async def handler(state: dict[str, Any], ctx: Any) -> None:
        getattr(ctx.step, name)("key", *arguments)  # it would wait for the loop that it stands on

    status = run_through(stepping(handler, attempts=1))
    error = node(status, "w.s.act").error
    assert error is not None
    assert (error["code"], error["type"]) == ("ACTION_FAILED", "SynchronousOnlyOperation")
    assert f"ctx.step.a{name}" in error["message"]
    assert calls == []


def test_an_async_handler_may_use_plain_steps_in_a_thread() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> Any:
        return await sync_to_async(lambda: ctx.step.run("key", note, 7))()

    assert run_through(stepping(handler, attempts=1)).run.state == {"act": 7}


def test_steps_in_a_compensation_have_a_ledger_of_their_own() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("k", note, "do")

    def undo(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("k", note, f"undo {ctx.attempt}")
        ctx.step.sleep("nap", 5)
        ctx.step.run("end", note, f"end {ctx.attempt}")

    def bad(state: dict[str, Any]) -> None:
        raise Fatal

    handle = workflows.dispatch(staged(Action("act", handler, compensate=undo), Action("bad", bad)), {})
    drain(handle.run_id)
    assert calls == ["do", "undo 1"]
    assert handle.status().run.status == "compensating"
    advance(5)
    drain(handle.run_id)
    assert calls == ["do", "undo 1", "end 1"]
    assert handle.status().run.status == "compensated"


def test_a_settled_ledger_row_cannot_be_rewritten() -> None:
    run_through(stepping(lambda state, ctx: ctx.step.run("k", note, 1)))
    with pytest.raises(DatabaseError, match="settled"):
        Step.objects.update(value=2)


def test_a_thousand_steps_are_replayed_with_one_read() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> int:
        total = sum(ctx.step.run(f"k{i}", int, i) for i in range(state["n"]))
        if ctx.attempt == 1:
            raise RuntimeError
        return total

    def queries_of_replay(n: int) -> int:
        handle = workflows.dispatch(
            Workflow(f"w{n}", stages=[Stage("s", actions=[Action("act", handler, backoff=1)])]), {"n": n}
        )
        drain(handle.run_id, timeout=60)
        advance(1)
        with CaptureQueriesContext(connection) as queries:
            drain(handle.run_id, timeout=60)
        assert handle.status().run.status == "completed"
        return len(queries)

    assert queries_of_replay(200) == queries_of_replay(2)


def test_a_handler_that_changed_under_its_ledger_fails_with_a_clear_word() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        if ctx.attempt == 1:
            ctx.step.run("k", note, 1)
            raise RuntimeError
        ctx.step.sleep("k", 1)

    status = run_through(stepping(handler, backoff=1), seconds=1)
    assert status.run.error is not None
    assert "has changed" in status.run.error["message"]


def test_suspensions_show_in_the_history() -> None:
    status = run_through(stepping(lambda state, ctx: ctx.step.sleep("nap", 5)), seconds=5)
    assert names(status) == [
        "started",
        "action.started",
        "waiting",
        "resumed",
        "action.completed",
        "stage.completed",
        "completed",
    ]


def test_a_body_at_work_holds_a_lease_of_its_own() -> None:
    seen: list[Any] = []

    def body() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT s.status, s.attempt, s.lease_token = j.lease_token, "
                "round(extract(epoch FROM s.lease_until - now())) FROM workflow_step AS s, workflow_job AS j"
            )
            seen.extend(cursor.fetchall())

    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("default", body)

    run_through(stepping(handler))
    assert seen == [("running", 1, True, 300)]
    (row,) = Step.objects.all()
    assert (row.status, row.lease_token, row.lease_until) == ("completed", None, None)


def test_a_failed_step_whose_error_the_handler_caught_is_called_again_by_its_replay() -> None:
    def body() -> str:
        calls.append("body")
        if len(calls) == 1:
            raise RuntimeError("not now")
        return "done"

    def handler(state: dict[str, Any], ctx: Any) -> Any:
        try:
            return ctx.step.run("k", body)
        except RuntimeError:
            ctx.step.sleep("nap", 10)
        return None

    status = run_through(stepping(handler), seconds=10)
    assert (status.run.state, node(status, "w.s.act").attempt) == ({"act": "done"}, 1)
    assert calls == ["body", "body"]


def test_a_step_that_is_added_before_a_sleep_is_done_and_the_sleep_is_not_begun_anew() -> None:
    """The handler was changed while it slept (C85)."""
    changed = False

    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("a", note, "a")
        if changed:
            ctx.step.run("b", note, "b")
        ctx.step.sleep("nap", 50)
        ctx.step.run("c", note, "c")

    handle = workflows.dispatch(stepping(handler), {})
    drain()
    changed = True
    advance(49)
    drain()
    assert calls == ["a"]
    advance(1)
    drain()
    assert calls == ["a", "b", "c"]
    assert handle.status().run.status == "completed"
