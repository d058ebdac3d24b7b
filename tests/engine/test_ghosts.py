"""Jobs that must not be executed here, and results that must not count: each is counted, and said in one line."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.postgres.functions import TransactionNow
from django.db.models.functions import Now

from tests.support.runs import PATIENCE, staged
from workflow import Action, workflows
from workflow.executor import ghosts
from workflow.models import Job, Node, Run
from workflow.testing import drain

called: list[str] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    called.clear()


def run(state: dict[str, Any], ctx: Any) -> str:
    called.append(ctx.path)
    if state.get("cancel"):
        workflows.cancel(ctx.run_id)
    return "a result"


def job_of_a_run_that_is_over() -> uuid.UUID:
    run_id = workflows.dispatch(staged(Action("act", run)), {}).run_id
    Run.objects.filter(pk=run_id).update(status="cancelled", finished_at=Now())
    Node.objects.filter(run_id=run_id).update(status="cancelled", finished_at=Now())
    return run_id


def job_of_a_run_that_nobody_can_see() -> uuid.UUID:
    run_id = uuid.uuid4()
    Job.objects.create(run_id=run_id, node_id=uuid.uuid4(), available_at=TransactionNow())
    return run_id


def job_of_another_version() -> uuid.UUID:
    run_id = workflows.dispatch(staged(Action("act", run)), {}).run_id
    Run.objects.filter(pk=run_id).update(version=99)
    return run_id


def result_of_a_run_that_was_cancelled() -> uuid.UUID:
    return workflows.dispatch(staged(Action("act", run)), {"cancel": True}).run_id


@pytest.mark.parametrize(
    ("make", "reason", "jobs", "calls"),
    [
        (job_of_a_run_that_is_over, "orphan", 0, []),
        (result_of_a_run_that_was_cancelled, "orphan", 0, ["w.s.act"]),
        (job_of_a_run_that_nobody_can_see, "race", 1, []),
        (job_of_another_version, "version", 1, []),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_a_ghost_is_counted_and_named_once(
    caplog: pytest.LogCaptureFixture,
    make: Callable[[], uuid.UUID],
    reason: str,
    jobs: int,
    calls: list[str],
) -> None:
    caplog.set_level(logging.INFO, logger="workflow")
    run_id = make()
    before = dict(ghosts)
    drain(timeout=PATIENCE)
    assert {
        name: count - before.get(name, 0) for name, count in ghosts.items() if count != before.get(name)
    } == {reason: 1}
    (line,) = [message for message in caplog.messages if message.startswith("ghost job")]
    assert f"of run {run_id}: {reason}, " in line
    assert called == calls
    left = list(Job.objects.values_list("attempt", "lease_token"))
    assert len(left) == jobs
    if reason == "race":
        assert left == [(1, None)]  # it comes back later each time
    if reason == "version":
        assert left == [(0, None)]  # its attempt was given back
        assert Job.objects.filter(available_at__gt=TransactionNow()).exists()
