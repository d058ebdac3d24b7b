"""When a worker has had enough: what moves on counts, and stops, as what is claimed does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.db import connection

from tests.support.moving import (
    WHOLE,
    Worked,
    called,
    clean,
    deeds,
    jobs,
    status,
)
from workflow import states, workflows
from workflow.models import Job, Node
from workflow.worker.process import RETIRED, WorkerProcess

__all__ = ["clean"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_each_move_counts_as_a_job_that_was_taken() -> None:
    run = workflows.dispatch("chain", {})
    worked = Worked(max_jobs=3)
    assert (worked.taken, worked.code) == (3, RETIRED)
    assert (called, jobs(run)) == (WHOLE[:1], [("chain.s1", 0)])
    while status(run) != states.COMPLETED:
        worked = Worked(max_jobs=3)
        assert worked.taken <= 3
    assert called == WHOLE


@pytest.mark.parametrize("how", ["stop", "hurry"])
def test_a_worker_that_stops_begins_nothing_new(how: str) -> None:
    processes: list[WorkerProcess] = []

    async def stop(ctx: Any) -> None:
        getattr(processes[0], how)()

    deeds["achain.s1.a"] = stop
    run = workflows.dispatch("achain", {})
    Worked(processes.append)
    assert called == ["achain.s0.a", "achain.s1.a"]
    ((path, attempt),) = jobs(run)
    assert (path in ("achain", "achain.s1"), attempt) == (True, 0)
    deeds.clear()
    Worked()
    assert status(run) == states.COMPLETED
    attempts = Node.objects.filter(run_id=run.run_id, kind="action").values_list("attempt", flat=True)
    assert set(attempts) == {1}


def test_a_worker_that_cannot_heartbeat_moves_nothing(settings: Any) -> None:
    settings.WORKFLOW = {"HEARTBEAT_INTERVAL": 1, "POLL_INTERVAL": 0.1}
    processes: list[WorkerProcess] = []
    seen: list[Any] = []

    def look(ctx: Any) -> None:
        seen.append(Job.objects.get(run_id=ctx.run_id).pk)
        if ctx.path == WHOLE[1]:
            processes[0]._heartbeat.silent = True  # until the next beat

    deeds.update(dict.fromkeys(WHOLE, look))
    run = workflows.dispatch("chain", {})
    Worked(processes.append)
    assert status(run) == states.COMPLETED
    assert seen[0] == seen[1]
    assert seen[2] == seen[3] != seen[1]


def test_each_node_has_the_whole_of_the_units_timeout(settings: Any) -> None:
    settings.WORKFLOW = {"UNIT_TIMEOUT": 2}
    deeds.update({f"achain.s{n}.a": lambda ctx: asyncio.sleep(0.8) for n in range(4)})
    run = workflows.dispatch("achain", {})
    assert Worked().taken == 9
    assert status(run) == states.COMPLETED
    assert set(Node.objects.filter(run_id=run.run_id, kind="action").values_list("attempt", flat=True)) == {1}


def test_past_it_the_child_in_hand_has_had_an_attempt(settings: Any) -> None:
    settings.WORKFLOW = {"UNIT_TIMEOUT": 1}
    tries: list[int] = []

    async def slow(ctx: Any) -> None:
        tries.append(ctx.attempt)
        await asyncio.sleep(60 if ctx.attempt == 1 else 0)

    deeds["achain.s1.a"] = slow
    run = workflows.dispatch("achain", {})
    Worked()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workflow_job SET available_at = now()")
        cursor.execute("UPDATE workflow_node SET due_at = now() WHERE due_at IS NOT NULL")
    Worked()
    assert (status(run), tries) == (states.COMPLETED, [1, 2])
