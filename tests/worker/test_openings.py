"""Runs that their claim begins, in real workers: no attempt is spent before its handler is called."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from django.db import connection

from tests.support import invariants
from tests.support.crash import called, calls, dispatch, finished, node, sessions, status, take_over
from tests.support.workers import Launcher, eventually
from workflow import states
from workflow.models import Job, Run, RunEvent


def begun_by(body: str, condition: str) -> Iterator[None]:
    """What the database does meanwhile when a run begins."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            CREATE FUNCTION test_beginning() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; END $$;
            CREATE TRIGGER test_beginning BEFORE UPDATE ON workflow_run FOR EACH ROW
            WHEN (OLD.status = 'pending' AND NEW.status = 'running' AND {condition})
            EXECUTE FUNCTION test_beginning()
            """
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER test_beginning ON workflow_run; DROP FUNCTION test_beginning()")


def test_a_claim_whose_answer_is_lost_spends_no_attempt_of_what_it_has_begun(workers: Launcher) -> None:
    handle = dispatch("atomic")
    worker = workers.start("claim.opened=lose@1")
    finished(handle)
    assert worker.lines("the claim was never answered")
    assert (status(handle), node(handle, "atomic.s.a").attempt) == (states.COMPLETED, 1)
    assert [attempt for attempt, _, _ in calls(handle, "atomic.s.a")] == [1]
    invariants.check(exact=True)


@pytest.fixture
def _slow(workers: Launcher) -> Iterator[None]:
    """It takes the database a second to begin a run."""
    yield from begun_by("PERFORM pg_sleep(1); RETURN NEW", "true")


@pytest.mark.usefixtures("_slow")
def test_a_worker_that_is_told_to_stop_meanwhile_gives_back_what_its_claim_has_begun(
    workers: Launcher,
) -> None:
    handle = dispatch("plain")
    worker = workers.start()
    eventually(lambda: sessions("wait_event = 'PgSleep'"))
    assert worker.stop() == 0
    job = Job.objects.get()
    assert (job.lease_token, job.attempt) == (None, 0)
    assert job.last_error.startswith("UNBEGUN: ")
    assert (status(handle), node(handle, "plain.s.a").status) == (states.RUNNING, states.RUNNING)
    assert not calls(handle, "plain.s.a")
    workers.start()
    finished(handle)
    assert [attempt for attempt, _, _ in calls(handle, "plain.s.a")] == [1]
    invariants.check(exact=True)


def test_once_its_handler_was_called_an_attempt_counts_however_its_claim_began(workers: Launcher) -> None:
    handle = dispatch("plain", {"plain.s.a": ["hold:60", "ok"]})
    first = workers.start("claim.opened=lose@1")
    called(handle, "plain.s.a")
    first.send(signal.SIGKILL)
    first.wait()
    take_over()
    workers.start()
    finished(handle)
    assert status(handle) == states.COMPLETED
    assert [attempt for attempt, _, _ in calls(handle, "plain.s.a")] == [1, 2]
    assert node(handle, "plain.s.a").attempt == 2
    invariants.check()


@pytest.fixture
def _forbidden(workers: Launcher) -> Iterator[None]:
    """The database lets no run begin whose input says so."""
    yield from begun_by("RAISE EXCEPTION 'this run may not begin'", "OLD.input ? 'forbidden'")


@pytest.mark.usefixtures("_forbidden")
def test_a_run_that_the_database_lets_nobody_begin_keeps_no_other(workers: Launcher) -> None:
    good = [dispatch("plain") for _ in range(3)]
    bad = dispatch("plain", data={"forbidden": True})
    good += [dispatch("plain") for _ in range(3)]
    worker = workers.start()
    finished(*good)
    assert {status(handle) for handle in good} == {states.COMPLETED}
    assert worker.lines("for a while no run is begun by its claim: this run may not begin")
    assert Run.objects.get(pk=bad.run_id).status == states.PENDING
    assert not RunEvent.objects.filter(run_id=bad.run_id).exists()
    assert [len(calls(handle, "plain.s.a")) for handle in good] == [1] * 6
