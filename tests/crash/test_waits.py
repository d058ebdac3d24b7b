"""Waits and events with real workers: whoever is first, the run goes on, once."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db.models.functions import Now

from tests.support import invariants
from tests.support.crash import dispatch, finished, key_of, status
from tests.support.workers import Launcher, eventually
from workflow import states, workflows
from workflow.models import Job
from workflow.results import RunHandle
from workflow.testing import advance

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("name", ["waiting", "queued-wait"])
def test_an_event_that_was_there_before_the_wait_parked_wakes_it(workers: Launcher, name: str) -> None:
    """The job that looks for it must not stand in the way of the job that goes on."""
    for _ in range(2):
        workers.start()
    handles = []
    for _ in range(20):
        handle = dispatch(name)
        workflows.publish("waiting.go", correlation=key_of(handle))
        handles.append(handle)
    finished(*handles, within=30)
    assert {status(handle) for handle in handles} == {states.COMPLETED}
    invariants.check(exact=True)


@pytest.mark.parametrize("name", ["waiting", "queued-wait"])
def test_an_event_that_comes_while_the_wait_is_parked_wakes_it(workers: Launcher, name: str) -> None:
    for _ in range(2):
        workers.start()
    handles = [dispatch(name) for _ in range(10)]
    eventually(lambda: {status(handle) for handle in handles} == {states.WAITING})
    for handle in handles:
        workflows.publish("waiting.go", correlation=key_of(handle))
    finished(*handles, within=30)
    assert {status(handle) for handle in handles} == {states.COMPLETED}
    invariants.check(exact=True)


def answered_while_all_were_away(workers: Launcher) -> list[RunHandle]:
    """Runs whose events were published after the last worker left; the deadline passed before another came."""
    names = ["waiting", "queued-wait", "anyones", "asking", "aasking"]
    worker = workers.start()
    handles = {name: [dispatch(name) for _ in range(20)] for name in names}
    everybody = [handle for each in handles.values() for handle in each]
    eventually(lambda: not Job.objects.filter(available_at__lte=Now()).exists())
    assert worker.stop() == 0
    for name in names[:2]:
        for handle in handles[name]:
            workflows.publish("waiting.go", 1, correlation=key_of(handle))
    for name in names[3:]:
        for handle in handles[name]:
            workflows.publish("asking.go", 1, correlation=key_of(handle))
    workflows.publish("anyones.go", 1)
    advance(2 * 86_400)
    return everybody


@pytest.mark.parametrize("first", ["whoever is", "never the delivery"])
def test_events_that_came_while_all_workers_were_away_are_not_lost_to_the_deadlines(
    workers: Launcher, first: str
) -> None:
    handles = answered_while_all_were_away(workers)
    nobody_delivers = "deliver.before=raise" if first == "never the delivery" else ""
    worker = workers.start(nobody_delivers, settings={"SWEEP_INTERVAL": 0.01})
    finished(*handles)
    if nobody_delivers:
        assert worker.stop() == 0
        workers.start()
        eventually(lambda: not Job.objects.exists())
    assert {status(handle) for handle in handles} == {states.COMPLETED}
    invariants.check(exact=True)


def test_nor_are_they_where_only_sweeps_go_on(workers: Launcher, capsys: pytest.CaptureFixture[str]) -> None:
    """As docs/how-to/deploy.md has it, for when all workers may be down for long."""
    handles = answered_while_all_were_away(workers)
    call_command("workflow:sweep", "--once")
    assert "waits: 60" in capsys.readouterr().out
    workers.start()
    finished(*handles)
    assert {status(handle) for handle in handles} == {states.COMPLETED}
    invariants.check(exact=True)
