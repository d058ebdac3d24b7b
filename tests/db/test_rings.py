"""Which jobs are rung by messages, when, how many, and how often."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from tests.support.definitions import PLAIN
from workflow import workflows
from workflow.models import Job
from workflow.sql import rings as sql
from workflow.store import claims as claims_store
from workflow.store import rings
from workflow.store.drive import drive
from workflow.store.ports import DjangoPort
from workflow.testing import advance

pytestmark = pytest.mark.django_db


def ring(window: int = 1000, batch: int = 200, first: float = 30, longest: float = 600) -> list[uuid.UUID]:
    """The jobs that a relay rings now, in the order in which it sends messages."""
    parameters = (window, window, first, longest, first, longest, batch)
    rows = DjangoPort().run_now([(sql.RING, parameters)])[0]
    return [uuid.UUID(job) for job, _, _, _ in sorted(rows, key=lambda row: (-row[2], row[3]))]


def job(seconds: float = 0, queue: str = "default", priority: int = 0) -> uuid.UUID:
    """A job that has been due for so many seconds."""
    handle = workflows.dispatch(PLAIN, {}, queue=queue, priority=priority)
    Job.objects.filter(run_id=handle.run_id).update(available_at=Now() - timedelta(seconds=seconds))
    return Job.objects.get(run_id=handle.run_id).pk


def rung(job_id: uuid.UUID, seconds_ago: float) -> None:
    Job.objects.filter(pk=job_id).update(rung_at=Now() - timedelta(seconds=seconds_ago))


def claim(*jobs: uuid.UUID) -> tuple[list[uuid.UUID], set[str]]:
    claimed, left = drive(
        claims_store.claim_asked(DjangoPort(), str(uuid.uuid4()), [str(each) for each in jobs])
    )
    return [uuid.UUID(each.job_id) for each in claimed], left


def test_a_job_that_is_due_is_rung_once() -> None:
    one = job(5)
    assert ring() == [one]
    assert Job.objects.get(pk=one).rung_at is not None
    assert ring() == []


def test_the_most_urgent_are_rung_first_and_no_more_than_a_batch_at_once() -> None:
    low, old, high, young = job(10, priority=-1), job(9), job(1, priority=5), job(1)
    assert ring(batch=2) == [high, old]
    assert ring(batch=2) == [young, low]


def test_of_a_backlog_only_the_front_is_rung_until_some_of_it_is_claimed() -> None:
    jobs = [job(100 - n) for n in range(10)]
    assert ring(window=4) == jobs[:4]
    assert ring(window=4) == []
    claim(jobs[1], jobs[2])
    assert ring(window=4) == jobs[4:6]


def test_the_window_is_over_all_queues_and_priorities_together() -> None:
    jobs = [job(100 - n, queue=f"q{n % 3}", priority=-(n // 5)) for n in range(10)]
    assert ring(window=6) == jobs[:6]


def test_what_is_not_due_is_claimed_or_in_a_paused_queue_is_not_rung() -> None:
    job(-60)
    claimed = job(5)
    assert claim(claimed) == ([claimed], set())
    paused = job(5, queue="reports")
    workflows.pause_queue("reports")
    assert ring() == []
    assert Job.objects.get(pk=paused).rung_at is None
    workflows.resume_queue("reports")
    assert ring() == [paused]


def test_a_job_that_has_come_due_again_is_rung_again_at_once() -> None:
    one = job(5)
    ring()
    claim(one)
    Job.objects.update(lease_token=None, worker_id=None, locked_at=None, started_at=None)
    Job.objects.update(available_at=F("rung_at") + timedelta(microseconds=1), rung_at=F("rung_at"))
    advance(1)
    assert ring() == [one]


@pytest.mark.parametrize(
    ("due", "seconds_ago", "again"),
    [
        (29, 29, False),  # rung at once, thirty seconds ago at the earliest
        (31, 31, True),
        (130, 70, True),  # rung when it had been due for a minute: a minute later
        (130, 50, False),
        (9_000, 601, True),  # never later than that
        (9_000, 599, False),
    ],
)
def test_one_that_nobody_takes_is_rung_again_the_later_the_longer_it_was_due(
    due: float, seconds_ago: float, again: bool
) -> None:
    one = job(due)
    rung(one, seconds_ago)
    assert ring() == ([one] if again else [])


def test_time_that_a_test_lets_pass_counts_for_what_was_rung() -> None:
    one = job(1)
    ring()
    advance(29)
    assert ring() == []
    advance(2)
    assert ring() == [one]


def test_what_could_not_be_sent_is_rung_anew_and_what_is_claimed_is_left_alone() -> None:
    one, two = job(5), job(4)
    ring()
    claim(two)
    drive(rings.unring(DjangoPort(), [str(one), str(two), str(uuid.uuid4())]))
    assert Job.objects.get(pk=two).rung_at is not None
    assert ring() == [one]


def test_ringing_is_a_heap_only_update() -> None:
    job(5)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid "
            "WHERE i.indrelid = 'workflow_job'::regclass AND a.attname = 'rung_at' AND a.attnum = ANY(i.indkey)"
        )
        assert cursor.fetchone() == (0,)


# --- claims by id ---------------------------------------------------------------------------------


def test_exactly_the_jobs_that_are_asked_for_are_claimed_under_the_claims_guards() -> None:
    urgent, wanted, later, paused = job(9, priority=9), job(5), job(-60), job(5, queue="reports")
    taken = job(5)
    claim(taken)
    workflows.pause_queue("reports")
    assert claim(wanted, later, paused, taken, uuid.uuid4()) == ([wanted], set())
    assert Job.objects.get(pk=wanted).attempt == 1
    assert Job.objects.get(pk=taken).attempt == 1
    assert list(Job.objects.filter(lease_token=None).order_by("pk").values_list("pk", flat=True)) == [
        urgent,
        later,
        paused,
    ]
    assert claim(wanted) == ([], set())


@pytest.mark.django_db(transaction=True)
def test_one_that_somebody_has_locked_is_left_and_told_of() -> None:
    one = job(5)
    locking = connection.copy()
    try:
        locking.set_autocommit(False)
        with locking.cursor() as cursor:
            cursor.execute("SELECT FROM workflow_job WHERE id = %s FOR UPDATE", (one,))
        assert claim(one) == ([], {str(one)})
        assert ring() == []
        locking.rollback()
    finally:
        locking.close()
    assert claim(one) == ([one], set())


@pytest.mark.django_db(transaction=True)
def test_of_two_relays_one_rings_a_job_although_the_other_has_seen_it_unrung() -> None:
    """The other waits for nobody: it passes by what is locked, and looks again at what it has locked itself."""
    one, two = job(5), job(4)
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT FROM workflow_job WHERE id = %s FOR UPDATE", (one,))
            assert ring() == [two]
            cursor.execute("UPDATE workflow_job SET rung_at = now() WHERE id = %s", (one,))
        other.commit()
    finally:
        other.close()
    assert ring() == []


@pytest.mark.django_db(transaction=True)
def test_relays_are_woken_by_the_end_of_a_unit_only_if_it_has_left_something() -> None:
    one = job(5)
    run = str(Job.objects.get(pk=one).run_id)
    listening = connection.copy()
    try:
        with listening.cursor() as cursor:
            cursor.execute("LISTEN workflow_job")
            raw = listening.connection

            def heard() -> int:
                return len(list(raw.notifies(timeout=0.2)))

            heard()
            drive(rings.echo(DjangoPort(), [run]))
            assert heard() == 1
            ring()
            drive(rings.echo(DjangoPort(), [run]))
            claim(one)
            drive(rings.echo(DjangoPort(), [run]))
            assert heard() == 0
    finally:
        listening.close()
