"""The second in which a plain handler with a `ctx` may end by itself: what happens meanwhile is not lost."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings

from tests.support.moving import Worked, clean, status
from workflow import Aborted, Action, Stage, Workflow, workflows
from workflow.models import RunEvent
from workflow.results import RunHandle
from workflow.testing import drain
from workflow.worker.process import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["clean"]


def dispatch(*actions: Action) -> RunHandle:
    workflow = Workflow("w", on_failure="halt", stages=[Stage("s", actions=list(actions))])
    return workflows.dispatch(workflow, {})


def logged(handle: RunHandle) -> list[str]:
    entries = RunEvent.objects.filter(run_id=handle.run_id, name="log").order_by("seq")
    return [entry.data["message"] for entry in entries]


@pytest.mark.parametrize("engine", ["worker", "drain"])
@pytest.mark.parametrize("atomic", [False, True])
def test_what_it_has_reported_before_arrives(atomic: bool, engine: str) -> None:
    def heeds(state: dict[str, Any], ctx: Any) -> None:
        ctx.log("one")
        time.sleep(0.2)
        ctx.log("two")
        ctx.signal.wait()

    handle = dispatch(Action("a", heeds, timeout=0.4, attempts=1, atomic=atomic))
    Worked(concurrency=2) if engine == "worker" else drain(handle.run_id)
    assert (status(handle), logged(handle)) == ("failed", ["one", "two"])


def test_what_an_atomic_action_has_reported_arrives_where_its_checkpoint_is_refused() -> None:
    def ends_its_transaction(state: dict[str, Any], ctx: Any) -> None:
        ctx.log("one")
        workflows.cancel(ctx.run_id)

    handle = dispatch(Action("a", ends_its_transaction, atomic=True, attempts=1))
    drain(handle.run_id)
    assert (status(handle), logged(handle)) == ("failed", ["one"])


def test_a_worker_that_has_to_hurry_in_it_counts_the_attempt() -> None:
    calls: list[int] = []
    processes: list[WorkerProcess] = []

    def heeds(state: dict[str, Any], ctx: Any) -> None:
        calls.append(ctx.attempt)
        ctx.signal.wait()
        processes[0]._loop.call_soon_threadsafe(processes[0].hurry)
        time.sleep(0.6)

    handle = dispatch(Action("a", heeds, timeout=0.4, attempts=1))
    Worked(processes.append, concurrency=2)
    error = handle.status().run.error
    assert error is not None
    assert (status(handle), error["code"], calls) == ("failed", "ACTION_TIMEOUT", [1])


@pytest.mark.parametrize("at", ["in that second", "while a gate is asked"])
def test_a_unit_whose_time_is_up_just_then_is_ended_soon_after(at: str) -> None:
    told: list[tuple[str, float]] = []
    begun = time.monotonic()

    def first(state: dict[str, Any], ctx: Any) -> None:
        if at == "while a gate is asked":
            time.sleep(2)
        elif ctx.attempt == 1:
            ctx.signal.wait()
            time.sleep(0.9)

    def gate(state: dict[str, Any]) -> bool:
        if at == "while a gate is asked":
            time.sleep(1.5)
        return True

    def second(state: dict[str, Any], ctx: Any) -> None:
        ctx.signal.wait(60)
        told.append((ctx.signal.reason, time.monotonic() - begun))

    handle = dispatch(
        Action("a", first, timeout=2.6, attempts=2, backoff=0),
        Action("b", second, timeout=None, attempts=1, when=gate),
    )
    with override_settings(WORKFLOW={**django_settings.WORKFLOW, "UNIT_TIMEOUT": 3.0}):
        Worked(concurrency=2)
    ((reason, seconds),) = told
    error = handle.status().run.error
    assert error is not None
    assert (reason, error["code"]) == ("timeout", "UNIT_TIMEOUT")
    assert seconds < 5.5  # the next look was a whole UNIT_TIMEOUT later


def test_the_next_attempt_waits_for_its_steps_in_threads_too() -> None:
    log: list[str] = []

    def body(attempt: int) -> None:
        log.append(f"body {attempt} begins")
        time.sleep(0.9 if attempt == 1 else 0)
        log.append(f"body {attempt} ends")

    def heeds(state: dict[str, Any], ctx: Any) -> None:
        def step() -> None:
            with suppress(Aborted):
                ctx.step.run("work", body, ctx.attempt)

        work = threading.Thread(target=step)
        work.start()
        if ctx.attempt == 1:
            ctx.signal.wait()
        else:
            work.join()

    handle = dispatch(Action("a", heeds, timeout=0.5, attempts=2, backoff=0))
    Worked(concurrency=2)
    assert log == [f"body {n} {what}" for n in (1, 2) for what in ("begins", "ends")]
    assert status(handle) == "completed"


@pytest.mark.parametrize("where", ["a step", "a poll", "what it returns"])
def test_an_async_function_in_a_plain_handler_is_cancelled(where: str) -> None:
    heard: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    def in_a_step(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("slow", slow)

    def in_a_poll(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.wait_for("slow", slow)

    def returns_it(state: dict[str, Any]) -> Any:
        return slow()

    handler = {"a step": in_a_step, "a poll": in_a_poll, "what it returns": returns_it}[where]
    handle = dispatch(Action("a", handler, timeout=0.3, attempts=2, backoff=0))
    begun = time.monotonic()
    Worked(concurrency=2)
    error = handle.status().run.error
    assert error is not None
    assert (error["code"], heard) == ("ACTION_TIMEOUT", ["cancelled"] * 2)
    assert time.monotonic() - begun < 30
