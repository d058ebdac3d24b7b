"""Durable steps that wait: for a poll to have an answer, for an event, and for as long as they may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from tests.support.runs import node, run_through
from tests.support.stepping import calls, clear, stepping
from workflow import WaitTimeout, Workflow, workflows
from workflow.testing import advance, drain

__all__ = ["clear"]


@pytest.mark.parametrize("event", ["", 5, "a\0b", "\ud83d", "x" * 256])
def test_an_event_type_that_nobody_could_publish_cannot_be_waited_for(event: Any) -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.wait_event("key", event)

    error = node(run_through(stepping(handler, attempts=1)), "w.s.act").error
    assert error is not None
    assert error["code"] == "ACTION_FAILED"
    assert error["message"].startswith("step 'key': event must ")


@pytest.mark.parametrize("correlation", [None, [], {}, "", "a\0b", "\ud83d", "x" * 256])
def test_a_correlation_that_no_event_could_have_cannot_be_waited_for(correlation: Any) -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.wait_event("key", "it-happened", correlate=lambda state: correlation)

    error = node(run_through(stepping(handler, attempts=1)), "w.s.act").error
    assert error is not None
    assert (error["code"], error["type"]) == ("ACTION_FAILED", "ValueError")
    assert "correlation" in error["message"]


def polling(poll: Callable[[], Any], is_async: bool) -> Workflow:
    """Asks every 5 seconds until there is an answer."""

    def plain(state: dict[str, Any], ctx: Any) -> Any:
        return ctx.step.wait_for("report", poll, interval=5)

    async def coroutine(state: dict[str, Any], ctx: Any) -> Any:
        return await ctx.step.await_for("report", poll, interval=5)

    return stepping(coroutine if is_async else plain)


@pytest.mark.parametrize("is_async", [False, True])
def test_wait_for_polls_until_there_is_an_answer(is_async: bool) -> None:
    def poll() -> str | None:
        calls.append("poll")
        return "ready" if len(calls) == 3 else None

    handle = workflows.dispatch(polling(poll, is_async), {})
    drain(handle.run_id)
    advance(4)
    drain(handle.run_id)
    assert calls == ["poll"]
    for _ in range(2):
        advance(5)
        drain(handle.run_id)
    assert handle.status().run.state == {"act": "ready"}
    assert calls == ["poll"] * 3


@pytest.mark.parametrize("is_async", [False, True])
def test_a_wait_that_times_out_raises_an_error_with_its_code(is_async: bool) -> None:
    def plain(state: dict[str, Any], ctx: Any) -> Any:
        try:
            ctx.step.wait_for("never", lambda: None, interval=5, timeout=12)
        except WaitTimeout as error:
            return error.code

    async def coroutine(state: dict[str, Any], ctx: Any) -> Any:
        try:
            await ctx.step.await_event("never", "nothing", timeout=12)
        except WaitTimeout as error:
            return error.code

    status = run_through(stepping(coroutine if is_async else plain), seconds=6, rounds=4)
    assert status.run.state == {"act": "WAIT_TIMEOUT"}


def test_a_time_out_that_the_handler_lets_pass_is_its_nodes_error() -> None:
    definition = stepping(lambda state, ctx: ctx.step.wait_event("k", "nothing", timeout=5), attempts=1)
    status = run_through(definition, seconds=5)
    assert status.run.error is not None
    assert (status.run.error["code"], status.run.error["node"]) == ("WAIT_TIMEOUT", "w.s.act")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_that_times_out_says_for_which_event(is_async: bool) -> None:
    def plain(state: dict[str, Any], ctx: Any) -> Any:
        ctx.step.wait_event("k", "payment", correlate="id", timeout=5)

    async def coroutine(state: dict[str, Any], ctx: Any) -> Any:
        await ctx.step.await_event("k", "payment", correlate=lambda state: state["id"], timeout=5)

    definition = stepping(coroutine if is_async else plain, attempts=1)
    handle = workflows.dispatch(definition, {"id": "o-17"})
    drain(handle.run_id)
    advance(5)
    drain(handle.run_id)
    error = handle.status().run.error
    assert error is not None
    about = '"o-17"' if is_async else 'id="o-17"'
    assert error["message"] == f"step 'k': no event \"payment\" about {about} within 5 s"


@pytest.mark.parametrize("is_async", [False, True])
def test_wait_event_returns_the_payload_of_its_own_event(is_async: bool) -> None:
    def plain(state: dict[str, Any], ctx: Any) -> Any:
        return ctx.step.wait_event("paid", "payment", correlate="id")

    async def coroutine(state: dict[str, Any], ctx: Any) -> Any:
        return await ctx.step.await_event("paid", "payment", correlate=lambda state: state["id"])

    handle = workflows.dispatch(stepping(coroutine if is_async else plain), {"id": "x"})
    drain(handle.run_id)
    workflows.publish("payment", 1, correlation="y")
    drain(handle.run_id)
    assert handle.status().run.status == "running"
    workflows.publish("payment", {"cents": 5}, correlation="x")
    drain(handle.run_id)
    assert handle.status().run.state == {"id": "x", "cents": 5}


def test_an_event_from_before_the_step_parked_counts_when_correlated() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> Any:
        return [ctx.step.wait_event(f"e{i}", "tick", correlate="id") for i in range(2)]

    handle = workflows.dispatch(stepping(handler), {"id": "x"})
    for i in range(2):
        workflows.publish("tick", i, correlation="x")
    drain(handle.run_id)
    assert handle.status().run.state == {"id": "x", "act": [0, 1]}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_poll_in_hand_is_nobody_elses_for_a_minute_and_every_outcome_says_when_the_next_is_due(
    is_async: bool,
) -> None:
    seen: list[Any] = []

    def next_poll() -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT round(extract(epoch FROM next_poll_at - now())) FROM workflow_step")
            return cursor.fetchone()[0]

    def poll() -> Any:
        seen.append(next_poll())
        return "ready" if len(seen) == 2 else None

    async def apoll() -> Any:
        return await sync_to_async(poll)()

    handle = workflows.dispatch(polling(apoll if is_async else poll, is_async), {})
    drain(handle.run_id)
    assert (seen, next_poll()) == ([60], 5)
    advance(5)
    drain(handle.run_id)
    assert (seen, next_poll()) == ([60, 60], None)
    assert handle.status().run.state == {"act": "ready"}


@pytest.mark.parametrize("answer", [False, 0, "", [], {}])
def test_any_answer_but_none_ends_a_poll(answer: Any) -> None:
    def handler(state: dict[str, Any], ctx: Any) -> Any:
        return {"got": ctx.step.wait_for("ready", lambda: answer)}

    assert run_through(stepping(handler)).run.state == {"got": answer}


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("oder", 'there is no such key; did you mean "order"?'),
        (
            "order.id",
            'there is no such key; nested values need a function: lambda state: state["order"]["id"]',
        ),
        ("order", "a value of type dict cannot be the correlation of an event"),
    ],
)
def test_a_step_that_correlates_with_what_the_state_has_not_says_why(key: str, why: str) -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.wait_event("paid", "it-happened", correlate=key)

    error = node(run_through(stepping(handler, attempts=1), {"order": {"id": "o-1"}}), "w.s.act").error
    assert error is not None
    assert error["message"] == f"step 'paid': correlate='{key}': {why}"


WRONG: dict[str, Callable[[Any], Any]] = {
    "needs a callable, not 5": lambda step: step.wait_for("k", 5),
    "needs a callable, not None": lambda step: step.run("k", None),
    "seconds is a number of seconds or a timedelta, not '5'": lambda step: step.sleep("k", "5"),
    "interval is a number of seconds above 0, up to 315,576,000, not 0": lambda step: step.wait_for(
        "k", str, interval=0
    ),
    "timeout is a number of seconds or a timedelta, not 'x'": lambda step: step.wait_event(
        "k", "e", timeout="x"
    ),
    "lease is a number of seconds or a timedelta, not 'x'": lambda step: step.run("k", str, lease="x"),
    "attempts is a number from 1 to 1,000,000, not 0": lambda step: step.run("k", str, attempts=0),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_step_that_is_called_wrongly_is_named(message: str) -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        WRONG[message](ctx.step)

    error = node(run_through(stepping(handler, attempts=1)), "w.s.act").error
    assert error is not None
    assert error["message"] == f"step 'k': {message}".replace("': needs", "' needs")
