"""What has run is freed at once, with the state and the results that it held: nothing is left for Python's collector,
which took a tenth of a worker's CPU when each attempt was a circle.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.workers import eventually
from workflow import Action, Fatal, Retry, Stage, Workflow, workflows
from workflow.models import Run
from workflow.registry import registry
from workflow.store.ports import connection_parameters
from workflow.worker.options import Options
from workflow.worker.process import WorkerProcess

ENGINE = (
    "workflow.context",
    "workflow.executor",
    "workflow.hands",
    "workflow.plan",
    "workflow.steps",
    "workflow.store.claims",
)


def plain(state: dict[str, Any]) -> None:
    """Nothing, in a thread."""


async def coroutine(state: dict[str, Any]) -> None:
    """Nothing, on the loop."""


def atomic(state: dict[str, Any]) -> dict[str, int]:
    return {"n": Run.objects.count()}


def steps(state: dict[str, Any], ctx: Any) -> dict[str, int]:
    ctx.log("at work")
    ctx.progress(0.5)
    return {"n": ctx.step.run("one", int) + ctx.step.run("two", int)}


async def async_steps(state: dict[str, Any], ctx: Any) -> int:
    await ctx.alog("at work")
    one, two = await asyncio.gather(ctx.step.arun("one", int), ctx.step.arun("two", int))
    return int(one + two)


def sleeps(state: dict[str, Any], ctx: Any) -> None:
    ctx.step.sleep("nap", 0.01)


async def async_sleeps(state: dict[str, Any], ctx: Any) -> None:
    await ctx.step.asleep("nap", 0.01)


def uses_a_key_twice(state: dict[str, Any], ctx: Any) -> None:
    ctx.step.run("one", int)
    ctx.step.run("one", int)


def fails_once(state: dict[str, Any], ctx: Any) -> None:
    ctx.step.run("one", int)
    if ctx.attempt == 1:
        raise Retry(0)


def fails(state: dict[str, Any]) -> None:
    raise Fatal("for good")


def steps_that_are_undone(state: dict[str, Any], ctx: Any) -> None:
    ctx.step.run("one", int, compensate=int)
    raise Fatal("for good")


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with registry.isolated():
        yield


def work() -> None:
    """A worker process, here, until nothing is due."""
    parameters = connection_parameters()

    async def main() -> int:
        return await WorkerProcess(parameters, Options(concurrency=5, burst=True)).run()

    assert asyncio.run(main()) == 0


def collected() -> Counter[str]:
    """What of a run's the collector has to free now, by type."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        kinds = (type(thing) for thing in gc.garbage)
        return Counter(
            f"{kind.__module__}.{kind.__qualname__}" for kind in kinds if kind.__module__.startswith(ENGINE)
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("handler", "options", "status"),
    [
        (plain, {}, "completed"),
        (coroutine, {}, "completed"),
        (atomic, {"atomic": True}, "completed"),
        (steps, {}, "completed"),
        (async_steps, {}, "completed"),
        (sleeps, {}, "completed"),
        (async_sleeps, {}, "completed"),
        (uses_a_key_twice, {}, "compensated"),
        (fails_once, {}, "completed"),
        (fails, {}, "compensated"),
        (steps_that_are_undone, {}, "compensated"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_run_that_is_over_leaves_nothing_to_the_collector(
    handler: Callable[..., Any], options: dict[str, Any], status: str
) -> None:
    first = Action("first", plain, compensate=plain)
    workflows.register(
        Workflow("leaving", stages=[Stage("s", actions=[first, Action("a", handler, **options)])])
    )
    left: list[Counter[str]] = []

    def look(state: dict[str, Any]) -> None:
        # While the process lives: what it still holds itself is no garbage.
        eventually(lambda: Run.objects.filter(workflow="leaving", status=status).count() == 3)
        left.append(collected())

    workflows.register(Workflow("looking", stages=[Stage("s", actions=[Action("a", look)])]))
    workflows.dispatch_many("leaving", [{}] * 3)
    workflows.dispatch("looking", {})
    gc.collect()
    gc.disable()
    try:
        work()
    finally:
        gc.enable()
    assert left == [Counter()]
