"""A worker process that claims only what it is asked for, run inside of the test."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections
from django.db.models.functions import Now

from workflow import Action, Stage, Workflow, ids, states, workflows
from workflow.celery.engine import Engine
from workflow.models import Job, Run, Worker
from workflow.registry import registry
from workflow.results import RunHandle
from workflow.store.ports import connection_parameters
from workflow.worker.options import Options
from workflow.worker.process import WorkerProcess
from workflow.worker.sources import Asked

pytestmark = pytest.mark.django_db(transaction=True)

Test = Callable[[WorkerProcess, Asked], Awaitable[None]]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with registry.isolated():
        yield


def asked(test: Test, concurrency: int = 2) -> None:
    """`test` talks to a worker process that is at work, which then stops."""
    parameters = connection_parameters()

    async def main() -> None:
        sources: list[Asked] = []

        def source(ring: Callable[[], None]) -> Asked:
            sources.append(Asked(ring))
            return sources[0]

        process = WorkerProcess(parameters, Options(concurrency=concurrency), source)
        running = asyncio.create_task(process.run())
        try:
            async with asyncio.timeout(60):
                await test(process, sources[0])
        finally:
            process.stop()
            await running
            await sync_to_async(connections.close_all)()

    asyncio.run(main())


def workflow(run: Callable[..., Any], name: str = "one") -> Workflow:
    found = Workflow(name, stages=[Stage("s", actions=[Action("a", run)])])
    workflows.register(found)
    return found


def job_of(handle: RunHandle) -> str:
    return str(Job.objects.get(run_id=handle.run_id).pk)


def status(handle: RunHandle) -> str:
    return Run.objects.get(pk=handle.run_id).status


def test_it_takes_what_it_is_asked_for_and_leaves_what_else_is_due() -> None:
    one = workflow(lambda state: None)
    wanted, other = workflows.dispatch(one, {}), workflows.dispatch(one, {})
    job = job_of(wanted)

    async def test(process: WorkerProcess, source: Asked) -> None:
        assert await source.serve(job)
        assert not await source.serve(job)
        assert not await source.serve(str(uuid.uuid4()))

    asked(test)
    assert (status(wanted), status(other)) == (states.COMPLETED, states.PENDING)
    assert Worker.objects.get().stopped_at is not None


def test_it_waits_for_room_and_two_who_ask_for_one_job_wait_for_it_together() -> None:
    at_work: list[int] = []
    most: list[int] = []

    async def run(state: dict[str, Any]) -> None:
        at_work.append(1)
        most.append(len(at_work))
        await asyncio.sleep(0.05)
        at_work.pop()

    handles = [workflows.dispatch(workflow(run) if n == 0 else "one", {}) for n in range(6)]
    jobs = [job_of(handle) for handle in handles]

    async def test(process: WorkerProcess, source: Asked) -> None:
        answers = await asyncio.gather(*(source.serve(job) for job in jobs * 2))
        assert all(answers)

    asked(test, concurrency=2)
    assert max(most) == 2
    assert len(most) == 6


def test_a_job_that_somebody_has_locked_for_a_moment_is_looked_at_again() -> None:
    handle = workflows.dispatch(workflow(lambda state: None), {})
    job = job_of(handle)
    locking = connection.copy()
    locking.set_autocommit(False)
    with locking.cursor() as cursor:
        cursor.execute("SELECT FROM workflow_job WHERE id = %s FOR UPDATE", (job,))

    async def test(process: WorkerProcess, source: Asked) -> None:
        serving = asyncio.create_task(source.serve(job))
        while not any(each.looks for each in source._asked.values()):
            await asyncio.sleep(0.005)
        await sync_to_async(locking.rollback)()
        assert await serving

    locking.inc_thread_sharing()
    try:
        asked(test)
    finally:
        locking.close()
    assert status(handle) == states.COMPLETED


def test_what_is_asked_for_too_late_is_to_be_rung_again() -> None:
    started = asyncio.Event()

    async def run(state: dict[str, Any]) -> None:
        started.set()
        await asyncio.sleep(0.2)

    one = workflow(run)
    handles = [workflows.dispatch(one, {}) for _ in range(3)]
    jobs = [job_of(handle) for handle in handles]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workflow_job SET rung_at = now()")

    async def test(process: WorkerProcess, source: Asked) -> None:
        first = asyncio.create_task(source.serve(jobs[0]))
        await started.wait()
        second = asyncio.create_task(source.serve(jobs[1]))
        await asyncio.sleep(0)
        process.stop()
        assert not await second
        assert not await source.serve(jobs[2])
        assert await first

    asked(test, concurrency=1)
    assert [status(handle) for handle in handles] == [states.COMPLETED, states.PENDING, states.PENDING]
    assert list(Job.objects.order_by("pk").values_list("rung_at", "attempt")) == [(None, 0), (None, 0)]


def test_a_message_for_an_engine_that_has_stopped_is_passed_on() -> None:
    handle = workflows.dispatch(workflow(lambda state: None), {})
    job = job_of(handle)
    Job.objects.update(rung_at=Now())
    engine = Engine(1)
    engine.start()
    engine.stop()
    engine.join(30)
    assert not engine.serve(job)
    assert Job.objects.get().rung_at is None
    assert status(handle) == states.PENDING


def test_an_engine_serves_from_any_thread_until_it_is_stopped() -> None:
    handles = [workflows.dispatch(workflow(lambda state: None) if n == 0 else "one", {}) for n in range(8)]
    jobs = [job_of(handle) for handle in handles]
    engine = Engine(4)
    engine.start()
    try:
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(engine.serve, jobs)) == [True] * 8
    finally:
        engine.stop()
        engine.join(30)
    assert {status(handle) for handle in handles} == {states.COMPLETED}
    assert Worker.objects.get().stopped_at is not None


def test_a_version_that_is_not_served_here_goes_back_with_its_attempt() -> None:
    handle = workflows.dispatch(workflow(lambda state: None), {})
    job = job_of(handle)
    Run.objects.update(version=7)

    async def test(process: WorkerProcess, source: Asked) -> None:
        assert await source.serve(job)

    asked(test)
    left = Job.objects.get()
    assert (left.attempt, left.lease_token) == (0, None)
    assert left.last_error.startswith("version:")


def test_a_message_that_comes_as_the_engines_loop_ends_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is scheduled between the last turn of a loop and its close is never run, and raises nothing."""
    engine = Engine(1)
    closing, scheduled = threading.Event(), threading.Event()
    schedule = asyncio.run_coroutine_threadsafe
    close = asyncio.SelectorEventLoop.close

    def close_late(loop: asyncio.SelectorEventLoop) -> None:
        if threading.current_thread().name == "workflow-engine":
            closing.set()
            scheduled.wait(10)
        close(loop)

    def schedule_late(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
        engine.stop()
        assert closing.wait(20)
        future = schedule(work, loop)
        scheduled.set()
        return future

    monkeypatch.setattr(asyncio.SelectorEventLoop, "close", close_late)
    engine.start()
    with engine._changed:
        assert engine._changed.wait_for(lambda: engine._working is not None, 20)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", schedule_late)
    answers: list[bool] = []

    def serve() -> None:
        try:
            answers.append(engine.serve(str(ids.new_id())))
        finally:
            connections.close_all()

    message = threading.Thread(target=serve, daemon=True)
    message.start()
    message.join(20)
    engine.join(20)
    assert answers == [False]
