"""Which jobs a worker takes, in which order and how soon; what it does with those that it must not execute."""

from __future__ import annotations

import sys
import time
import uuid

import pytest
from django.db import connection
from django.db.models.functions import Now

from tests.support import invariants
from tests.support.crash import called, calls, dispatch, finished, make_due, node, sessions, status
from tests.support.workers import Launcher, eventually
from tests.worker.test_stopping import ready
from workflow import states, workflows
from workflow.errors import FailureCode
from workflow.models import Job, Node, Run
from workflow.results import RunHandle

pytestmark = pytest.mark.crash


def order(handles: list[RunHandle]) -> list[int]:
    """Positions of the runs, in the order in which their handlers were called."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT run_id FROM crash_call WHERE phase = 'run' ORDER BY started_at")
        rows = [row[0] for row in cursor.fetchall()]
    ids = [handle.run_id for handle in handles]
    return [ids.index(run_id) for run_id in rows]


def test_higher_priority_goes_first_then_what_has_been_due_longest(workers: Launcher) -> None:
    handles = [dispatch("plain", priority=priority) for priority in (0, -5, 7, 0, 7)]
    workers.start(concurrency=1)
    finished(*handles)
    assert order(handles) == [2, 4, 0, 3, 1]


def test_what_is_due_later_is_not_begun_before(workers: Launcher) -> None:
    workers.start()
    handle = dispatch("plain", delay=1.0)
    finished(handle)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.started_at - r.created_at > interval '1 second' FROM crash_call AS c "
            "JOIN workflow_run AS r ON r.id = c.run_id"
        )
        assert cursor.fetchall() == [(True,)]


def test_a_run_whose_state_cannot_be_read_ends_in_a_clear_error(workers: Launcher) -> None:
    """Somebody has changed it by hand. No handler is called, and whoever looks at the run learns why."""
    handle = dispatch("plain")
    Run.objects.filter(pk=handle.run_id).update(state=[1, 2])
    worker = workers.start()
    finished(handle)
    run = handle.status().run
    assert run.status == states.FAILED
    assert run.error is not None
    assert run.error["code"] == "STUCK_RUN_REAPED"
    assert "the run's state is a JSON array, not an object" in run.error["message"]
    assert '"state":[1,2]' in handle.status().model_dump_json()
    assert not calls(handle, "plain.s.a")
    assert not worker.lines("Traceback")
    workflows.retry(handle.run_id)
    finished(handle)
    assert status(handle) == states.COMPLETED
    invariants.check()


def test_a_scheduled_job_holds_no_lease_until_it_is_due(workers: Launcher) -> None:
    """However short leases are: what waits for its time is nobody's (C15)."""
    short = {"STALE_LEASE_THRESHOLD": 1, "HEARTBEAT_INTERVAL": 0.2, "SWEEP_INTERVAL": 0.1}
    for _ in range(3):
        workers.start(settings=short)
    handle = dispatch("plain", delay=3)
    finished(handle)
    assert (len(calls(handle, "plain.s.a")), node(handle, "plain.s.a").attempt) == (1, 1)


def test_a_worker_of_some_queues_leaves_the_others_alone(workers: Launcher) -> None:
    slow, fast = dispatch("plain", queue="slow"), dispatch("plain", queue="fast")
    worker = workers.start(queues=["fast", "other"])
    finished(fast)
    assert status(slow) == states.PENDING
    assert worker.stop() == 0
    workers.start(queues=["slow"])
    finished(slow)


def test_a_worker_of_one_queue_still_delivers_events(workers: Launcher) -> None:
    workers.start(queues=["mail"])
    handle = dispatch("waiting", queue="mail")
    eventually(lambda: status(handle) == states.WAITING)
    workflows.publish("waiting.go", {"n": 1}, correlation=Run.objects.get(pk=handle.run_id).input["key"])
    finished(handle)
    assert status(handle) == states.COMPLETED


@pytest.mark.parametrize("processes", [1, 2])
def test_a_burst_ends_when_nothing_is_due(workers: Launcher, processes: int) -> None:
    later = dispatch("plain", delay=3600)
    handles = [dispatch(name) for name in ("pair", "waiting", "wide", "atomic") for _ in range(2)]
    worker = workers.start(burst=True, processes=processes)
    assert worker.wait() == 0
    ends = [states.COMPLETED] * 2 + [states.WAITING] * 2 + [states.COMPLETED] * 4
    assert [status(handle) for handle in handles] == ends
    assert status(later) == states.PENDING
    invariants.check()


def test_a_notification_wakes_an_idle_worker_long_before_its_poll(workers: Launcher) -> None:
    worker = workers.start(settings={"POLL_INTERVAL": 30})
    ready(worker.pid)
    first = dispatch("plain")
    finished(first)
    time_taken = []
    for _ in range(3):
        begun = time.monotonic()
        finished(dispatch("plain"))
        time_taken.append(time.monotonic() - begun)
    assert min(time_taken) < 2


@pytest.mark.parametrize("queue", ["\U0001f980" * 100, "a b'\"c\\"], ids=["long", "odd"])
def test_a_queue_of_any_name_wakes_its_worker(workers: Launcher, queue: str) -> None:
    """Whatever stands in it, and however large the input is: a notification has 8,000 bytes (C35)."""
    worker = workers.start(settings={"POLL_INTERVAL": 60}, queues=[queue])
    ready(worker.pid)
    eventually(lambda: sessions("query LIKE 'LISTEN%'"))
    begun = time.monotonic()
    finished(*(dispatch("plain", queue=queue, data={"x": "é" * size}) for size in (3950, 4001, 500_000)))
    assert time.monotonic() - begun < 30


def test_a_delayed_dispatch_is_begun_when_it_is_due_and_not_at_the_next_poll(workers: Launcher) -> None:
    worker = workers.start(settings={"POLL_INTERVAL": 30})
    ready(worker.pid)
    finished(dispatch("plain"))
    delay = 1.0
    late = []
    for _ in range(3):
        handle = dispatch("plain", delay=delay)
        finished(handle)
        run = handle.status().run
        late.append((run.started_at - Run.objects.get(pk=run.id).created_at).total_seconds() - delay)
    assert all(seconds >= 0 for seconds in late)
    assert min(late) < 1


def test_without_notifications_jobs_are_found_by_polling(
    workers: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trigger that rings is switched off: everything still happens, a little later."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE workflow_job DISABLE TRIGGER USER")
    try:
        workers.start(settings={"POLL_INTERVAL": 0.3})
        handle = dispatch("tour")
        eventually(lambda: status(handle) == states.WAITING)
        cancelled = dispatch("plain", {"plain.s.a": ["hold:60"]})
        called(cancelled, "plain.s.a")
        Run.objects.filter(pk=cancelled.run_id).update(
            status=states.CANCELLED, finished_at="2020-01-01T00:00Z"
        )
        Node.objects.filter(run_id=cancelled.run_id).update(
            status=states.CANCELLED, finished_at="2020-01-01T00:00Z"
        )
        Job.objects.filter(run_id=cancelled.run_id).delete()
        eventually(lambda: calls(cancelled, "plain.s.a")[0][2] == "Aborted")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE workflow_job ENABLE TRIGGER USER")


# --- ghosts ---------------------------------------------------------------------------------------


def test_a_run_of_another_version_is_left_for_whoever_serves_it(workers: Launcher) -> None:
    handle = dispatch("plain")
    Run.objects.filter(pk=handle.run_id).update(version=7)
    worker = workers.start()
    eventually(lambda: worker.lines("ghost job", "version", str(handle.run_id)))
    (job,) = Job.objects.filter(run_id=handle.run_id)
    eventually(lambda: Job.objects.get(pk=job.pk).last_error.startswith("version: "))
    job.refresh_from_db()
    assert (job.lease_token, job.attempt, status(handle)) == (None, 0, states.PENDING)
    assert calls(handle, "plain.s.a") == []
    Run.objects.filter(pk=handle.run_id).update(version=1)
    make_due()
    finished(handle)
    assert (status(handle), node(handle, "plain.s.a").attempt) == (states.COMPLETED, 1)


def test_a_worker_takes_the_jobs_of_a_version_it_does_not_serve_once_and_then_spares_them(
    workers: Launcher,
) -> None:
    """Or a release that is rolled out would wait for every old worker in turn, five seconds each (C84)."""
    strange = [dispatch("plain", priority=1) for _ in range(5)]
    Run.objects.filter(pk__in=[handle.run_id for handle in strange]).update(version=7)
    served = dispatch("plain")
    worker = workers.start(concurrency=1)
    finished(served)
    assert len(worker.lines("ghost job", "version")) == 1
    assert Job.objects.filter(lease_token=None, attempt=0, available_at__lte=Now()).count() == 5
    later = dispatch("plain", priority=-1)
    finished(later)
    assert len(worker.lines("ghost job", "version")) == 1


def test_a_job_of_a_run_that_is_over_is_dropped(workers: Launcher) -> None:
    handle = dispatch("plain")
    Run.objects.filter(pk=handle.run_id).update(status=states.CANCELLED, finished_at="2020-01-01T00:00Z")
    Node.objects.filter(run_id=handle.run_id).update(status=states.CANCELLED, finished_at="2020-01-01T00:00Z")
    worker = workers.start()
    eventually(lambda: not Job.objects.exists())
    assert worker.lines("ghost job", "orphan", str(handle.run_id))
    assert calls(handle, "plain.s.a") == []


def test_a_job_whose_run_cannot_be_seen_comes_back_later(workers: Launcher) -> None:
    job = Job.objects.create(run_id=uuid.uuid4(), node_id=uuid.uuid4())
    worker = workers.start()
    eventually(lambda: worker.lines("ghost job", "race", str(job.run_id)))
    eventually(lambda: Job.objects.filter(pk=job.pk, lease_token=None, attempt__gte=1).exists())


def test_what_a_cancelled_runs_handler_returns_is_discarded_and_counted(workers: Launcher) -> None:
    worker = workers.start("settle.before:running-completed=sleep:1@1")
    handle = dispatch("plain")
    eventually(lambda: (found := calls(handle, "plain.s.a")) and found[0][2])
    workflows.cancel(handle.run_id)
    eventually(lambda: worker.lines("ghost job", "orphan", str(handle.run_id)))
    assert status(handle) == states.CANCELLED
    invariants.check()


# --- what the engine cannot go on with ------------------------------------------------------------


def test_one_job_that_cannot_be_taken_up_keeps_no_other_from_its_turn(workers: Launcher) -> None:
    handles = [dispatch("plain") for _ in range(5)]
    Run.objects.filter(pk=handles[2].run_id).update(state=[1, 2])
    workers.start()
    good = [handle for handle in handles if handle is not handles[2]]
    finished(*good)
    assert {status(handle) for handle in good} == {states.COMPLETED}


@pytest.mark.parametrize("value", ["[" * 3000 + "]" * 3000, "9" * 5000], ids=["nested", "digits"])
def test_a_run_that_cannot_be_read_ends_and_keeps_no_other_from_its_turn(
    workers: Launcher, value: str
) -> None:
    """JSON that PostgreSQL takes and Python does not; later versions read what is nested so deeply, and then it is the
    attempt that fails."""
    handles = [dispatch("plain") for _ in range(5)]
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workflow_run SET state = %s::jsonb WHERE id = %s",
            [f'{{"key": {value}}}', handles[2].run_id],
        )
    workers.start()
    finished(*handles)
    found = dict(Run.objects.values_list("id", "status"))
    assert {found[handle.run_id] for handle in handles if handle is not handles[2]} == {states.COMPLETED}
    error = Run.objects.values_list("error", flat=True).get(pk=handles[2].run_id)
    if found[handles[2].run_id] == states.FAILED:
        assert error["code"] == FailureCode.STUCK_RUN_REAPED
        assert "cannot be read" in error["message"]
    else:
        assert sys.version_info >= (3, 12)
        assert (found[handles[2].run_id], error["type"]) == (states.COMPENSATED, "RecursionError")
    assert not Job.objects.exists()


def test_a_run_that_the_engine_can_never_go_on_with_ends_in_a_clear_error(workers: Launcher) -> None:
    handle = dispatch("gated-tour")
    workers.start("settle.before:run-running=raise")

    def over() -> bool:
        make_due()
        return Run.objects.filter(pk=handle.run_id, finished_at__isnull=False).exists()

    eventually(over)
    run = Run.objects.get(pk=handle.run_id)
    assert (run.status, run.error["code"]) == (states.FAILED, FailureCode.STUCK_RUN_REAPED)
    assert "10 times in a row" in run.error["message"]
    assert "Failpoint: settle.before:run-running" in run.error["message"]
    assert not Job.objects.filter(run_id=handle.run_id).exists()


def test_a_job_that_its_own_worker_has_just_ended_is_no_ghost(workers: Launcher) -> None:
    """Leases are looked after all the time here, also while the last boundary of a run is on its way."""
    worker = workers.start(settings={"POLL_INTERVAL": 0.01})
    handles = [dispatch("calm") for _ in range(400)]
    finished(*handles)
    assert worker.lines("ghost") == []
    assert worker.stop() == 0
