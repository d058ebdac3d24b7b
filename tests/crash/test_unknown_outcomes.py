"""A commit succeeds and its answer never comes: the worker asks what happened, and does nothing twice."""

from __future__ import annotations

import pytest

from tests.crash.test_kills import tour_past
from tests.support import invariants
from tests.support.crash import calls, dispatch, finished, key_of, node, status
from tests.support.workers import Launcher
from workflow import states, workflows

pytestmark = pytest.mark.crash

KINDS = [
    "run-running",
    "running-completed",
    "running-completed@3",
    "job-await",
    "job-release",
    "job-delete",
    "step",
    "step@2",
    "running-waiting",
    "waiting-running",
    "pending-waiting",
    "running-pending",
    "running-failed",
    "run-compensating",
    "completed-compensated",
    "compensate@3",
    "run-compensated",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_boundary_whose_answer_is_lost_counts_once(workers: Launcher, kind: str) -> None:
    name, _, nth = kind.partition("@")
    worker = workers.start(f"settle.answer:{name}=lose@{nth or 1}")
    handle = dispatch(tour_past(name), {"tour.last.end": ["fail", "fatal"]})
    workflows.publish("tour.go", correlation=key_of(handle))
    finished(handle)
    assert status(handle) == states.COMPENSATED
    assert worker.lines("failpoint settle.answer")
    invariants.check(exact=True)
    assert worker.stop() == 0


def test_an_atomic_action_whose_commit_is_not_answered_counts_once(workers: Launcher) -> None:
    """Its neighbour settles a boundary of the same job before anybody asks, so the job's stamp tells nothing."""
    worker = workers.start("atomic.after-commit=sleep:1,atomic.after-commi*=lose@1")
    handle = dispatch("aside", {"aside.s.a": ["sleep:0.4"]})
    finished(handle)
    assert status(handle) == states.COMPLETED
    assert (node(handle, "aside.s.c").attempt, len(calls(handle, "aside.s.c"))) == (1, 1)
    assert not worker.lines("refused")
    invariants.check(exact=True)


def test_an_atomic_compensation_whose_commit_is_not_answered_counts_once(workers: Launcher) -> None:
    workers.start("atomic.after-commit=lose@2")
    handle = dispatch("tour", {"tour.last.end": ["fatal"]})
    workflows.publish("tour.go", correlation=key_of(handle))
    finished(handle)
    assert status(handle) == states.COMPENSATED
    assert len(calls(handle, "tour.two.atomic", "undo")) == 1
    invariants.check(exact=True)
