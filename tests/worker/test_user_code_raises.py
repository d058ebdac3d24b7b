"""User code that raises where no attempt is around it: it costs its own node, no other and not the worker."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, model_validator

from tests.support.moving import Worked
from workflow import Action, Retry, Stage, Workflow, states, workflows
from workflow.errors import FailureCode
from workflow.executor import Execution
from workflow.models import Job
from workflow.registry import registry
from workflow.results import RunHandle
from workflow.testing import drain
from workflow.worker.endings import ends_task
from workflow.worker.runtime import WorkerRuntime

pytestmark = pytest.mark.django_db(transaction=True)

LONG = 60
"""Seconds that a handler waits, at most, for what is to end it long before."""


class Stop(BaseException):
    """Not an Exception, as a project may have some."""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with registry.isolated():
        registry.clear()
        yield


def wait(state: dict[str, Any], ctx: Any) -> None:
    ctx.signal.wait(LONG)


async def wait_a_little(state: dict[str, Any]) -> None:
    await asyncio.sleep(0.5)


def dispatch(action: Action, name: str = "w", **stage: Any) -> RunHandle:
    definition = Workflow(name, on_failure="halt", stages=[Stage("s", actions=[action], **stage)])
    return workflows.dispatch(definition, {})


def code(handle: RunHandle) -> str | None:
    error = handle.status().run.error
    return None if error is None else error["code"]


def test_a_backoff_that_raises_when_an_attempt_times_out_ends_no_other_timeout() -> None:
    """Timeouts are kept by one task of the worker, which asks the backoff function."""
    has_raised = threading.Event()

    def backoff(attempt: int) -> float:
        has_raised.set()
        raise Stop

    def later(state: dict[str, Any], ctx: Any) -> None:
        assert has_raised.wait(LONG)
        ctx.signal.wait(LONG)

    bad = dispatch(Action("a", wait, timeout=0.3, attempts=2, backoff=backoff), "bad")
    good = dispatch(Action("a", later, timeout=1, attempts=1), "good")
    assert Worked(concurrency=2).code == 0
    assert code(good) == FailureCode.ACTION_TIMEOUT
    assert bad.status().run.status == states.RUNNING  # its second attempt is due in a second
    assert Job.objects.get(run_id=bad.run_id).lease_token is None


def test_a_callback_of_the_signal_that_exits_does_not_end_the_worker() -> None:
    def act(state: dict[str, Any], ctx: Any) -> None:
        ctx.signal.add_callback(lambda: sys.exit(3))
        ctx.signal.wait(LONG)

    handle = dispatch(Action("a", act, timeout=0.3, attempts=1))
    assert Worked().code == 0
    assert code(handle) == FailureCode.ACTION_TIMEOUT


async def leave() -> None:
    await asyncio.sleep(0)
    sys.exit(3)


async def exits_in_a_step(state: dict[str, Any], ctx: Any) -> None:
    await asyncio.gather(ctx.step.arun("leaves", leave), ctx.step.arun("stays", asyncio.sleep, 0.2))


async def exits_in_a_task(state: dict[str, Any]) -> None:
    await asyncio.create_task(leave())


async def exits_in_a_task_group(state: dict[str, Any]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(leave())


@pytest.mark.parametrize("act", [exits_in_a_step, exits_in_a_task, exits_in_a_task_group])
def test_a_task_that_exits_is_the_end_of_its_attempt_and_of_nothing_else(act: Any) -> None:
    neighbour = dispatch(Action("n", wait_a_little, attempts=1), "beside")
    handle = dispatch(Action("a", act, attempts=1))
    assert Worked(concurrency=4).code == 0
    assert code(handle) == FailureCode.ACTION_FAILED
    assert neighbour.status().run.status == states.COMPLETED


@pytest.mark.parametrize("act", [exits_in_a_step, exits_in_a_task, exits_in_a_task_group])
def test_a_task_that_exits_fails_its_action_in_a_test_too(act: Any) -> None:
    handle = dispatch(Action("a", act, attempts=1))
    drain(handle.run_id)
    assert code(handle) == FailureCode.ACTION_FAILED


def test_a_callback_on_the_loop_that_exits_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def act(state: dict[str, Any]) -> str:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.sleep(0.1)
        return "went on"

    handle = dispatch(Action("a", act, attempts=1))
    assert Worked().code == 0
    assert handle.status().run.state == {"a": "went on"}
    assert "SystemExit was raised on the event loop" in caplog.text


def test_a_handler_that_stops_the_loop_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def act(state: dict[str, Any]) -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.1)
        return "went on"

    neighbour = dispatch(Action("n", wait_a_little, attempts=1), "beside")
    handle = dispatch(Action("a", act, attempts=1))
    assert Worked(concurrency=4).code == 0
    assert handle.status().run.state == {"a": "went on"}
    assert neighbour.status().run.status == states.COMPLETED
    assert "somebody has stopped the event loop" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
def test_a_retry_without_a_delay_of_its_own_does_not_hang(is_async: bool) -> None:
    class Bare(Retry):
        def __init__(self) -> None:
            """Without `super().__init__()`."""

    def plain(state: dict[str, Any]) -> None:
        raise Bare

    async def coroutine(state: dict[str, Any]) -> None:
        raise Bare

    handle = dispatch(Action("a", coroutine if is_async else plain, attempts=1, timeout=LONG))
    Worked()
    assert code(handle) == FailureCode.ACTION_FAILED


@pytest.mark.parametrize(
    "error", [Stop(), asyncio.CancelledError(), GeneratorExit(), SystemExit(3)], ids=repr
)
def test_the_validator_of_a_stages_output_does_not_end_the_unit(error: BaseException) -> None:
    class Bad(BaseModel):
        @model_validator(mode="after")
        def refuse(self) -> Any:
            raise error

    handle = dispatch(Action("a", lambda state: {"n": 1}, attempts=2), output=Bad)
    assert Worked().code == 0
    assert (code(handle), handle.status().run.status) == (FailureCode.OUTPUT_INVALID, states.FAILED)


@pytest.mark.parametrize("error", [Stop("why"), asyncio.CancelledError("why"), SystemExit("why")], ids=repr)
def test_whatever_ends_the_drive_of_a_unit_its_job_is_given_back(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    async def run(self: Execution) -> None:
        raise error

    monkeypatch.setattr(Execution, "run", run)
    handle = dispatch(Action("a", lambda state: None))
    assert Worked().code == 0
    job = Job.objects.get(run_id=handle.run_id)
    assert job.lease_token is None
    assert f"{type(error).__name__}: why" in job.last_error


@pytest.mark.parametrize("error", [Stop(), asyncio.CancelledError(), SystemExit(3)], ids=repr)
def test_whatever_ends_a_look_at_the_timeouts_there_is_another_one(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    watch, broken = WorkerRuntime.watch, [error]

    def broken_once(self: WorkerRuntime, late: float = 0.0) -> None:
        if broken:
            raise broken.pop()
        watch(self, late)

    monkeypatch.setattr(WorkerRuntime, "watch", broken_once)
    handle = dispatch(Action("a", wait, timeout=0.3, attempts=1))
    assert Worked().code == 0
    assert code(handle) == FailureCode.ACTION_TIMEOUT


def test_only_what_is_meant_for_it_ends_a_task() -> None:
    told: list[bool] = []

    async def cancelled() -> None:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError as error:
            told.append(ends_task(error))

    async def main() -> None:
        task = asyncio.create_task(cancelled())
        await asyncio.sleep(0)
        task.cancel()
        await task
        told.extend(map(ends_task, (asyncio.CancelledError(), SystemExit(), Stop(), KeyboardInterrupt())))

    asyncio.run(main())
    assert told == [True, False, False, False, True]
