"""How Celery workers end: killed, told to stop, replaced. Nothing is lost, and no attempt spent that was not made."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
from celery import Celery

from tests.celery.conftest import Fleet
from tests.support import invariants
from tests.support.crash import (
    called,
    calls,
    dispatch,
    finished,
    key_of,
    lose_leases,
    node,
    status,
    take_over,
)
from tests.support.workers import eventually
from workflow import states, workflows
from workflow.models import Job, RunEvent, Worker

pytestmark = pytest.mark.crash

PLACES = ["relay.rung", "claim.after", "settle.after:running-completed@2", "deliver.resolved"]
"""`relay.rung` is in the main process, the others are in those of the pool."""
POOLS = [("prefork", 2), ("threads", 4), ("solo", 1)]


def test_a_process_that_is_killed_inside_a_handler_costs_that_attempt(fleet: Fleet) -> None:
    worker = fleet.celery("prefork")
    handle = dispatch("plain", {"plain.s.a": ["hold:60", "ok"]})
    ((_, pid, _),) = called(handle, "plain.s.a")
    assert pid in worker.family()
    assert pid != worker.pid
    os.kill(pid, signal.SIGKILL)
    lose_leases(pid)
    finished(handle)
    assert [(attempt, how) for attempt, _, how in calls(handle, "plain.s.a")] == [(1, None), (2, "returned")]
    assert node(handle, "plain.s.a").attempt == 2
    invariants.check()
    assert worker.stop() == 0


def test_a_worker_that_is_killed_leaves_its_units_to_another(fleet: Fleet) -> None:
    first = fleet.celery("prefork")
    handle = dispatch("plain", {"plain.s.a": ["hold:60", "ok"]})
    ((_, pid, _),) = called(handle, "plain.s.a")
    children = [psutil.Process(child) for child in first.family() if child != first.pid]
    first.kill()
    assert psutil.wait_procs(children, timeout=30)[1] == []
    second = fleet.celery("threads")
    lose_leases(pid)
    finished(handle)
    assert len(calls(handle, "plain.s.a")) == 2
    assert calls(handle, "plain.s.a")[1][1] == second.pid
    invariants.check()


@pytest.mark.parametrize("place", PLACES)
def test_a_run_survives_wherever_a_process_dies(fleet: Fleet, place: str) -> None:
    name, _, nth = place.partition("@")
    first = fleet.celery("prefork", failpoints=f"{name}=kill@{nth or 1}")
    handle = dispatch("tour")
    workflows.publish("tour.go", {"went": True}, correlation=key_of(handle))
    eventually(lambda: first.code is not None or first.lines("signal 9"), what=first.said)
    first.kill()
    take_over()
    fleet.celery("threads")
    finished(handle)
    assert status(handle) == states.COMPLETED
    invariants.check()


@pytest.mark.parametrize(("pool", "concurrency"), POOLS)
def test_a_handler_may_finish_and_what_follows_is_given_back(
    fleet: Fleet, pool: str, concurrency: int
) -> None:
    worker = fleet.celery(pool, concurrency=concurrency)
    handle = dispatch("pair", {"pair.s.a": ["sleep:1"]})
    called(handle, "pair.s.a")
    assert worker.stop() == 0
    assert node(handle, "pair.s.a").status == states.COMPLETED
    (job,) = Job.objects.filter(run_id=handle.run_id)
    assert (job.lease_token, job.attempt, calls(handle, "pair.s.b")) == (None, 0, [])
    assert not Worker.objects.filter(stopped_at=None).exists()
    fleet.celery("threads")
    finished(handle)
    assert [node(handle, f"pair.s.{each}").attempt for each in "ab"] == [1, 1]
    assert [len(calls(handle, f"pair.s.{each}")) for each in "ab"] == [1, 1]
    invariants.check()


@pytest.mark.parametrize(("pool", "concurrency"), POOLS)
def test_what_does_not_finish_in_time_is_given_back_without_an_attempt(
    fleet: Fleet, pool: str, concurrency: int
) -> None:
    worker = fleet.celery(pool, concurrency=concurrency, SHUTDOWN_GRACE=0.5)
    handle = dispatch("plain", {"plain.s.a": ["hold:60"]})
    called(handle, "plain.s.a")
    begun = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - begun < 15
    assert (node(handle, "plain.s.a").status, node(handle, "plain.s.a").attempt) == (states.PENDING, 0)
    assert [how for _, _, how in calls(handle, "plain.s.a")] == ["Aborted"]
    (job,) = Job.objects.filter(run_id=handle.run_id)
    assert (job.lease_token, job.attempt) == (None, 0)
    given_back = RunEvent.objects.get(run_id=handle.run_id, name=states.EVENT_ACTION_RETRYING)
    assert given_back.data["reason"] == "shutdown"
    fleet.celery("threads", SHUTDOWN_GRACE=0.5)
    assert [attempt for attempt, _, _ in called(handle, "plain.s.a", times=2)] == [1, 1]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_remote_shutdown_is_as_a_signal_is(fleet: Fleet, pool: str) -> None:
    """Celery sends no signal of its own for it."""
    worker = fleet.celery(pool, SHUTDOWN_GRACE=0.5)
    handle = dispatch("pair", {"pair.s.a": ["hold:60"]})
    called(handle, "pair.s.a")
    with Celery(broker=fleet.broker.url) as app:
        app.control.shutdown()
    begun = time.monotonic()
    worker.wait()
    assert time.monotonic() - begun < 20
    assert (node(handle, "pair.s.a").status, node(handle, "pair.s.a").attempt) == (states.PENDING, 0)
    assert Job.objects.get(run_id=handle.run_id).lease_token is None
    assert calls(handle, "pair.s.b") == []


def test_a_child_that_a_handler_forks_hears_signals_as_any_process_does(fleet: Fleet) -> None:
    worker = fleet.celery("threads")
    handle = dispatch("plain", {"plain.s.a": ["fork"]})
    finished(handle)
    assert (status(handle), node(handle, "plain.s.a").attempt) == (states.COMPLETED, 1)
    assert not worker.lines("Warm shutdown")
    assert worker.stop() == 0


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("first", [True, False], ids=["after a first one", "alone"])
def test_a_second_signal_gives_back_at_once(fleet: Fleet, pool: str, first: bool) -> None:
    worker = fleet.celery(pool, SHUTDOWN_GRACE=600)
    handle = dispatch("plain", {"plain.s.a": ["hold:60"]})
    called(handle, "plain.s.a")
    if first:
        worker.send(signal.SIGTERM)
        eventually(lambda: worker.lines("stops"), what=worker.said)
    worker.send(signal.SIGQUIT)
    begun = time.monotonic()
    worker.wait()
    assert time.monotonic() - begun < 20
    assert (node(handle, "plain.s.a").status, node(handle, "plain.s.a").attempt) == (states.PENDING, 0)
    assert Job.objects.get(run_id=handle.run_id).lease_token is None


def test_processes_that_celery_replaces_sign_on_and_off(fleet: Fleet) -> None:
    """Each is forked beside a relay that is at work."""
    worker = fleet.celery("prefork", "--max-tasks-per-child", "2")
    handles = [dispatch("plain") for _ in range(12)]
    finished(*handles)
    assert len({pid for handle in handles for _, pid, _ in calls(handle, "plain.s.a")}) >= 6
    assert {status(handle) for handle in handles} == {states.COMPLETED}
    invariants.check(exact=True)
    assert worker.stop() == 0
    assert not Worker.objects.filter(stopped_at=None).exists()
