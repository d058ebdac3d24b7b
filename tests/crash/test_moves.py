"""A worker dies, is frozen or is cut off where its job moves on to the next node: one outcome, nothing done twice."""

from __future__ import annotations

import signal

import pytest

from tests.support import invariants
from tests.support.crash import (
    THOROUGH,
    called,
    calls,
    dispatch,
    finished,
    lose_leases,
    node,
    status,
    take_over,
)
from tests.support.workers import Launcher, eventually
from workflow import states, workflows
from workflow.errors import FailureCode
from workflow.models import Job, Node
from workflow.results import RunHandle

pytestmark = pytest.mark.crash

ACTIONS = ("one.a.plain", "one.a.queued", "one.b.atomic", "one.c.gated", "two.d.end")
MOVES = range(1, 7)
"""The boundaries of a chain that take its job on: down to its first stage and action, and so on to its end."""
ALL = [f"settle.{when}:job-moves@{number}" for number in MOVES for when in ("before", "after")]
PLACES = ALL if THOROUGH else ALL[::2]
BACK = [
    "job-moves@5",
    "job-back@1",
    "completed-compensated@1",
    "completed-compensated@3",
    "run-compensated@1",
]
"""The boundaries of one whose last action fails: its job goes back instead of to its end."""
FAILS = {"two.d.end": ["fatal"]}


def ended(handle: RunHandle, back: bool = False) -> bool:
    finished(handle)
    return status(handle) == (states.COMPENSATED if back else states.COMPLETED)


def at(place: str, deed: str) -> str:
    """The failpoint that does this at a place."""
    name, _, nth = place.partition("@")
    return f"{name}={deed}@{nth}"


def test_a_chain_is_one_job_from_its_first_node_to_its_last(workers: Launcher) -> None:
    """Else none of the other tests here would come by the places that it names."""
    worker = workers.start(f"settle.before:job-moves=kill@{MOVES[-1] + 1}")
    handle = dispatch("chain")
    assert ended(handle)
    assert worker.stop() == 0
    dispatch("chain")
    assert workers.start(f"settle.before:job-moves=kill@{MOVES[-1]}").wait() == -signal.SIGKILL


@pytest.mark.parametrize("place", PLACES)
def test_a_run_survives_a_worker_that_is_killed_there(workers: Launcher, place: str) -> None:
    handle = dispatch("chain")
    first = workers.start(at(place, "kill"))
    assert first.wait() == -signal.SIGKILL, first.said()
    take_over()
    second = workers.start()
    assert ended(handle)
    invariants.check()
    assert sum(len(calls(handle, path)) for path in ACTIONS) <= len(ACTIONS) + 1
    assert second.stop() == 0


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("place", BACK)
def test_a_run_that_goes_back_survives_it_too(workers: Launcher, place: str, when: str) -> None:
    handle = dispatch("chain", FAILS)
    first = workers.start(at(f"settle.{when}:{place}", "kill"))
    assert first.wait() == -signal.SIGKILL, first.said()
    take_over()
    second = workers.start()
    assert ended(handle, back=True)
    assert {node(handle, path).status for path in ACTIONS[:-1]} == {states.COMPENSATED}
    invariants.check()
    assert sum(len(calls(handle, path, "undo")) for path in ACTIONS) <= len(ACTIONS[:-1]) + 1
    assert second.stop() == 0


@pytest.mark.parametrize("place", BACK)
def test_what_takes_it_back_counts_once_though_the_answer_is_lost(workers: Launcher, place: str) -> None:
    worker = workers.start(at(f"settle.answer:{place}", "lose"))
    handle = dispatch("chain", FAILS)
    assert ended(handle, back=True)
    assert worker.lines("failpoint settle.answer")
    assert [len(calls(handle, path, "undo")) for path in ACTIONS] == [1, 1, 1, 1, 0]
    invariants.check(exact=True)
    assert worker.stop() == 0


@pytest.mark.parametrize("number", MOVES)
def test_a_move_whose_answer_is_lost_counts_once(workers: Launcher, number: int) -> None:
    worker = workers.start(f"settle.answer:job-moves=lose@{number}")
    handle = dispatch("chain")
    assert ended(handle)
    assert worker.lines("failpoint settle.answer")
    assert [len(calls(handle, path)) for path in ACTIONS] == [1] * len(ACTIONS)
    invariants.check(exact=True)
    assert worker.stop() == 0


@pytest.mark.parametrize("place", ALL if THOROUGH else ALL[::4])
def test_a_worker_that_is_frozen_there_changes_nothing_afterwards(workers: Launcher, place: str) -> None:
    handle = dispatch("chain")
    first = workers.start(at(place, "stop"))
    eventually(lambda: first.code is not None or first.is_stopped(), what=first.said)
    lose_leases(first.pid)
    second = workers.start()
    assert ended(handle)
    first.send(signal.SIGCONT)
    assert first.stop() == 0
    assert status(handle) == states.COMPLETED
    invariants.check(zombies=True, dead={first.pid})
    assert second.stop() == 0


def test_a_child_that_kills_its_process_every_time_is_called_as_often_as_it_has_attempts(
    workers: Launcher,
) -> None:
    handle = dispatch("chain", {"one.c.gated": ["kill"]})
    for _ in range(3):
        assert workers.start().wait() == -signal.SIGKILL
        take_over()
    workers.start()
    assert ended(handle, back=True)
    assert node(handle, "one.c.gated").error["code"] == FailureCode.LEASE_HEARTBEAT_LOST
    assert len(calls(handle, "one.c.gated")) == 3
    invariants.check()


def test_a_job_that_has_moved_is_cancelled_with_its_run(workers: Launcher) -> None:
    worker = workers.start(settings={"POLL_INTERVAL": 30, "HEARTBEAT_INTERVAL": 20})
    handle = dispatch("chain", {"two.d.end": ["hold:60"]})
    called(handle, "two.d.end")
    (job,) = Job.objects.filter(run_id=handle.run_id)
    assert (job.node_id, job.attempt) == (node(handle, "two.d").id, 1)
    workflows.cancel(handle.run_id)
    eventually(lambda: calls(handle, "two.d.end")[0][2] == "Aborted")
    assert (status(handle), worker.stop()) == (states.CANCELLED, 0)
    assert not Node.objects.filter(run_id=handle.run_id, status__in=states.NODE_LIVE).exists()
    invariants.check()
