"""Gates that misbehave: the node fails, and the worker goes on in full strength."""

from __future__ import annotations

import signal

import pytest

from tests.support import invariants
from tests.support.crash import calls, dispatch, finished, node, status, take_over
from tests.support.workers import Launcher, eventually
from tests.worker.test_bad_handlers import full_strength
from workflow import states
from workflow.errors import FailureCode
from workflow.models import Job

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("name", ["gated", "agated"])
def test_a_gate_that_does_not_answer_fails_its_node_and_gives_its_thread_back(
    workers: Launcher, name: str
) -> None:
    worker = workers.start(settings={"THREADS": 2})
    handles = [dispatch(name, data={"gate": "sleep"}) for _ in range(3)]
    finished(*handles, within=20)
    for handle in handles:
        assert status(handle) == states.COMPENSATED
        late = node(handle, f"{name}.s.a")
        assert (late.status, late.error["code"]) == (states.FAILED, FailureCode.ACTION_TIMEOUT)
        assert calls(handle, f"{name}.s.a") == []
    full_strength(2)
    invariants.check(at_rest=False)
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("name", "deed", "kind"), [("gated", "exit", "SystemExit"), ("agated", "cancelled", "CancelledError")]
)
def test_whatever_a_gate_raises_fails_its_node(workers: Launcher, name: str, deed: str, kind: str) -> None:
    workers.start(settings={"THREADS": 2})
    handle = dispatch(name, data={"gate": deed})
    finished(handle)
    assert node(handle, f"{name}.s.a").error["type"] == kind
    full_strength(2)


def test_what_a_gate_leaves_on_its_thread_does_not_reach_the_handler(workers: Launcher) -> None:
    workers.start(settings={"THREADS": 1}, conn_max_age=600)
    handles = [dispatch("gated", data={"gate": "begin"}), dispatch("atomic")]
    finished(*handles)
    assert [status(handle) for handle in handles] == [states.COMPLETED] * 2
    invariants.check(exact=True)


def test_a_gate_that_kills_its_worker_every_time_is_asked_a_bounded_number_of_times(
    workers: Launcher,
) -> None:
    """No attempt is written down for a gate; what bounds it is how often its job was claimed and lost."""
    handle = dispatch("gated", data={"gate": "kill"})
    lost = 0
    while status(handle) != states.COMPENSATED:
        worker = workers.start()
        eventually(lambda worker=worker: worker.code is not None or status(handle) == states.COMPENSATED)
        if worker.code is not None:
            assert worker.wait() == -signal.SIGKILL
            lost += take_over()
    assert 3 <= lost <= 12
    assert node(handle, "gated.s.a").error["code"] == FailureCode.LEASE_HEARTBEAT_LOST
    finished(handle)
    assert not Job.objects.exists()
    invariants.check()
