"""Leases: kept by whoever is alive, lost by whoever is not, and nothing that a late worker writes counts."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from django.db.models.functions import Now

from tests.support import invariants
from tests.support.crash import age_leases, called, calls, dispatch, finished, lose_leases, node, status
from tests.support.threads import together
from tests.support.workers import Launcher, database_url, eventually
from tests.worker.test_bad_handlers import full_strength
from workflow import states, sweeps, workflows
from workflow.errors import FailureCode
from workflow.models import Job, Run, RunEvent, Step

pytestmark = pytest.mark.crash

SHORT = {"STALE_LEASE_THRESHOLD": 2, "HEARTBEAT_INTERVAL": 0.2, "SWEEP_INTERVAL": 0.1}


@contextmanager
def locked(statement: str) -> Iterator[None]:
    """Another session that holds a lock."""
    with psycopg.connect(database_url()) as other:
        other.execute(statement)
        yield
        other.rollback()


@pytest.mark.parametrize(("name", "deed"), [("plain", "sleep:5"), ("calm", "sleep:5")])
def test_a_job_of_any_length_is_done_once_while_its_worker_lives(
    workers: Launcher, name: str, deed: str
) -> None:
    for _ in range(3):
        workers.start(settings=SHORT)
    handle = dispatch(name, {f"{name}.s.a": [deed]})
    finished(handle)
    assert (len(calls(handle, f"{name}.s.a")), node(handle, f"{name}.s.a").attempt) == (1, 1)
    invariants.check(exact=True)


@pytest.mark.parametrize(
    "place", ["settle.before:running-completed", "attempt.after", "settle.before:running-running"]
)
def test_what_a_worker_writes_after_it_was_stopped_for_too_long_does_not_count(
    workers: Launcher, place: str
) -> None:
    first = workers.start(f"{place}=stop@1")
    handle = dispatch("plain", {"plain.s.a": ["progress:20000"]})
    # So long that what it reports is written before its end.
    eventually(first.is_stopped)
    lose_leases(first.pid)
    second = workers.start()
    finished(handle)
    assert (node(handle, "plain.s.a").output, node(handle, "plain.s.a").attempt) == (2, 2)
    before = RunEvent.objects.filter(run_id=handle.run_id).count()
    first.send(signal.SIGCONT)
    eventually(lambda: first.lines(str(handle.run_id), "lease-lost"))
    other = dispatch("plain")
    finished(other)
    assert (node(handle, "plain.s.a").output, node(handle, "plain.s.a").attempt) == (2, 2)
    assert RunEvent.objects.filter(run_id=handle.run_id).count() == before
    invariants.check(zombies=True)
    assert [first.stop(), second.stop()] == [0, 0]


def test_an_atomic_action_of_a_worker_that_was_stopped_leaves_nothing_behind(workers: Launcher) -> None:
    first = workers.start("attempt.after=stop@1")
    handle = dispatch("atomic")
    eventually(first.is_stopped)
    lose_leases(first.pid)
    workers.start()
    finished(handle)
    first.send(signal.SIGCONT)
    eventually(lambda: first.lines(str(handle.run_id), "lease-lost"))
    assert node(handle, "atomic.s.a").attempt == 2
    invariants.check(zombies=True)


def test_a_process_that_claims_again_what_it_has_lost_keeps_the_two_apart(workers: Launcher) -> None:
    """Two claims of one job in one process: the handler of the first hears of it, the second is done."""
    worker = workers.start(settings={"HEARTBEAT_INTERVAL": 20, "THREADS": 4})
    handle = dispatch("plain", {"plain.s.a": ["hold:60", "sleep:1"]})
    called(handle, "plain.s.a")
    age_leases(worker.pid)
    finished(handle)
    assert (node(handle, "plain.s.a").output, node(handle, "plain.s.a").attempt) == (2, 2)
    assert [how for _, _, how in calls(handle, "plain.s.a")] == ["Aborted", "returned"]
    full_strength(4)
    invariants.check(at_rest=False, zombies=True)


def test_a_worker_that_cannot_heartbeat_gives_up_its_handlers_and_says_so(workers: Launcher) -> None:
    worker = workers.start(settings=SHORT)
    handle = dispatch("plain", {"plain.s.a": ["hold:60", "ok"]})
    called(handle, "plain.s.a")
    with locked("LOCK TABLE workflow_job IN ACCESS EXCLUSIVE MODE"):
        eventually(lambda: worker.lines("no heartbeat has reached the database"))
        eventually(lambda: calls(handle, "plain.s.a")[0][2])
        assert calls(handle, "plain.s.a")[0][2] == "Aborted"
    finished(handle)
    assert (status(handle), node(handle, "plain.s.a").attempt) == (states.COMPLETED, 2)
    assert worker.stop() == 0
    invariants.check(zombies=True)


def test_a_worker_that_cannot_heartbeat_claims_nothing_more(workers: Launcher) -> None:
    mute = workers.start("heartbeat.before=raise", settings=SHORT)
    eventually(lambda: mute.lines("no heartbeat has reached the database"))
    other = workers.start()
    handles = [dispatch("plain") for _ in range(30)]
    finished(*handles)
    assert {pid for handle in handles for _, pid, _ in calls(handle, "plain.s.a")} == {other.pid}
    assert mute.stop() == 0


@pytest.mark.parametrize(
    ("place", "values", "bodies"),
    [("settle.before:step", [2, 2], [1, 2]), ("settle.after:step", [1, 2], [1])],
    ids=["the first has stored nothing", "the first has stored its value"],
)
def test_of_two_executions_of_a_step_the_second_is_given_the_stored_value_or_the_first_loses(
    workers: Launcher, place: str, values: list[int], bodies: list[int]
) -> None:
    """Its body returns the number of the attempt. The first worker is stopped for too long, and comes back."""
    first = workers.start(f"{place}=stop@2")
    handle = dispatch("ledger")
    eventually(first.is_stopped)
    lose_leases(first.pid)
    second = workers.start()
    finished(handle)
    first.send(signal.SIGCONT)
    eventually(lambda: first.lines(str(handle.run_id), "lease-lost"))
    steps = Step.objects.filter(run_id=handle.run_id, kind="run").order_by("key")
    assert [(step.key, step.status, step.value) for step in steps] == [
        ("first", "completed", values[0]),
        ("second", "completed", values[1]),
    ]
    assert node(handle, "ledger.s.a").output == values
    assert [attempt for attempt, _, _ in calls(handle, "ledger.s.a", "step:first")] == bodies
    assert [first.stop(), second.stop()] == [0, 0]
    invariants.check(zombies=True)


def test_past_the_absolute_cap_a_job_fails_for_good_heartbeats_or_not(workers: Launcher) -> None:
    workers.start(settings={"JOB_ABSOLUTE_TIMEOUT": 1})
    handle = dispatch("pair", {"pair.s.b": ["hold:60"]})
    finished(handle)
    assert status(handle) == states.COMPENSATED
    capped = node(handle, "pair.s.b")
    assert (capped.attempt, capped.error["code"]) == (1, FailureCode.LEASE_ABSOLUTE_CAP)
    assert [how for _, _, how in calls(handle, "pair.s.b")] == ["Aborted"]
    invariants.check(zombies=True)


def test_an_action_without_a_timeout_has_no_cap_where_none_is_set(workers: Launcher) -> None:
    workers.start(settings={**SHORT, "JOB_ABSOLUTE_TIMEOUT": 0})
    handle = dispatch("endless", {"endless.s.a": ["sleep:4"]})
    finished(handle)
    assert (status(handle), node(handle, "endless.s.a").attempt) == (states.COMPLETED, 1)


def test_past_the_units_timeout_the_action_in_hand_has_had_an_attempt(workers: Launcher) -> None:
    workers.start(settings={"UNIT_TIMEOUT": 0.5})
    handle = dispatch("pair", {"pair.s.b": ["hold:60"]})
    finished(handle)
    assert status(handle) == states.COMPENSATED
    late = node(handle, "pair.s.b")
    assert (late.attempt, late.error["code"]) == (3, FailureCode.UNIT_TIMEOUT)
    invariants.check(zombies=True)


def test_a_lease_of_a_worker_that_nobody_knows_is_taken_too(workers: Launcher) -> None:
    handle = dispatch("plain")
    Job.objects.filter(run_id=handle.run_id).update(
        lease_token=uuid.uuid4(), worker_id=uuid.uuid4(), attempt=1,
        locked_at=Now() - timedelta(hours=1), started_at=Now(),
    )  # fmt: skip
    workers.start()
    finished(handle)
    assert status(handle) == states.COMPLETED


def stale(count: int) -> list[uuid.UUID]:
    """So many runs whose jobs have been held for an hour by workers that are gone."""
    handles = workflows.dispatch_many("plain", [{"key": str(n)} for n in range(count)])
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workflow_job SET lease_token = gen_random_uuid(), worker_id = gen_random_uuid(), attempt = 1, "
            "locked_at = now() - interval '1 hour', started_at = now()"
        )
    return [handle.run_id for handle in handles]


def test_a_stale_lease_goes_back_with_its_reason_a_backoff_and_its_attempt_spent(workers: Launcher) -> None:
    (run_id,) = stale(1)
    assert sweeps.run_once()["leases"] == 1
    job = Job.objects.get(run_id=run_id)
    assert job.last_error.startswith(f"{FailureCode.LEASE_HEARTBEAT_LOST}: ")
    assert (job.lease_token, job.worker_id, job.locked_at, job.started_at, job.attempt) == (*[None] * 4, 1)
    assert Job.objects.filter(pk=job.pk, available_at__gt=Now()).exists()


def test_sweepers_that_race_take_each_lease_once(workers: Launcher) -> None:
    stale(300)
    counts = together([lambda: sweeps.run_once()["leases"]] * 4)
    assert sum(count for count in counts if isinstance(count, int)) == 300
    assert not Job.objects.exclude(lease_token=None, attempt=1).exists()


def test_a_sweep_passes_by_what_it_may_not_touch(workers: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that somebody holds a lock on do not hide those behind them, however many they are."""
    monkeypatch.setattr(sweeps, "BATCH", 5)
    runs = sorted(stale(40))
    jobs = list(Job.objects.order_by("id").values_list("run_id", flat=True)[:30])
    held = ", ".join(f"'{run_id}'" for run_id in jobs)
    with locked(f"SELECT 1 FROM workflow_run WHERE id IN ({held}) FOR UPDATE"):
        assert sweeps.run_once()["leases"] == 10
    assert sweeps.run_once()["leases"] == 30
    assert len(runs) == Job.objects.filter(lease_token=None).count()


def test_a_job_that_somebody_has_locked_keeps_no_other_from_being_freed(workers: Launcher) -> None:
    """As an administrator does who has changed one by hand, and not committed it yet."""
    held = stale(5)[2]
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '5s'")
    try:
        with locked(f"SELECT 1 FROM workflow_job WHERE run_id = '{held}' FOR UPDATE"):
            assert sweeps.run_once()["leases"] == 4
    finally:
        connection.close()
    assert sweeps.run_once()["leases"] == 1


def test_a_sweep_by_hand_waits_for_a_lock_no_longer_than_a_worker_does(workers: Launcher) -> None:
    (run_id,) = stale(1)
    with ThreadPoolExecutor(1) as pool:
        with locked("LOCK TABLE workflow_worker IN ACCESS EXCLUSIVE MODE"):
            swept = pool.submit(together, [sweeps.run_once])
            done, _ = wait([swept], 30)
        assert done, "it stands still for as long as the table is locked"
        (counts,) = swept.result()
    assert isinstance(counts, dict), counts
    assert (counts["leases"], counts["workers"]) == (1, 0)
    assert Job.objects.get(run_id=run_id).lease_token is None


def test_a_worker_that_finishes_just_before_the_sweep_has_finished(workers: Launcher) -> None:
    """The sweep has seen a stale lease and waits to write; meanwhile its worker completes the run (C1)."""
    # Its own sweep would find the lease too, and might be the first that writes once the run is free.
    first = workers.start("settle.before:running-completed=stop@1", settings={"SWEEP_INTERVAL": 3600})
    handle = dispatch("plain")
    eventually(first.is_stopped)
    lose_leases(first.pid)
    with psycopg.connect(database_url()) as other:
        other.execute("SELECT 1 FROM workflow_run WHERE id = %s FOR UPDATE", (handle.run_id,))
        assert sweeps.run_once()["leases"] == 0  # it passes by a run that is being written to
        first.send(signal.SIGCONT)
        other.rollback()
    finished(handle)
    assert (status(handle), node(handle, "plain.s.a").attempt) == (states.COMPLETED, 1)
    assert sweeps.run_once()["leases"] == 0
    assert not Run.objects.filter(finished_at=None).exists()


def test_hung_jobs_do_not_go_back_to_the_front(workers: Launcher) -> None:
    """What was lost comes due later than it was, so that it cannot keep others from their turn (C21)."""
    runs = stale(3)
    sweeps.run_once()
    assert Job.objects.filter(run_id__in=runs, available_at__gt=Now()).count() == 3
