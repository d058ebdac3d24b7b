"""Somebody keeps a run locked, as a user's long transaction or a frozen process does: only that run waits."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from django.db.models.functions import Now

from tests.support import invariants
from tests.support.crash import called, calls, dispatch, finished, key_of, node, status
from tests.support.workers import Launcher, database_url, eventually
from tests.worker.test_leases import SHORT
from workflow import states, workflows
from workflow.models import Node
from workflow.results import RunHandle

pytestmark = pytest.mark.crash


@contextmanager
def kept_locked(*handles: RunHandle) -> Iterator[None]:
    """Another session holds these runs' rows."""
    with psycopg.connect(database_url()) as other:
        ids = [handle.run_id for handle in handles]
        other.execute("SELECT 1 FROM workflow_run WHERE id = ANY(%s) FOR UPDATE", (ids,))
        yield
        other.rollback()


def test_a_locked_run_holds_up_no_other_run_of_its_worker(workers: Launcher) -> None:
    worker = workers.start()
    held = [dispatch("pair", {"pair.s.a": ["sleep:0.5"]}) for _ in range(2)]
    for handle in held:
        called(handle, "pair.s.a")
    with kept_locked(*held):
        eventually(lambda: worker.lines("wait for another session's lock"))
        begun = time.monotonic()
        for _ in range(3):
            finished(*(dispatch("pair") for _ in range(4)))
        assert time.monotonic() - begun < 15
        assert {status(handle) for handle in held} == {states.RUNNING}
    finished(*held)
    assert [node(handle, "pair.s.a").attempt for handle in held] == [1, 1]
    invariants.check(exact=True)


@pytest.mark.parametrize("table", ["node", "job"])
def test_nor_does_one_of_which_another_row_is_locked(workers: Launcher, table: str) -> None:
    """As an administrator does who has changed one by hand, and not committed it yet."""
    workers.start()
    held = dispatch("pair", {"pair.s.a": ["sleep:0.5"]})
    called(held, "pair.s.a")
    with psycopg.connect(database_url()) as other:
        other.execute(f"SELECT 1 FROM workflow_{table} WHERE run_id = %s FOR UPDATE", (held.run_id,))
        eventually(lambda: calls(held, "pair.s.a")[0][2])
        begun = time.monotonic()
        for _ in range(3):
            finished(*(dispatch("pair") for _ in range(4)), within=30)
        assert time.monotonic() - begun < 30
        assert status(held) == states.RUNNING
        other.rollback()
    finished(held)
    assert node(held, "pair.s.a").attempt == 1
    invariants.check(exact=True)


def test_an_event_reaches_the_others_while_one_run_is_locked(workers: Launcher) -> None:
    workers.start()
    handles = [dispatch("anyones") for _ in range(5)]
    eventually(lambda: {status(handle) for handle in handles} == {states.WAITING})
    with kept_locked(handles[2]):
        workflows.publish("anyones.go", {"n": 1})
        others = [handle for handle in handles if handle is not handles[2]]
        finished(*others)
        finished(dispatch("plain"))
        assert status(handles[2]) == states.WAITING
    finished(handles[2])
    assert status(handles[2]) == states.COMPLETED
    invariants.check(exact=True)


@contextmanager
def part_locked(handle: RunHandle, table: str) -> Iterator[None]:
    """Another session holds the run's rows of this table, and not that of the run."""
    with psycopg.connect(database_url()) as other:
        other.execute(f"SELECT 1 FROM workflow_{table} WHERE run_id = %s FOR UPDATE", (handle.run_id,))
        yield
        other.rollback()


def test_nor_does_the_wait_of_one_run_keep_an_event_from_the_others(workers: Launcher) -> None:
    workers.start()
    handles = [dispatch("anyones") for _ in range(5)]
    eventually(lambda: {status(handle) for handle in handles} == {states.WAITING})
    with part_locked(handles[2], "node"):
        workflows.publish("anyones.go", {"n": 1})
        finished(*(handle for handle in handles if handle is not handles[2]), within=30)
        assert status(handles[2]) == states.WAITING
    finished(handles[2])
    assert status(handles[2]) == states.COMPLETED
    invariants.check(exact=True)


def test_a_wait_is_over_in_time_while_that_of_another_run_is_locked(workers: Launcher) -> None:
    worker = workers.start(settings={"SWEEP_INTERVAL": 3600})
    handles = [dispatch("short-wait") for _ in range(4)]
    eventually(lambda: {status(handle) for handle in handles} == {states.WAITING})
    assert worker.stop() == 0
    eventually(lambda: not Node.objects.filter(wait_until__gt=Now()).exists())
    others = [handle for handle in handles if handle is not handles[0]]
    with part_locked(handles[0], "node"):
        workers.start(settings={"SWEEP_INTERVAL": 0.2})
        finished(*others, within=30)
        assert status(handles[0]) == states.WAITING
    finished(handles[0])


def test_a_process_that_is_frozen_in_an_atomic_commit_keeps_nobody_waiting_for_ever(
    workers: Launcher,
) -> None:
    first = workers.start("atomic.before-commit=stop@1", settings=SHORT)
    handle = dispatch("atomic")
    eventually(first.is_stopped)
    workers.start(settings=SHORT)
    finished(handle)
    assert (status(handle), node(handle, "atomic.s.a").attempt) == (states.COMPLETED, 2)
    first.send(signal.SIGCONT)
    eventually(lambda: first.lines("lease-lost"))
    assert len(calls(handle, "atomic.s.a")) == 2
    invariants.check(zombies=True)
    assert first.stop() == 0


def test_a_command_in_a_long_transaction_keeps_its_run_and_no_other_waiting(workers: Launcher) -> None:
    workers.start()
    handle = dispatch("waiting")
    eventually(lambda: status(handle) == states.WAITING)
    with psycopg.connect(database_url()) as other:
        other.execute("UPDATE workflow_run SET updated_at = now() WHERE id = %s", (handle.run_id,))
        workflows.publish("waiting.go", correlation=key_of(handle))
        finished(dispatch("pair"), dispatch("plain"))
        other.commit()
    finished(handle)
    assert status(handle) == states.COMPLETED


def test_a_table_that_a_migration_has_locked_costs_sweeps_a_line_and_no_traceback(workers: Launcher) -> None:
    worker = workers.start(settings={"SWEEP_INTERVAL": 0.2})
    finished(dispatch("plain"))
    with psycopg.connect(database_url()) as other:
        other.execute("LOCK TABLE workflow_node, workflow_run, workflow_job IN ACCESS EXCLUSIVE MODE")
        eventually(lambda: worker.lines("the sweep of", "met another session's lock"))
        eventually(lambda: worker.lines("claiming met another session's lock"))
        other.rollback()
    finished(dispatch("plain"))
    assert "Traceback" not in worker.said()
    assert worker.stop() == 0
