"""Runs of every kind go through Celery workers alone."""

from __future__ import annotations

import pytest

from tests.celery.conftest import Fleet
from tests.support import invariants
from tests.support.crash import calls, dispatch, finished, key_of, node, status
from tests.support.workers import eventually
from workflow import states, workflows
from workflow.models import Run, Worker

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(("pool", "concurrency"), [("prefork", 2), ("threads", 8), ("solo", 1)])
def test_runs_of_every_kind_go_through_its_pool(fleet: Fleet, pool: str, concurrency: int) -> None:
    worker = fleet.celery(pool, concurrency=concurrency)
    tour = dispatch("tour", {"tour.one.plain": ["fail", "retry:0.05", "ok"]})
    back = dispatch("pair", {"pair.s.b": ["fail", "fatal"]})
    wide = dispatch("wide")
    eventually(lambda: Run.objects.get(pk=tour.run_id).status == states.WAITING)
    workflows.publish("tour.go", {"went": True}, correlation=key_of(tour))
    finished(tour, back, wide)
    assert [status(handle) for handle in (tour, back, wide)] == [
        states.COMPLETED,
        states.COMPENSATED,
        states.COMPLETED,
    ]
    assert node(tour, "tour.one.plain").attempt == 3
    assert len(calls(back, "pair.s.a", "undo")) == 1
    invariants.check(exact=True)
    pids = {pid for handle in (tour, back, wide) for _, pid, _ in calls(handle, "wide.after.end")}
    assert pids <= set(worker.family())
    assert worker.stop() == 0
    assert not Worker.objects.filter(stopped_at=None).exists()
