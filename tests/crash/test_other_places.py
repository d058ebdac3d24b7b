"""Places where a tour never comes by: a cancel, a release; and whether any place was forgotten."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.celery.test_ends import PLACES as IN_CELERY
from tests.crash.test_kills import ON_THE_WAY, ON_THE_WAY_BACK
from tests.crash.test_moves import ALL as MOVES
from tests.crash.test_moves import BACK
from tests.crash.test_unknown_outcomes import KINDS
from tests.support import invariants
from tests.support.crash import called, calls, dispatch, finished, lose_leases, node, status, take_over
from tests.support.workers import Launcher, Worker, eventually
from workflow import failpoints, states
from workflow.models import Run, RunEvent
from workflow.results import RunHandle

pytestmark = pytest.mark.crash

CANCELS = ["cancel.before-commit", "cancel.after-commit"]


def test_workers_are_killed_at_every_place_that_has_a_name() -> None:
    """And around every kind of boundary that a worker settles."""
    places = {
        place.partition("@")[0] for place in (*ON_THE_WAY, *ON_THE_WAY_BACK, *CANCELS, "release.before")
    }
    places |= {place.partition("@")[0] for place in IN_CELERY}
    places |= {f"settle.answer:{kind}" for kind in KINDS}
    places |= {place.partition("@")[0] for place in (*MOVES, *(f"settle.before:{kind}" for kind in BACK))}
    assert {place.partition(":")[0] for place in places} == set(failpoints.NAMES)
    kinds = {kind for place in places for name, _, kind in [place.partition(":")] if name == "settle.before"}
    assert kinds >= {
        "run-running",  # starts
        "running-completed",  # completes
        "running-pending",  # fails, and is tried again
        "running-failed",  # fails
        "pending-waiting",  # a stage parks
        "running-waiting",  # a handler parks
        "waiting-running",  # a handler wakes
        "waiting-completed",  # a stage wakes
        "run-compensating",
        "completed-compensated",
        "run-completed",
        "run-compensated",
        "step",
        "job-moves",  # goes on with the next node
        "job-back",  # begins to undo
    }


def parked(workers: Launcher) -> tuple[RunHandle, Worker | None]:
    victim = dispatch("waiting", queue="victims")
    bystander = workers.start(queues=["victims"])
    eventually(lambda: status(victim) == states.WAITING)
    return victim, bystander


def pending(workers: Launcher) -> tuple[RunHandle, Worker | None]:
    return dispatch("pair", queue="victims"), None


def at_work(workers: Launcher) -> tuple[RunHandle, Worker | None]:
    victim = dispatch("pair", {"pair.s.a": ["hold:60"]}, queue="victims")
    bystander = workers.start(queues=["victims"])
    called(victim, "pair.s.a")
    return victim, bystander


@pytest.mark.parametrize("place", CANCELS)
@pytest.mark.parametrize("of", [pending, parked, at_work], ids=lambda of: of.__name__)
def test_a_cancel_whose_process_dies_is_whole_or_has_not_happened(
    workers: Launcher, place: str, of: Callable[[Launcher], tuple[RunHandle, Worker | None]]
) -> None:
    victim, bystander = of(workers)
    before = status(victim)
    canceller = dispatch("plain", {"plain.s.a": ["cancel"]}, data={"victim": str(victim.run_id)})
    first = workers.start(f"{place}=kill@1", queues=["default"])
    assert first.wait() == -signal.SIGKILL, first.said()
    assert status(victim) == (before if place == CANCELS[0] else states.CANCELLED)
    lose_leases(first.pid)
    workers.start(queues=["default"])
    finished(canceller, victim)
    assert (status(canceller), status(victim)) == (states.COMPLETED, states.CANCELLED)
    assert RunEvent.objects.filter(run_id=victim.run_id, name="cancelled").count() == 1
    if of is at_work:
        eventually(lambda: [how for _, _, how in calls(victim, "pair.s.a")] == ["Aborted"])
    if bystander is not None:
        assert bystander.stop() == 0
    invariants.check(zombies=True)


def test_a_job_that_was_being_given_back_when_its_worker_died_is_not_lost(workers: Launcher) -> None:
    handle = dispatch("plain")
    Run.objects.filter(pk=handle.run_id).update(version=99)  # nobody here serves it
    first = workers.start("release.before=kill@1")
    assert first.wait() == -signal.SIGKILL, first.said()
    Run.objects.filter(pk=handle.run_id).update(version=1)
    take_over()
    workers.start()
    finished(handle)
    assert (status(handle), node(handle, "plain.s.a").attempt) == (states.COMPLETED, 1)
    invariants.check(exact=True)
