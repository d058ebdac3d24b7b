"""How a worker process leaves, seen from inside."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import connections

from workflow import Action, Stage, Workflow, workflows
from workflow.registry import registry
from workflow.store import claims as claims_store
from workflow.store.ports import connection_parameters
from workflow.worker import leaving
from workflow.worker import process as worker_process
from workflow.worker.options import Options

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with registry.isolated():
        yield


def burst(concerning: list[worker_process.WorkerProcess]) -> int:
    """A worker process, here, until nothing is due; its exit status."""
    parameters = connection_parameters()

    async def main() -> int:
        process = worker_process.WorkerProcess(parameters, Options(concurrency=10, burst=True))
        concerning.append(process)
        return await process.run()

    return asyncio.run(main())


class Unheeding:
    """A transport below which some library swallows the first cancellation, and goes on waiting."""

    def __init__(self, *arguments: Any) -> None:
        """Takes what every doorbell takes."""

    async def listen(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()


def test_a_background_task_that_misses_its_cancellation_keeps_no_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workflows.dispatch(Workflow("one", stages=[Stage("s", actions=[Action("a", lambda state: None)])]), {})
    monkeypatch.setattr(worker_process, "doorbell_class", lambda: Unheeding)
    assert burst([]) == 0
    assert "left behind" not in caplog.text


def test_a_burst_takes_what_a_unit_leaves_behind_while_the_worker_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last unit ends, and adds a job, after a claim has seen that nothing is due and before it is back."""
    processes: list[worker_process.WorkerProcess] = []
    may_end: list[asyncio.Event] = []
    claim = claims_store.claim

    async def hold(state: dict[str, Any]) -> None:
        may_end.append(asyncio.Event())
        await may_end[0].wait()

    async def claim_slowly(*arguments: Any, **options: Any) -> Any:
        found = await claim(*arguments, **options)
        if not found[0] and may_end and not may_end[0].is_set():
            may_end[0].set()
            while len(processes[0]._units):
                await asyncio.sleep(0.001)
        return found

    monkeypatch.setattr(claims_store, "claim", claim_slowly)
    first = Stage("first", actions=[Action("hold", hold)])
    second = Stage("second", actions=[Action("act", lambda state: None)], via="queue")
    handle = workflows.dispatch(Workflow("two", stages=[first, second]), {})
    assert burst(processes) == 0
    assert may_end[0].is_set()
    assert handle.status().run.status == "completed"


def test_what_does_not_end_in_the_callers_process_is_named_and_left_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_end = threading.Event()

    async def deaf() -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    async def main() -> int:
        task = asyncio.create_task(deaf(), name="a.deaf.handler")
        thread = asyncio.create_task(asyncio.to_thread(may_end.wait, 60))
        await asyncio.sleep(0.1)
        assert not task.done()
        assert not thread.done()
        return 7

    begun = time.monotonic()
    try:
        assert leaving.run(main()) == 7
        assert time.monotonic() - begun < 15
    finally:
        may_end.set()
    assert "left behind: a.deaf.handler, what asyncio.to_thread has begun" in caplog.messages


def test_what_ends_in_time_is_not_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    closed = []

    async def generator() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closed.append("generator")

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.to_thread(time.sleep, 0.1)
            closed.append("task")

    async def main() -> AsyncIterator[int]:
        task = asyncio.create_task(slow())
        numbers = generator()
        assert await anext(numbers) == 1
        assert not task.done()
        return numbers

    assert leaving.run(main()) is not None
    assert sorted(closed) == ["generator", "task"]
    assert caplog.messages == []


@pytest.mark.parametrize("waits", [True, False], ids=["which does more", "which is over"])
def test_a_thread_that_does_not_end_does_not_hold_up_the_end_of_a_program(waits: bool) -> None:
    """And nothing that the program does before its end is cut short."""
    program = f"""
import sys, time
import django
django.setup()
from concurrent.futures import ThreadPoolExecutor
from workflow.worker import leaving
leaving.LAST_PATIENCE = 0.5
ThreadPoolExecutor(1).submit(time.sleep, 60)
leaving.leave_in_time(3)
time.sleep({1.5 if waits else 0})
print("over")
sys.exit(3)
"""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.crash_app.settings"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "over\n")
    assert "without waiting for threads: " in done.stderr


def test_signals_are_heard_again_after_a_start_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("no parameters")

    monkeypatch.setattr(worker_process, "parameters_of", fail)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        with pytest.raises(RuntimeError, match="no parameters"):
            worker_process.run_process(Options(concurrency=1))
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_worker_that_starts_while_the_server_is_frozen_hears_that_it_is_to_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel takes connections, and nobody answers on them."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        host, port = frozen.getsockname()
        monkeypatch.setitem(connections["default"].settings_dict, "HOST", host)
        monkeypatch.setitem(connections["default"].settings_dict, "PORT", str(port))
        connections["default"].close()
        stop = threading.Timer(1, os.kill, [os.getpid(), signal.SIGTERM])
        give_up = threading.Timer(20, frozen.close)  # which ends the connection, and the test
        stop.start()
        give_up.start()
        try:
            assert worker_process.run_process(Options(concurrency=1)) == 0
            assert give_up.is_alive(), "it has waited for the server"
            assert (
                "the database does not answer, and the worker stops before it has signed on"
                in caplog.messages
            )
        finally:
            stop.cancel()
            give_up.cancel()
