"""More handlers than threads: waiting for a thread is nobody's fault, and uses nobody's time up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.moving import Worked, clean
from tests.support.workers import eventually
from workflow import Action, Stage, Workflow, workflows
from workflow.models import Job
from workflow.results import RunHandle
from workflow.worker.process import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["clean"]


@pytest.fixture(autouse=True)
def _one_thread(settings: Any) -> None:
    settings.WORKFLOW = {**settings.WORKFLOW, "THREADS": 1, "UNIT_TIMEOUT": 1.5}


def several(handler: Callable[..., Any], **options: Any) -> list[RunHandle]:
    tree = Workflow("queue", stages=[Stage("s", actions=[Action("a", handler, attempts=1, **options)])])
    return [workflows.dispatch(tree, {"n": n}) for n in range(3)]


def ends(runs: list[RunHandle]) -> list[tuple[str, Any]]:
    return [(run.status().run.status, run.status().run.error) for run in runs]


def test_a_handler_that_waits_for_a_thread_does_not_use_up_its_units_time() -> None:
    never = threading.Event()
    runs = several(lambda state: never.wait(1.0) and None)
    Worked(concurrency=10)
    assert ends(runs) == [("completed", None)] * 3


def test_a_gate_that_waits_for_a_thread_does_not_use_up_its_actions_time() -> None:
    never = threading.Event()
    runs = several(lambda state: never.wait(0.7) and None, timeout=1, when=lambda state: True)
    Worked(concurrency=10)
    assert ends(runs) == [("completed", None)] * 3


def test_a_gate_that_takes_too_long_is_still_told_so() -> None:
    never = threading.Event()
    runs = several(lambda state: None, timeout=0.3, when=lambda state: never.wait(2) or True)
    Worked(concurrency=1)
    for status, error in ends(runs):
        assert (status, error["code"]) == ("compensated", "ACTION_TIMEOUT")


def test_a_worker_that_is_told_to_stop_calls_no_handler_that_waits_for_a_thread() -> None:
    called: list[int] = []
    workers: list[WorkerProcess] = []

    def handler(state: dict[str, Any]) -> None:
        called.append(state["n"])
        eventually(lambda: len(workers[0]._units) == 3, what="the others are not in hand yet")
        workers[0]._loop.call_soon_threadsafe(workers[0].stop)
        eventually(lambda: len(workers[0]._units) == 1, what="the others were not given back")

    several(handler, timeout=60)
    Worked(workers.append, concurrency=10)
    assert called == [0]
    # They go on elsewhere as if they had never been claimed.
    assert list(Job.objects.values_list("attempt", "lease_token")) == [(0, None)] * 2
