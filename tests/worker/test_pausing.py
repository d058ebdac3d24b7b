"""Queues that are paused: workers, whenever they were started, claim nothing of them, and nothing is spent."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction

from tests.support import invariants
from tests.support.crash import called, calls, dispatch, finished, make_due, node, status
from tests.support.workers import SETTINGS, Launcher, Worker, eventually
from tests.worker.test_stopping import ready
from workflow import states, workflows
from workflow.models import Job, PausedQueue, Run
from workflow.results import RunHandle

pytestmark = pytest.mark.crash


def passed_by(*workers: Worker) -> None:
    """Each of the workers has claimed what came later, with a lower priority: so it has had its chance at all else.

    With several there is more of it than the one that goes first can take.
    """
    left = {worker.pid for worker in workers}

    def seen() -> bool:
        count = 1 if len(workers) == 1 else 3 * SETTINGS["CONCURRENCY"]
        handles = [dispatch("plain", {"plain.s.a": ["sleep:0.1"]}, priority=-10) for _ in range(count)]
        finished(*handles)
        left.difference_update(pid for handle in handles for _, pid, _ in calls(handle, "plain.s.a"))
        return not left

    for worker in workers:
        ready(worker.pid)
    eventually(seen)


def untouched(handles: list[RunHandle]) -> bool:
    """Whether the runs are as they were dispatched, and their jobs were never claimed."""
    ids = [handle.run_id for handle in handles]
    jobs = set(Job.objects.filter(run_id__in=ids).values_list("attempt", "lease_token"))
    runs = set(Run.objects.filter(pk__in=ids).values_list("status", "started_at"))
    return (jobs, runs) == ({(0, None)}, {(states.PENDING, None)})


def test_nothing_is_started_by_whatever_worker_until_the_queue_is_resumed(workers: Launcher) -> None:
    first, second = workers.start(), workers.start()
    passed_by(first, second)
    workflows.pause_queue("slow", reason="upstream is down", by="ada")
    handles = [dispatch("quick", queue="slow") for _ in range(100)]
    passed_by(first, second)
    assert (first.stop(), second.stop()) == (0, 0)
    assert untouched(handles)
    first, second = workers.start(), workers.start(queues=["slow", "default"])
    passed_by(first, second)
    assert untouched(handles)
    assert workflows.resume_queue("slow")
    finished(*handles)
    assert {status(handle) for handle in handles} == {states.COMPLETED}
    assert {tuple(how for *_, how in calls(handle, "quick.s.a")) for handle in handles} == {("returned",)}
    assert {node(handle, "quick.s.a").attempt for handle in handles} == {1}
    invariants.check()


def test_a_burst_passes_a_paused_queue_by(workers: Launcher) -> None:
    workflows.pause_queue("slow")
    slow, fast = dispatch("quick", queue="slow"), dispatch("quick", queue="fast")
    assert workers.start(burst=True).wait() == 0
    assert status(fast) == states.COMPLETED
    assert untouched([slow])


@pytest.mark.parametrize("again", [False, True])
def test_a_pause_with_an_end_is_over_then_and_not_at_the_next_poll(workers: Launcher, again: bool) -> None:
    """The worker is idle, and would look again in ten minutes: it has to know of the end, also of one that is nearer
    than the end that it knew."""
    worker = workers.start(settings={"POLL_INTERVAL": 600})
    ready(worker.pid)
    if again:
        workflows.pause_queue("slow", until=timedelta(hours=1))
        handle = dispatch("quick", queue="slow")
        passed_by(worker)
        pause = workflows.pause_queue("slow", until=3)
    else:
        pause = workflows.pause_queue("slow", until=5)
        handle = dispatch("quick", queue="slow")
        passed_by(worker)
    assert untouched([handle])
    finished(handle)
    run = Run.objects.get(pk=handle.run_id)
    assert pause.until is not None
    assert run.started_at is not None
    assert run.started_at >= pause.until
    assert workflows.paused_queues() == []


def test_a_resumed_queue_wakes_an_idle_worker(workers: Launcher) -> None:
    worker = workers.start(settings={"POLL_INTERVAL": 600})
    workflows.pause_queue("slow")
    handle = dispatch("quick", queue="slow")
    passed_by(worker)
    workflows.resume_queue("slow")
    finished(handle)


def test_a_pause_that_is_taken_back_with_its_transaction_never_was(workers: Launcher) -> None:
    workers.start()
    with transaction.atomic():
        workflows.pause_queue("slow")
        transaction.set_rollback(True)
    finished(dispatch("quick", queue="slow"))


def test_what_is_in_hand_goes_on(workers: Launcher) -> None:
    workers.start()
    handle = dispatch("pair", {"pair.s.a": ["sleep:3"]}, queue="slow")
    called(handle, "pair.s.a")
    pause = workflows.pause_queue("slow")
    finished(handle)
    run = Run.objects.get(pk=handle.run_id)
    assert run.status == states.COMPLETED
    assert run.finished_at is not None
    assert run.finished_at > pause.paused_at, "it was over before the pause"
    assert len(calls(handle, "pair.s.b")) == 1


def test_a_retry_that_comes_due_waits_too_and_spends_no_attempt(workers: Launcher) -> None:
    worker = workers.start()
    handle = dispatch("plain", {"plain.s.a": ["retry:3600", "ok"]}, queue="slow")
    eventually(
        lambda: (
            Job.objects.filter(run_id=handle.run_id, lease_token=None).exists() and calls(handle, "plain.s.a")
        )
    )
    workflows.pause_queue("slow")
    make_due()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workflow_node SET due_at = now() WHERE due_at > now()")
    before = Job.objects.values().get(run_id=handle.run_id)
    passed_by(worker)
    assert Job.objects.values().get(run_id=handle.run_id) == before
    assert (len(calls(handle, "plain.s.a")), node(handle, "plain.s.a").attempt) == (1, 1)
    workflows.resume_queue("slow")
    finished(handle)
    assert (status(handle), node(handle, "plain.s.a").attempt) == (states.COMPLETED, 2)


def test_sweeps_of_a_worker_leave_runs_of_a_paused_queue_alone_and_drop_pauses_that_are_over(
    workers: Launcher,
) -> None:
    workflows.pause_queue("slow")
    workflows.pause_queue("fast", until=1)
    handle = dispatch("quick", queue="slow")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workflow_run SET created_at = now() - interval '9 days', updated_at = now() - interval '9 days'"
        )
    workers.start(settings={"STUCK_THRESHOLD": 10})
    eventually(lambda: list(PausedQueue.objects.values_list("queue", flat=True)) == ["slow"])
    assert untouched([handle])
    workflows.resume_queue("slow")
    finished(handle)
    assert status(handle) == states.COMPLETED
