"""A burst may be the only worker that a deployment has, now and then: what time has brought about is its work too."""

from __future__ import annotations

import pytest

from tests.support import invariants
from tests.support.crash import age_leases, dispatch, finished, make_due, status
from tests.support.workers import Launcher
from workflow import states
from workflow.models import Job
from workflow.testing import advance

pytestmark = pytest.mark.crash
SELDOM = {"SWEEP_INTERVAL": 3600}
"""No sweep comes by chance while the burst is at work."""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_burst_ends_waits_that_are_past_their_deadline_and_what_follows(
    workers: Launcher, processes: int
) -> None:
    handle = dispatch("short-wait")
    assert workers.start(burst=True, settings=SELDOM).wait() == 0
    assert status(handle) == states.WAITING
    advance(60)
    assert workers.start(burst=True, processes=processes, settings=SELDOM).wait() == 0
    assert status(handle) == states.COMPENSATED
    invariants.check()


def test_a_burst_takes_the_job_of_a_killed_one_back_for_the_next(workers: Launcher) -> None:
    handle = dispatch("pair")
    killed = workers.start("attempt.before=kill", burst=True, settings=SELDOM)
    killed.wait()
    age_leases(killed.pid)
    assert workers.start(burst=True, settings=SELDOM).wait() == 0
    assert not Job.objects.filter(lease_token__isnull=False).exists()
    make_due()
    assert workers.start(burst=True, settings=SELDOM).wait() == 0
    finished(handle)
    assert status(handle) == states.COMPLETED
    invariants.check()
