"""Steps of runs that are over, and of runs that are retried after that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.runs import run_through
from tests.support.stepping import calls, clear, note, stepping
from workflow import Action, Fatal, Stage, Workflow, workflows
from workflow.models import Step
from workflow.testing import drain

__all__ = ["clear"]

OVER = {"code": "ACTION_FAILED", "message": "the run was over before this step was"}
CANCELLED = {"code": "ACTION_FAILED", "message": "the run was cancelled before this step was over"}


@pytest.mark.parametrize("compensate", [False, True])
def test_a_body_that_ends_after_its_run_was_cancelled_is_recorded_as_failed_by_that(compensate: bool) -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("done", note, 1)
        ctx.step.run("body", lambda: workflows.cancel(ctx.run_id, compensate=compensate))

    status = run_through(stepping(handler, attempts=1))
    assert status.run.status == ("compensated" if compensate else "cancelled")
    done, body = Step.objects.order_by("id")
    assert (done.status, done.value) == ("completed", 1)
    assert (body.status, body.error, body.value) == ("failed", CANCELLED, None)
    assert (body.lease_token, body.lease_until) == (None, None)
    assert body.finished_at is not None


def test_a_retry_that_does_again_what_came_before_asks_the_steps_of_what_had_failed_anew() -> None:
    prices = iter((1, 2))

    def buy(state: dict[str, Any], ctx: Any) -> Any:
        quote = ctx.step.run("quote", lambda: state["price"] * 100)
        if not calls:
            calls.append("failed")
            raise Fatal("no stock")
        return {"quote": quote}

    priced = Stage("a", run=lambda state: {"price": next(prices)})
    workflow = Workflow("w", stages=[priced, Stage("b", run=buy)], on_failure="halt")
    handle = workflows.dispatch(workflow, {})
    drain(handle.run_id)
    assert handle.status().run.status == "failed"
    workflows.retry(handle.run_id, from_node="w.a")
    drain(handle.run_id)
    assert handle.status().run.state == {"price": 2, "quote": 200}


def test_a_body_that_outlives_its_last_attempt_is_recorded_as_failed_and_called_again_by_a_retry() -> None:
    def body(signal: Any) -> str:
        calls.append("body")
        if len(calls) == 1:
            signal.wait(30)
        return "done"

    def handler(state: dict[str, Any], ctx: Any) -> Any:
        return ctx.step.run("body", body, ctx.signal)

    tree = Workflow(
        "w",
        stages=[Stage("s", actions=[Action("act", handler, attempts=1, timeout=0.2)])],
        on_failure="halt",
    )
    status = run_through(tree)
    assert status.run.error is not None
    assert (status.run.status, status.run.error["code"]) == ("failed", "ACTION_TIMEOUT")
    row = Step.objects.get()
    assert (row.status, row.error, row.lease_until) == ("failed", OVER, None)
    workflows.retry(status.run.id)
    drain(status.run.id)
    assert workflows.status(status.run.id).run.state == {"act": "done"}
    assert Step.objects.get().status == "completed"


WAITS = [
    pytest.param(lambda ctx: ctx.step.wait_event("k", "never"), id="event"),
    pytest.param(lambda ctx: ctx.step.wait_for("k", lambda: None), id="poll"),
    pytest.param(lambda ctx: ctx.step.sleep("k", 60), id="sleep"),
]


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("compensate", [False, True])
def test_in_a_cancelled_run_no_step_is_polled_or_waited_for(
    compensate: bool, wait: Callable[[Any], Any]
) -> None:
    handle = workflows.dispatch(stepping(lambda state, ctx: wait(ctx)), {})
    drain(handle.run_id)
    workflows.cancel(handle.run_id, compensate=compensate)
    row = Step.objects.get()
    found = (row.status, row.error, row.wait_event, row.next_poll_at)
    if (
        compensate and row.kind == "sleep"
    ):  # a handler that leads to what is to be undone may come by it again
        assert found == ("waiting", None, None, None)
    else:
        assert found == ("failed", CANCELLED, None, None)
