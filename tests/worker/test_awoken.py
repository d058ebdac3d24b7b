"""A suspended handler whose mate is at work is called again as soon as what it waits for is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from tests.support.moving import Worked, clean
from workflow import Action, Stage, Workflow, parallel, workflows
from workflow.models import Node, RunEvent, Step
from workflow.results import RunHandle
from workflow.worker import process
from workflow.worker.process import WorkerProcess
from workflow.worker.units import Units

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["clean"]

PATIENCE = 20.0
"""Seconds for which a mate waits for what its neighbour does next."""


def flow(name: str, waits: Callable[..., Any], mate: Callable[..., Any]) -> RunHandle:
    members = parallel(Action("a", waits), Action("b", mate, attempts=1, timeout=60))
    workflows.register(Workflow(name, on_failure="halt", stages=[Stage("s", actions=[members])]))
    return workflows.dispatch(name, {})


def suspended(run_id: object) -> bool:
    return Node.objects.filter(run_id=run_id, path__endswith=".s.a", status="waiting").exists()


def until(condition: Callable[[], bool]) -> float:
    """Seconds until it holds."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < PATIENCE, "in vain"
        time.sleep(0.02)
    return time.monotonic() - begun


def wakes(run: RunHandle) -> int:
    """How often the suspended handler was called again."""
    return RunEvent.objects.filter(run_id=run.run_id, node__endswith=".s.a", name="resumed").count()


@pytest.mark.parametrize("how", ["event", "answer"])
def test_what_comes_while_a_mate_is_at_work_is_given_to_the_handler_at_once(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerProcess, "_look", lambda self: asyncio.sleep(600))
    got: list[Any] = []

    def waits(state: dict[str, Any], ctx: Any) -> None:
        got.append(ctx.step.wait_event("e", "go", timeout=3600))

    def mate(state: dict[str, Any], ctx: Any) -> None:
        until(lambda: suspended(ctx.run_id))
        if how == "event":
            workflows.publish("go", {"n": 1})
        else:
            workflows.resume(ctx.run_id, {"n": 1})
        until(lambda: bool(got))

    run = flow("w", waits, mate)
    Worked(concurrency=3)
    assert (run.status().run.status, got, wakes(run)) == ("completed", [{"n": 1}], 1)


def test_it_is_found_without_a_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LONGEST_LOOK", 0.5)
    monkeypatch.setattr(Units, "signalled", lambda self, run_id: None)
    got: list[Any] = []

    async def waits(state: dict[str, Any], ctx: Any) -> None:
        got.append(await ctx.step.await_event("e", "go"))

    def mate(state: dict[str, Any], ctx: Any) -> None:
        until(lambda: suspended(ctx.run_id))
        workflows.publish("go", 1)
        until(lambda: bool(got))

    run = flow("w", waits, mate)
    Worked(concurrency=3)
    assert (run.status().run.status, got) == ("completed", [1])


def test_one_event_after_another_and_a_timer_that_was_overtaken_wakes_nobody() -> None:
    got: list[Any] = []

    def waits(state: dict[str, Any], ctx: Any) -> None:
        for n in range(3):
            value = ctx.step.wait_event(f"e{n}", f"go{n}", timeout=2.0 if n == 0 else 3600)
            if value not in got:
                got.append(value)

    def mate(state: dict[str, Any], ctx: Any) -> None:
        for n in range(2):
            until(lambda: suspended(ctx.run_id))
            workflows.publish(f"go{n}", n)
            until(lambda n=n: got == list(range(n + 1)))
        time.sleep(3)  # the first wait's time is long over
        until(lambda: suspended(ctx.run_id))
        workflows.publish("go2", 2)
        until(lambda: len(got) == 3)

    run = flow("w", waits, mate)
    Worked(concurrency=3)
    assert (run.status().run.status, got, wakes(run)) == ("completed", [0, 1, 2], 3)


def test_an_event_that_comes_while_its_handler_parks_again_is_not_slept_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It settles a row that the handler has read as waiting already: nobody delivers it again."""
    monkeypatch.setattr(WorkerProcess, "_look", lambda self: asyncio.sleep(600))
    got: list[Any] = []
    calls: list[int] = []

    def waits(state: dict[str, Any], ctx: Any) -> None:
        calls.append(1)
        try:
            got.append(ctx.step.wait_event("e", "go", timeout=3600))
        except BaseException:
            if len(calls) == 2:  # it has read its row, and is about to park again
                workflows.publish("go", 1)
                settled = Step.objects.filter(run_id=ctx.run_id, key="e", status="completed")
                until(settled.exists)
                time.sleep(0.5)  # the worker has looked, and found that nothing is suspended
            raise

    def mate(state: dict[str, Any], ctx: Any) -> None:
        until(lambda: suspended(ctx.run_id))
        wake(ctx.run_id)
        until(lambda: bool(got))

    def wake(run_id: object) -> None:
        """As if something else had come."""
        Node.objects.filter(run_id=run_id, path="w.s.a").update(due_at=timezone.now())
        loop[0].call_soon_threadsafe(processes[0]._units.look)

    processes: list[WorkerProcess] = []
    loop: list[asyncio.AbstractEventLoop] = []

    def on_start(process: WorkerProcess) -> None:
        processes.append(process)
        loop.append(asyncio.get_running_loop())

    run = flow("w", waits, mate)
    Worked(on_start, concurrency=3)
    assert (run.status().run.status, got, len(calls)) == ("completed", [1], 3)
