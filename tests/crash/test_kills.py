"""A worker is killed at each place around a commit; another one takes over, and nothing is lost or done twice."""

from __future__ import annotations

import signal
from collections.abc import Iterable

import pytest

from tests.support import invariants
from tests.support.crash import calls, dispatch, finished, key_of, node, status, take_over
from tests.support.workers import Launcher
from workflow import states, workflows
from workflow.results import RunHandle

pytestmark = pytest.mark.crash

ON_THE_WAY = [
    "claim.before",
    "claim.after",
    "claim.after@4",
    "claim.opened",
    "settle.before:run-running",
    "settle.after:run-running",
    "settle.before:running-completed",
    "settle.after:running-completed",
    "settle.before:running-completed@3",
    "settle.before:job-await",
    "settle.after:job-await",
    "settle.before:job-delete",
    "settle.after:job-delete",
    "settle.before:step",
    "settle.after:step",
    "settle.after:step@2",
    "settle.before:running-waiting",
    "settle.after:running-waiting",
    "settle.before:waiting-running",
    "settle.after:waiting-running",
    "settle.before:pending-waiting",
    "settle.after:pending-waiting",
    "settle.before:waiting-completed",
    "settle.after:waiting-completed",
    "settle.before:run-completed",
    "settle.after:run-completed",
    "attempt.before",
    "attempt.after",
    "attempt.before@4",
    "attempt.after@5",
    "atomic.before-commit",
    "atomic.after-commit",
    "deliver.before",
    "deliver.resolved",
    "deliver.resolved@2",
    "heartbeat.before",
    "heartbeat.before@3",
    "sweep.before",
    "sweep.after",
]
ON_THE_WAY_BACK = [
    "settle.before:running-pending",
    "settle.after:running-pending",
    "settle.before:job-release",
    "settle.after:job-release",
    "settle.before:running-failed",
    "settle.after:running-failed",
    "settle.before:run-compensating",
    "settle.after:run-compensating",
    "settle.before:compensate",
    "settle.after:compensate",
    "settle.before:compensate@2",
    "settle.after:compensate@4",
    "settle.before:completed-compensated@2",
    "settle.after:completed-compensated@3",
    "settle.before:run-compensated",
    "settle.after:run-compensated",
    "atomic.before-commit@2",
    "atomic.after-commit@2",
]


def tour_past(place: str) -> str:
    """The tour that comes by there. A run is begun by its claim, where no gate keeps it from that."""
    return "gated-tour" if place.endswith("run-running") else "tour"


def killed(workers: Launcher, place: str, script: dict[str, list[str]] | None = None) -> RunHandle:
    """A tour whose first worker dies at that place; finished by a second one."""
    name, _, nth = place.partition("@")
    handle = dispatch(tour_past(name), script)
    workflows.publish("tour.go", {"went": True}, correlation=key_of(handle))
    first = workers.start(f"{name}=kill@{nth or 1}")
    assert first.wait() == -signal.SIGKILL, first.said()
    take_over()
    second = workers.start()
    finished(handle)
    invariants.check()
    assert second.stop() == 0
    return handle


@pytest.mark.parametrize("place", ON_THE_WAY)
def test_a_run_survives_its_worker_on_the_way(workers: Launcher, place: str) -> None:
    handle = killed(workers, place)
    assert status(handle) == states.COMPLETED
    assert once_but_for_one(handle, ["tour.one.plain", "tour.two.async", "tour.two.queued", "tour.last.end"])


@pytest.mark.parametrize("place", ON_THE_WAY_BACK)
def test_a_run_survives_its_worker_on_the_way_back(workers: Launcher, place: str) -> None:
    handle = killed(workers, place, {"tour.last.end": ["fail", "fatal"]})
    assert status(handle) == states.COMPENSATED
    for path in (
        "tour.one.plain",
        "tour.two.async",
        "tour.two.queued",
        "tour.two.atomic",
        "tour.three.steps",
    ):
        assert node(handle, path).status == states.COMPENSATED


def once_but_for_one(handle: RunHandle, paths: Iterable[str]) -> bool:
    """Whether at most one of the handlers was called again: the one that died with its worker."""
    again = [path for path in paths if len(calls(handle, path)) > 1]
    return len(again) <= 1 and all(len(calls(handle, path)) <= 2 for path in paths)
