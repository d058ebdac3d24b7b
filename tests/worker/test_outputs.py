"""A stage's `output=` may run code of the user's: it does what handlers may do, and stands in nobody's way."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Annotated, Any

import pytest
from django.contrib.auth.models import User
from pydantic import AfterValidator, BaseModel, model_validator

from tests.support.moving import Worked, clean
from workflow import Action, Stage, WaitFor, Workflow, workflows
from workflow.models import Job
from workflow.results import RunHandle
from workflow.testing import drain

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["clean"]


class Unknown(BaseModel):
    n: int

    @model_validator(mode="after")
    def check(self) -> Unknown:
        if User.objects.filter(pk=self.n).exists():
            raise ValueError("taken")
        return self


def nap(n: int) -> int:
    time.sleep(2)
    return n


class Slow(BaseModel):
    n: Annotated[int, AfterValidator(nap)]


def started(output: Any, given: Any = None) -> RunHandle:
    stage = Stage("s", run=lambda state: given or {"n": 5}, output=output)
    workflows.register(
        Workflow("w", on_failure="halt", stages=[stage, Stage("t", run=lambda state: {"t": state["n"]})])
    )
    return workflows.dispatch("w", {})


@pytest.mark.parametrize("worked", [True, False])
def test_it_may_ask_the_database(worked: bool) -> None:
    run = started(Unknown)
    Worked() if worked else drain(run.run_id)
    assert (run.status().run.status, run.status().run.state) == ("completed", {"n": 5, "t": 5})


@pytest.mark.parametrize("worked", [True, False])
def test_what_it_refuses_fails_the_stage(worked: bool) -> None:
    user = User.objects.create(username="u")
    run = started(Unknown, {"n": user.pk})
    Worked() if worked else drain(run.run_id)
    error = run.status().run.error
    assert error is not None
    assert (run.status().run.status, error["code"], error["node"]) == ("failed", "OUTPUT_INVALID", "w.s")
    assert not Job.objects.filter(run_id=run.run_id).exists()


@pytest.mark.parametrize("worked", [True, False])
def test_that_of_a_wait_may_ask_the_database_too(worked: bool) -> None:
    wait = Stage("s", wait_for=WaitFor("go"), output=Unknown)
    workflows.register(Workflow("w", on_failure="halt", stages=[wait]))
    run = workflows.dispatch("w", {})
    Worked() if worked else drain(run.run_id)
    workflows.publish("go", {"n": 7})
    Worked() if worked else drain(run.run_id)
    assert (run.status().run.status, run.status().run.state) == ("completed", {"n": 7})


def test_a_slow_one_holds_up_no_other_unit() -> None:
    ticks: list[float] = []

    async def tick(state: dict[str, Any]) -> None:
        for _ in range(40):
            ticks.append(time.monotonic())
            await asyncio.sleep(0.1)

    run = started(Slow)
    workflows.register(Workflow("clock", stages=[Stage("s", run=tick)]))
    workflows.dispatch("clock", {})
    Worked(concurrency=3)
    assert run.status().run.status == "completed"
    assert max(later - sooner for sooner, later in itertools.pairwise(ticks)) < 1.5


def padded(n: int) -> str:
    return "x" * n


class Padded(BaseModel):
    n: Annotated[Any, AfterValidator(padded)]


@pytest.mark.parametrize("output", [dict[str, Any], Padded])
def test_one_that_is_too_large_is_refused(output: Any, settings: Any) -> None:
    settings.WORKFLOW = {**settings.WORKFLOW, "MAX_PAYLOAD_BYTES": 20}
    actions = [Action("a", lambda state: {"n": 100}), Action("b", lambda state: {"m": 10**10})]
    workflows.register(Workflow("w", on_failure="halt", stages=[Stage("s", actions=actions, output=output)]))
    run = workflows.dispatch("w", {})
    drain(run.run_id)
    error = run.status().run.error
    assert error is not None
    assert (error["code"], error["node"]) == ("PAYLOAD_INVALID", "w.s")
