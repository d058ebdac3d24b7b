"""A database that cannot be reached before an atomic action's code is entered costs time, and no attempt."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest
from django.db import OperationalError
from django.db.backends.postgresql.base import DatabaseWrapper

from tests.support.moving import Worked, clean, status
from workflow import Action, Stage, Workflow, workflows
from workflow.executor import transactions
from workflow.results import RunHandle
from workflow.worker.process import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["clean"]

TIMEOUT = 0.5


class Full:
    """A server that takes no connection of handlers' threads until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tries: list[float] = []
        self.until = float("inf")
        connect = DatabaseWrapper.connect
        monkeypatch.setattr(transactions, "LONGEST_PAUSE", 0.2)

        def refuse(wrapper: Any) -> None:
            if not threading.current_thread().name.startswith("workflow-handler"):
                return connect(wrapper)
            self.tries.append(time.monotonic())
            if time.monotonic() > self.until:
                return connect(wrapper)
            refusal = psycopg.OperationalError("FATAL: sorry, too many clients already")
            raise OperationalError(str(refusal)) from refusal

        monkeypatch.setattr(DatabaseWrapper, "connect", refuse)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Full:
    return Full(monkeypatch)


def dispatch(calls: list[int]) -> RunHandle:
    def act(state: dict[str, Any], ctx: Any) -> None:
        calls.append(ctx.attempt)

    action = Action("act", act, atomic=True, attempts=1, timeout=TIMEOUT)
    return workflows.dispatch(Workflow("w", on_failure="halt", stages=[Stage("s", actions=[action])]), {})


def test_its_timeout_begins_with_its_code(full: Full) -> None:
    calls: list[int] = []
    handle = dispatch(calls)
    full.until = time.monotonic() + 4 * TIMEOUT
    Worked(concurrency=2)
    assert full.tries[-1] - full.tries[0] > 2 * TIMEOUT
    assert (status(handle), calls) == ("completed", [1])


def test_a_worker_that_stops_meanwhile_gives_the_unit_back(full: Full) -> None:
    calls: list[int] = []
    handle = dispatch(calls)

    def stop(process: WorkerProcess) -> None:
        def wait() -> None:
            while len(full.tries) < 3:
                time.sleep(0.01)
            process._loop.call_soon_threadsafe(process.stop)

        threading.Thread(target=wait, daemon=True).start()

    begun = time.monotonic()
    Worked(stop, concurrency=2)
    assert time.monotonic() - begun < 20  # it waits for no handler, whose grace is longer
    assert (status(handle), calls) == ("running", [])
    full.until = 0
    Worked(concurrency=2)
    assert (status(handle), calls) == ("completed", [1])
