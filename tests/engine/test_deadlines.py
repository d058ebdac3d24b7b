"""Waits past their deadlines: what was published in time counts, whoever looks first, and nothing that came later."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.runs import names, parked
from workflow import Action, Stage, WaitFor, Workflow, parallel, sweeps, workflows
from workflow.models import Job
from workflow.results import RunHandle
from workflow.testing import advance, drain


@pytest.mark.parametrize("via", ["inline", "queue"])
@pytest.mark.parametrize("correlate", [None, "order"])
@pytest.mark.parametrize("sweep", [False, True], ids=["by drain", "by a sweep"])
def test_an_event_that_came_in_time_counts_although_nobody_delivered_it_before_the_deadline(
    via: Any, correlate: str | None, sweep: bool
) -> None:
    """All workers are away, or busy, while the deadline passes."""
    wait = Stage("wait", wait_for=WaitFor("paid", correlate=correlate, timeout=60), via=via)
    handle = workflows.dispatch(Workflow("w", stages=[wait]), {"order": "7"})
    drain()
    advance(30)
    workflows.publish("paid", "in time", correlation="7")
    advance(60)
    if sweep:
        assert sweeps.run_once()["waits"] == 1
        assert sweeps.run_once()["waits"] == 0
    drain()
    status = handle.status()
    assert (status.run.status, status.run.error) == ("completed", None)
    assert status.run.state["wait"] == "in time"
    assert names(status) == ["started", "waiting", "resumed", "stage.completed", "completed"]


def test_an_event_that_came_too_late_does_not_undo_a_timeout_that_nobody_has_looked_at() -> None:
    handle = parked(WaitFor("paid", timeout=60))
    advance(61)
    workflows.publish("paid", "too late")
    drain()
    error = handle.status().run.error
    assert error is not None
    assert error["code"] == "WAIT_TIMEOUT"


def test_of_two_waits_that_are_over_one_takes_the_event_that_came_in_time() -> None:
    pair = parallel(*[Stage(f"w{i}", wait_for=WaitFor("tick", correlate="id", timeout=60)) for i in range(2)])
    handle = workflows.dispatch(Workflow("w", stages=[pair]), {"id": "x"})
    drain(handle.run_id)
    workflows.publish("tick", 1, correlation="x")
    advance(61)
    assert sweeps.run_once()["waits"] == 2
    drain(handle.run_id)
    status = handle.status()
    assert sorted(n.status for n in status.nodes[1:]) == ["completed", "failed"]
    assert status.run.error is not None
    assert status.run.error["code"] == "WAIT_TIMEOUT"


@pytest.mark.parametrize("correlate", [None, "id"])
def test_no_event_from_before_its_time_saves_a_wait_that_is_over(correlate: str | None) -> None:
    """From before the run, or, where nothing is correlated, from before it parked."""
    stages = [Stage("wait", wait_for=WaitFor("paid", correlate=correlate, timeout=60))]
    workflows.publish("paid", "before the run", correlation="x")
    handle = workflows.dispatch(Workflow("w", stages=stages), {"id": "x"})
    if correlate is None:
        workflows.publish("paid", "before it parked", correlation="x")
    drain()
    assert handle.status().run.status == "waiting"
    advance(61)
    assert sweeps.run_once()["waits"] == 1
    drain()
    error = handle.status().run.error
    assert error is not None
    assert error["code"] == "WAIT_TIMEOUT"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("correlate", [None, "id"])
@pytest.mark.parametrize("delivered", [False, True])
def test_a_step_takes_an_event_that_came_in_time_as_a_stage_does(
    correlate: str | None, is_async: bool, delivered: bool
) -> None:
    """Also where its handler is called again before anybody has delivered it."""
    handle = waits_in_a_handler(correlate, is_async)
    advance(30)
    workflows.publish("paid", "in time", correlation="x")
    advance(60)
    if not delivered:
        Job.objects.filter(kind="deliver").delete()
    drain()
    status = handle.status()
    assert (status.run.status, status.run.error) == ("completed", None)
    assert status.run.state["act"] == "in time"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("correlate", [None, "id"])
def test_a_step_takes_no_event_that_came_too_late(correlate: str | None, is_async: bool) -> None:
    """Although it is delivered before its handler is called again."""
    handle = waits_in_a_handler(correlate, is_async)
    advance(61)
    workflows.publish("paid", "too late", correlation="x")
    drain()
    error = handle.status().run.error
    assert error is not None
    assert error["code"] == "WAIT_TIMEOUT"


def waits_in_a_handler(correlate: str | None, is_async: bool) -> RunHandle:
    """A run whose handler is suspended for a minute, or until the event comes."""

    def plain(state: Any, ctx: Any) -> Any:
        return ctx.step.wait_event("answer", "paid", correlate=correlate, timeout=60)

    async def asynchronous(state: Any, ctx: Any) -> Any:
        return await ctx.step.await_event("answer", "paid", correlate=correlate, timeout=60)

    act = Action("act", asynchronous if is_async else plain, attempts=1)
    handle = workflows.dispatch(Workflow("w", stages=[Stage("s", actions=[act])]), {"id": "x"})
    drain()
    return handle
