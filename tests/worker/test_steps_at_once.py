"""Several steps at once in one execution: none is done twice, and none is missed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from tests.support.moving import Worked
from tests.support.runs import node
from workflow import Action, Fatal, Retry, Stage, Workflow, workflows
from workflow.executor import attempt as attempt_module
from workflow.models import Node, Step
from workflow.registry import registry
from workflow.results import RunHandle
from workflow.steps import Steps
from workflow.testing import advance, drain

pytestmark = pytest.mark.django_db(transaction=True)

bodies: list[Any] = []
got: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    bodies.clear()
    got.clear()
    with registry.isolated():
        registry.clear()
        yield


async def slow(name: str, seconds: float = 0.5) -> str:
    bodies.append(name)
    await asyncio.sleep(seconds)
    return name


def slow_plain(name: str, seconds: float = 0.5) -> str:
    bodies.append(name)
    time.sleep(seconds)
    return name


def boom(state: dict[str, Any]) -> None:
    raise Fatal("boom")


def started(handler: Any, *after: Action, **options: Any) -> RunHandle:
    stage = Stage("s", actions=[Action("a", handler, **options), *after])
    return workflows.dispatch(Workflow("w", stages=[stage]), {})


def work_on(handle: RunHandle, meanwhile: Callable[[], None] = lambda: None) -> None:
    """A process that works until this run is over; `meanwhile` is done by a handler in it."""

    def keep(state: dict[str, Any]) -> None:
        meanwhile()
        until(lambda: handle.status().run.finished_at is not None)

    workflows.dispatch(Workflow("keeps-it-busy", stages=[Stage("s", actions=[Action("a", keep)])]), {})
    Worked(concurrency=4)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_step_that_is_never_awaited_fails_its_action_for_good() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.arun("work", slow, "work")

    handle = started(handler, attempts=5)
    work_on(handle)
    error = node(handle.status(), "w.s.a").error
    assert error is not None
    assert error["message"] == "step 'work': ctx.step.arun was never awaited"
    assert (bodies, node(handle.status(), "w.s.a").attempt) == ([], 1)


def test_keys_that_change_in_every_replay_fail_the_action_for_good() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run(f"charge-{time.monotonic_ns()}", bodies.append, "charge")
        ctx.step.sleep(f"nap-{time.monotonic_ns()}", 0.1)

    handle = started(handler, attempts=5)
    work_on(handle)
    error = node(handle.status(), "w.s.a").error
    assert error is not None
    assert "which the handler did not come to; keys must be the same" in error["message"]
    assert (bodies, node(handle.status(), "w.s.a").attempt) == (["charge"] * 3, 1)


def test_a_body_beside_a_sleep_is_not_called_again_while_it_is_at_work() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> None:
        got.append(
            await asyncio.gather(ctx.step.arun("work", slow, "work", 1.5), ctx.step.asleep("nap", 0.3))
        )

    handle = started(handler)
    work_on(handle)
    assert bodies == ["work"]
    assert got == [["work", None]]
    assert node(handle.status(), "w.s.a").attempt == 1


def test_a_branch_of_steps_goes_on_beside_a_sleep() -> None:
    async def branch(ctx: Any) -> str:
        first = await ctx.step.arun("first", slow, "first", 0.05)
        return str(await ctx.step.arun("second", slow, f"{first} and second", 0.05))

    async def handler(state: dict[str, Any], ctx: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step.asleep("nap", 100))
            task = group.create_task(branch(ctx))
        got.append(task.result())

    handle = started(handler)
    drain(handle.run_id)
    assert bodies == ["first", "first and second"]
    assert set(Step.objects.values_list("key", "status")) == {
        ("nap", "waiting"),
        ("first", "completed"),
        ("second", "completed"),
    }
    advance(100)
    drain(handle.run_id)
    assert got == ["first and second"]
    assert bodies == ["first", "first and second"]


def test_all_events_that_are_waited_for_at_once_are_parked() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> None:
        waits = ctx.step.await_event("a", "x"), ctx.step.await_event("b", "y", timeout=100)
        got.append(await asyncio.gather(*waits, ctx.step.asleep("nap", 1000)))

    handle = started(handler)
    drain(handle.run_id)
    assert set(Step.objects.values_list("status", flat=True)) == {"waiting"}
    for event, payload in (("y", 2), ("x", 1)):
        workflows.publish(event, payload)
        drain(handle.run_id)
    advance(1000)
    drain(handle.run_id)
    assert got == [[1, 2, None]]


@pytest.mark.parametrize("first", ["nap", "event"])
@pytest.mark.parametrize("soonest", ["nap", "event"])
@pytest.mark.parametrize("turns", [0, 1, 2])
def test_waits_in_a_task_group_are_due_when_the_soonest_is(first: str, soonest: str, turns: int) -> None:
    """As soon as one of them has suspended the handler, the group cancels the other."""

    async def nap(ctx: Any) -> None:
        await ctx.step.asleep("nap", 5 if soonest == "nap" else 1000)

    async def event(ctx: Any) -> Any:
        return await ctx.step.await_event("event", "x", timeout=5 if soonest == "event" else 1000)

    async def late(wait: Any, ctx: Any) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await wait(ctx)

    async def handler(state: dict[str, Any], ctx: Any) -> None:
        await ctx.step.arun("known", slow, "known", 0)
        waits = [nap, event] if first == "nap" else [event, nap]
        async with asyncio.TaskGroup() as group:
            group.create_task(waits[0](ctx))
            group.create_task(late(waits[1], ctx))

    handle = started(handler, attempts=1)
    drain(handle.run_id)
    parked = {step.key: step for step in Step.objects.filter(status="waiting")}
    assert parked.keys() == {"nap", "event"}
    due, deadline = Node.objects.get(run_id=handle.run_id, path="w.s.a").due_at, parked[soonest].deadline
    assert due is not None
    assert deadline is not None
    assert abs((due - deadline).total_seconds()) < 1


def test_threads_that_come_to_their_first_step_together_share_one_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(Steps):
        def __init__(self, attempt: Any) -> None:
            time.sleep(0.1)
            super().__init__(attempt)

    monkeypatch.setattr(attempt_module, "Steps", Slow)

    def handler(state: dict[str, Any], ctx: Any) -> None:
        together = threading.Barrier(4)

        def wait(number: int) -> None:
            together.wait(30)
            ctx.step.wait_event(f"e{number}", "x", timeout=100)

        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(wait, number) for number in range(4)]:
                future.result()

    handle = started(handler)
    workflows.dispatch(Workflow("other", stages=[Stage("s", actions=[Action("a", lambda state: None)])]), {})
    Worked(concurrency=4)
    assert set(Step.objects.filter(run_id=handle.run_id).values_list("key", "status")) == {
        (f"e{number}", "waiting") for number in range(4)
    }


def test_an_event_that_comes_while_a_body_is_at_work_beside_its_wait_is_taken() -> None:
    def publish() -> None:
        until(lambda: "work" in bodies)
        time.sleep(0.5)
        workflows.publish("x", 1)

    async def handler(state: dict[str, Any], ctx: Any) -> None:
        got.append(
            await asyncio.gather(ctx.step.await_event("a", "x"), ctx.step.arun("work", slow, "work", 1.5))
        )

    handle = started(handler, attempts=1)
    work_on(handle, publish)
    assert got == [[1, "work"]]
    assert bodies == ["work"]


def test_an_attempt_that_fails_leaves_what_is_in_hand_to_the_next_one_as_done() -> None:
    async def bad(attempt: int) -> str:
        await asyncio.sleep(0.05)
        if attempt == 1:
            raise ValueError("first time")
        return "good"

    async def handler(state: dict[str, Any], ctx: Any) -> None:
        steps = ctx.step.arun("bad", bad, ctx.attempt), ctx.step.arun("work", slow, "work", 1.0)
        got.append(await asyncio.gather(*steps, ctx.step.asleep("nap", 0.1)))

    handle = started(handler, attempts=2, backoff=0.1)
    work_on(handle)
    assert got == [["good", "work", None]]
    assert bodies == ["work"]
    assert node(handle.status(), "w.s.a").attempt == 2


def test_a_sleep_inside_the_body_of_a_step_suspends_the_handler() -> None:
    async def body(ctx: Any) -> str:
        await ctx.step.asleep("inner", 10)
        return "slept"

    async def handler(state: dict[str, Any], ctx: Any) -> None:
        outer = ctx.step.arun("one", body, ctx), ctx.step.arun("two", slow, "two", 0.05)
        got.append(await asyncio.gather(*outer))

    handle = started(handler)
    drain(handle.run_id)
    assert not got
    advance(10)
    drain(handle.run_id)
    assert got == [["slept", "two"]]
    assert bodies == ["two"]


def test_a_body_in_another_thread_is_not_called_again_while_it_is_at_work() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        def run() -> None:
            got.append(ctx.step.run("work", slow_plain, "work", 1.5))

        work = threading.Thread(target=run)
        work.start()
        time.sleep(0.2)
        ctx.step.sleep("nap", 0.3)
        work.join()

    handle = started(handler)
    work_on(handle)
    assert bodies == ["work"]
    assert got == ["work", "work"]
    assert handle.status().run.status == "completed"


@pytest.mark.parametrize("threads", [2, 1])
def test_waits_in_the_threads_of_a_pool_are_parked_together(threads: int) -> None:
    """Also those that one of its threads comes to, one after another."""

    def handler(state: dict[str, Any], ctx: Any) -> None:
        with ThreadPoolExecutor(threads) as pool:
            waits = [pool.submit(ctx.step.wait_event, key, key) for key in ("x", "y")]
        got.append([wait.result() for wait in waits])

    def publish() -> None:
        until(lambda: Step.objects.filter(status="waiting").count() == 2)
        for event in ("y", "x"):
            workflows.publish(event, event)

    handle = started(handler)
    work_on(handle, publish)
    assert got == [["x", "y"]]
    assert handle.status().run.status == "completed"


def test_waits_in_one_thread_of_a_pool_under_an_async_handler_are_parked_together() -> None:
    async def handler(state: dict[str, Any], ctx: Any) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool:
            waits = [loop.run_in_executor(pool, ctx.step.wait_event, key, key) for key in "xyz"]
            await asyncio.gather(*waits, return_exceptions=True)
        got.append(await asyncio.gather(*waits))

    started(handler, attempts=1)
    Worked(concurrency=2)
    assert set(Step.objects.values_list("key", "status")) == {(key, "waiting") for key in "xyz"}


def test_a_wait_after_one_that_the_handler_has_caught_is_not_parked() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        with suppress(BaseException):
            ctx.step.wait_event("x", "x")
        ctx.step.wait_event("y", "y")

    drain(started(handler).run_id)
    assert set(Step.objects.values_list("key", "status")) == {("x", "waiting")}


@pytest.mark.parametrize("first", ["bad", "nap", "work"])
def test_a_step_is_undone_whatever_was_at_work_beside_it(first: str) -> None:
    async def bad() -> None:
        await asyncio.sleep(0.1)
        raise Fatal("bad")

    async def handler(state: dict[str, Any], ctx: Any) -> None:
        steps = {
            "bad": lambda: ctx.step.arun("bad", bad),
            "nap": lambda: ctx.step.asleep("nap", 100),
            "work": lambda: ctx.step.arun("work", slow, "work", 0.3, compensate=got.append),
        }
        await asyncio.gather(steps.pop(first)(), *(step() for step in steps.values()))

    handle = started(handler)
    drain(handle.run_id)
    status = handle.status()
    assert status.run.error is not None
    assert "compensation_failures" not in status.run.error
    assert got == ["work"]
    assert bodies == ["work"]


@pytest.mark.parametrize("how", ["thread", "task"])
def test_a_first_step_after_the_handlers_end_is_refused(how: str) -> None:
    refused: list[BaseException] = []
    ended = threading.Event()

    def late(ctx: Any) -> None:
        ended.wait(20)
        try:
            ctx.step.run("late", slow_plain, "late", 0)
        except Exception as error:
            refused.append(error)

    def plain(state: dict[str, Any], ctx: Any) -> None:
        threading.Thread(target=late, args=(ctx,)).start()

    async def with_task(state: dict[str, Any], ctx: Any) -> None:
        got.append(asyncio.create_task(asyncio.to_thread(late, ctx)))

    def after(state: dict[str, Any]) -> None:
        ended.set()
        until(lambda: bool(refused))

    handle = started(plain if how == "thread" else with_task, Action("next", after), attempts=1)
    work_on(handle)
    assert [type(error) for error in refused] == [RuntimeError]
    assert str(refused[0]) == "w.s.a: ctx.step was used when its handler had ended already"
    assert (bodies, list(Step.objects.all())) == ([], [])


def test_a_task_that_an_attempt_has_left_behind_does_no_step_beside_the_next_one() -> None:
    again = asyncio.Event()

    async def left_behind(ctx: Any) -> None:
        await again.wait()
        with suppress(RuntimeError):
            await ctx.step.arun("once", slow, "left behind", 0.2)

    async def handler(state: dict[str, Any], ctx: Any) -> None:
        if ctx.attempt == 1:
            got.append(asyncio.create_task(left_behind(ctx)))
            raise Retry(delay=0)
        again.set()
        await ctx.step.arun("once", slow, "again", 0.2)

    handle = started(handler, attempts=2)
    work_on(handle)
    assert (handle.status().run.status, bodies) == ("completed", ["again"])


def test_a_step_that_fails_in_a_thread_beside_a_wait_is_heard_of() -> None:
    """Its outcome comes to the loop a moment after the step has ended."""

    def broken() -> None:
        bodies.append("broken")
        time.sleep(0.2)
        raise Fatal("broken")

    async def handler(state: dict[str, Any], ctx: Any) -> None:
        step = asyncio.to_thread(ctx.step.run, "broken", broken)
        await asyncio.gather(step, ctx.step.asleep("nap", 3600))

    handle = started(handler, attempts=1)
    Worked(concurrency=2)
    assert (node(handle.status(), "w.s.a").status, bodies) == ("failed", ["broken"])


def test_a_branch_whose_step_is_in_a_thread_goes_on_beside_a_wait() -> None:
    async def branch(ctx: Any) -> None:
        await asyncio.to_thread(ctx.step.run, "first", slow_plain, "first", 0.1)
        await ctx.step.arun("second", slow, "second", 0.05)

    async def handler(state: dict[str, Any], ctx: Any) -> None:
        await asyncio.gather(branch(ctx), ctx.step.asleep("nap", 3600))

    started(handler, attempts=1)
    Worked(concurrency=2)
    assert bodies == ["first", "second"]


def test_a_wait_that_is_replayed_beside_a_long_body_is_due_when_it_was_to_be() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> None:
        with ThreadPoolExecutor(3) as pool:
            if not got:
                got.append("parked")
                waits = [pool.submit(ctx.step.sleep, "short", 1), pool.submit(ctx.step.sleep, "nap", 100)]
                for wait in waits:
                    wait.exception()
                waits[0].result()
            ctx.step.sleep("short", 1)
            body = pool.submit(ctx.step.run, "work", slow_plain, "work", 2)
            until(lambda: bool(bodies))
            nap = pool.submit(ctx.step.sleep, "nap", 100)
            body.result()
            nap.result()

    started(handler, attempts=1)
    Worked(concurrency=2)
    advance(2)
    Worked(concurrency=2)
    parked = Node.objects.get(path="w.s.a")
    deadline = Step.objects.get(key="nap").deadline
    assert parked.status == "waiting"
    assert parked.due_at is not None
    assert deadline is not None
    assert (parked.due_at - deadline).total_seconds() < 1


@pytest.mark.parametrize("phase", ["run", "compensate"])
def test_a_handler_that_does_not_come_to_its_wait_again_leaves_nothing_open(phase: str) -> None:
    def waits(state: dict[str, Any], ctx: Any) -> None:
        got.append(ctx.attempt)
        if len(got) == 1:
            ctx.step.wait_event("event", "paid", timeout=50)

    def nothing(state: dict[str, Any]) -> None: ...

    parts = (waits,) if phase == "run" else (nothing, Action("boom", boom))
    handle = started(*parts, compensate=waits, attempts=1)
    drain(handle.run_id)
    advance(51)
    drain(handle.run_id)
    assert (got, handle.status().run.status) == ([1, 1], "completed" if phase == "run" else "compensated")
    assert list(Step.objects.values_list("key", "status")) == [("event", "failed")]
