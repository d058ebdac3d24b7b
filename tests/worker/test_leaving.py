"""How a worker process leaves, seen from inside."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from workflow import Action, Stage, Workflow, workflows
from workflow.registry import registry
from workflow.store import claims as claims_store
from workflow.store.ports import connection_parameters
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
            assert "the database does not answer, and the worker stops before it has signed on" in caplog.messages
        finally:
            stop.cancel()
            give_up.cancel()
