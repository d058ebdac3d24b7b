"""Of several like processes one goes first, and the others take what it has left."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from tests.support.crash import called, calls, dispatch, finished
from tests.support.workers import Launcher, eventually
from tests.worker.test_stopping import ready
from workflow import Action, Stage, Workflow, ids, workflows
from workflow.models import Job, Worker
from workflow.registry import registry
from workflow.sql import workers as sql
from workflow.store import claims
from workflow.store.drive import drive
from workflow.store.ports import DjangoPort
from workflow.store.workers import silent_after
from workflow.worker import standing
from workflow.worker.sources import Due
from workflow.worker.standing import BEHIND, YIELD, Standing

SERVES = [{"name": "w", "version": 1, "fingerprint": "f", "compatible": []}]


def sign_on(queues: Sequence[str] = (), serves: Sequence[Any] = SERVES) -> str:
    """A worker's row, as a process writes it that starts."""
    worker_id = str(ids.new_id())
    row = (worker_id, "here", 1, json.dumps(list(queues)), json.dumps(list(serves)), 10, 10)
    DjangoPort().run_now([(sql.REGISTER, row)])
    return worker_id


def placed(worker_id: str) -> Standing:
    """Where that process finds itself."""
    found = Standing(worker_id)
    drive(found._look(DjangoPort()))
    return found


def seen(worker_id: str, seconds: float) -> None:
    """It was last heard of so long ago."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workflow_worker SET seen_at = now() - %s * interval '1 second' WHERE id = %s",
            [seconds, worker_id],
        )


@pytest.mark.django_db
def test_the_one_that_started_first_goes_first() -> None:
    first, second, third = (placed(worker_id) for worker_id in [sign_on(), sign_on(), sign_on()])
    assert [(each.before, each.beside) for each in (first, second, third)] == [(0, 2), (1, 2), (2, 2)]
    assert [each.age() for each in (first, second, third)] == [0, YIELD, YIELD]
    assert [each.pause() for each in (first, second, third)] == [0, YIELD, YIELD]


@pytest.mark.django_db
@pytest.mark.parametrize("gone", ["stopped", "silent"])
def test_one_that_is_gone_is_waited_for_no_more(gone: str) -> None:
    first, second = sign_on(), sign_on()
    assert placed(second).before == 1
    if gone == "stopped":
        Worker.objects.filter(pk=first).update(stopped_at=Now())
    else:
        seen(first, silent_after() + 1)
    left = placed(second)
    assert (left.before, left.beside, left.pause()) == (0, 0, 0)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "other",
    [{"queues": ["reports"]}, {"serves": [*SERVES, {**SERVES[0], "name": "other"}]}],
    ids=["other queues", "other workflows"],
)
def test_nothing_is_left_to_one_that_might_not_take_it(other: dict[str, Any]) -> None:
    sign_on(**other)
    mine = placed(sign_on())
    assert (mine.before, mine.beside) == (0, 0)


@pytest.mark.parametrize("alone", [True, False])
def test_the_first_comes_behind_the_others_while_its_handlers_want_the_whole_cpu(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, used = [100.0], [7.0]
    times = SimpleNamespace(monotonic=lambda: clock[0], process_time=lambda: used[0])
    monkeypatch.setattr(standing, "time", times)
    first = Standing("")
    first.beside = 0 if alone else 1

    def after(seconds: float, cpu: float) -> float:
        clock[0] += seconds
        used[0] += cpu
        return first.pause()

    behind = 0 if alone else BEHIND
    assert after(0.1, 0.05) == 0
    assert after(0.1, 0.1) == behind
    assert after(0.01, 0) == behind  # too short to tell
    assert after(0.05, 0) == 0


@pytest.mark.django_db(transaction=True)
def test_a_claim_leaves_what_has_not_been_due_for_long_enough() -> None:
    """And says that it is there, so that it is looked at again in time."""
    with registry.isolated():
        workflows.dispatch(Workflow("w", stages=[Stage("s", actions=[Action("a", lambda state: None)])]))
    port, worker_id = DjangoPort(), sign_on()
    claimed, due = drive(claims.claim(port, worker_id, 10, None, age=3600))
    assert claimed == []
    assert due is not None
    assert -60 < due <= 0
    claimed, due = drive(Due(None, lambda: 3600).claim(port, worker_id, 10))
    assert claimed == []
    assert due is not None
    assert 3540 < due <= 3600  # when it may be taken here
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workflow_job SET available_at = now() - interval '2 hours'")
    claimed, due = drive(claims.claim(port, worker_id, 10, None, age=3600))
    assert len(claimed) == 1
    assert due is None


@pytest.mark.crash
def test_nothing_is_left_to_one_that_stays_for_a_while_only(workers: Launcher) -> None:
    """Nor to a Celery worker, which takes what it is asked for: neither counts as one that is like the others."""
    assert workers.start(burst=True).wait() == 0
    Worker.objects.update(stopped_at=None)
    worker = workers.start()
    eventually(lambda: Worker.objects.filter(pid=worker.pid).exists())
    alone = placed(str(Worker.objects.get(pid=worker.pid).pk))
    assert (alone.before, alone.beside) == (0, 0)


@pytest.mark.crash
def test_what_a_stopped_process_does_not_take_the_next_one_takes(workers: Launcher) -> None:
    """Long before anybody knows that it is gone, and also what comes due by the clock, of which nobody is told."""
    first = workers.start(settings={"POLL_INTERVAL": 30})
    eventually(lambda: Worker.objects.filter(pid=first.pid).exists(), what="the first signs on")
    second = workers.start(settings={"POLL_INTERVAL": 30})
    eventually(lambda: Worker.objects.count() == 2, what="the second signs on")
    finished(dispatch("plain"))
    os.kill(first.pid, signal.SIGSTOP)
    try:
        finished(*(dispatch("plain") for _ in range(5)), within=20)
        finished(*(dispatch("plain", delay=delay) for delay in (0.2, 0.21, 0.5)), within=20)
        assert not Job.objects.exists()
    finally:
        os.kill(first.pid, signal.SIGCONT)
    second.stop()
    finished(dispatch("plain"), within=20)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("workflow", "outcomes", "again"),
    [("calm", ["sleep:30"], "calm.s.a"), ("pair", ["retry:1.5", "ok"], "pair.s.b")],
    ids=["given back", "due later"],
)
def test_a_process_that_leaves_tells_the_others_what_it_leaves(
    workers: Launcher, workflow: str, outcomes: list[str], again: str
) -> None:
    """No new job tells of it: they would look in half a minute."""
    rare = {"POLL_INTERVAL": 30, "SWEEP_INTERVAL": 60, "HEARTBEAT_INTERVAL": 10, "SHUTDOWN_GRACE": 0.5}
    first, second = (workers.start(settings=rare) for _ in range(2))
    for worker in (first, second):
        ready(worker.pid)
    handle = dispatch(workflow, {"pair.s.a": ["sleep:0.7"], again: outcomes})
    called(handle, again)
    ((_, pid, _),) = calls(handle, again)
    if workflow == "pair":
        eventually(lambda: Job.objects.filter(run_id=handle.run_id, lease_token=None).exists())
    held_by = first if first.pid == pid else second
    assert held_by.stop() == 0
    eventually(lambda: len(calls(handle, again)) == 2, 15)
