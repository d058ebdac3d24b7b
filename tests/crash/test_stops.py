"""A worker is frozen at each place around a commit: until its leases are gone, or while its connections are cut.

`make crash` freezes it at all of them, `make test` at some.
"""

from __future__ import annotations

import signal

import pytest

from tests.crash.test_kills import ON_THE_WAY, ON_THE_WAY_BACK, tour_past
from tests.support import invariants
from tests.support.crash import (
    THOROUGH,
    dispatch,
    finished,
    key_of,
    lose_leases,
    sessions,
    status,
    terminate,
)
from tests.support.workers import SETTINGS, Launcher, Worker, eventually
from workflow import states, workflows
from workflow.results import RunHandle

pytestmark = pytest.mark.crash

BACK = {"tour.last.end": ["fail", "fatal"]}
ALL = [(place, False) for place in ON_THE_WAY] + [(place, True) for place in ON_THE_WAY_BACK]
# In an atomic action's commit it holds the run's lock: see tests/worker/test_locks.py.
ALL = [(place, back) for place, back in ALL if not place.startswith("atomic.before-commit")]
PLACES = ALL if THOROUGH else ALL[::6]

LET_GO = SETTINGS["STALE_LEASE_THRESHOLD"] + 60
"""Seconds in which another worker ends the run, for certain. One that is frozen where it comes by whenever its time is
there, such as `sweep.before`, may be in an atomic action's commit as well, with the run's lock: the server ends that
transaction when a lease would be over."""


def frozen(workers: Launcher, place: str, back: bool) -> tuple[RunHandle, Worker]:
    """A tour whose worker is stopped at that place."""
    name, _, nth = place.partition("@")
    handle = dispatch(tour_past(name), BACK if back else None)
    workflows.publish("tour.go", {"went": True}, correlation=key_of(handle))
    worker = workers.start(f"{name}=stop@{nth or 1}")
    eventually(lambda: worker.code is not None or worker.is_stopped(), what=worker.said)
    return handle, worker


def expected(back: bool) -> str:
    return states.COMPENSATED if back else states.COMPLETED


@pytest.mark.timeout(LET_GO + 60)
@pytest.mark.parametrize(("place", "back"), PLACES)
def test_a_worker_that_comes_back_after_its_leases_are_gone_changes_nothing(
    workers: Launcher, place: str, back: bool
) -> None:
    handle, first = frozen(workers, place, back)
    lose_leases(first.pid)
    second = workers.start()
    finished(handle, within=LET_GO)
    assert status(handle) == expected(back)
    first.send(signal.SIGCONT)
    assert first.stop() == 0
    assert status(handle) == expected(back)
    invariants.check(zombies=True, dead={first.pid})  # what it was about to call, it may still have called
    assert second.stop() == 0


@pytest.mark.parametrize(("place", "back"), PLACES)
def test_a_worker_whose_connections_are_cut_right_there_goes_on(
    workers: Launcher, place: str, back: bool
) -> None:
    handle, worker = frozen(workers, place, back)
    terminate(sessions())
    worker.send(signal.SIGCONT)
    finished(handle)
    assert status(handle) == expected(back)
    invariants.check(exact=True)
    assert worker.stop() == 0
