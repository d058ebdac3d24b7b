"""Fixtures of the tests that start real workers; imported by the `conftest.py` of their folders."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import setup_databases, teardown_databases
from pytest_django import DjangoDbBlocker

from example_project.database import from_environment
from tests.crash_app import record
from tests.crash_app import workflows as definitions
from tests.support.workers import Launcher, database_url, eventually
from workflow import Workflow, states, sweeps, workflows
from workflow.models import Job, Node, Run
from workflow.models import Worker as WorkerRow
from workflow.registry import registry
from workflow.results import RunHandle
from workflow.testing import advance

THOROUGH = int(os.environ.get("CRASH_RUNS", "0")) >= 400
"""Whether all places are to be gone through, as `make crash` does, or some."""
TABLES = ("run", "node", "job", "step", "event", "runevent", "worker", "pausedqueue")


@pytest.fixture(scope="session")
def launcher(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launcher]:
    """Starts workers on the test database."""
    folder = tmp_path_factory.mktemp("workers")
    with django_db_blocker.unblock(), _test_database(), Launcher(folder, prepare()) as made:
        yield made


@contextmanager
def _test_database() -> Iterator[None]:
    """pytest-django makes the test database only when some of the chosen tests are marked for it, and these are not:
    the marker's fixture would flush all tables of the project after each of them.
    """
    if _is_test_database():
        yield
        return
    made = setup_databases(verbosity=0, interactive=False, aliases={"default"})
    try:
        yield
    finally:
        connections.close_all()
        teardown_databases(made, verbosity=0)


def _is_test_database() -> bool:
    """Whether Django's default database is another one than the project's own."""
    own, now = from_environment(), connection.settings_dict
    return any(own.get(key, "") != now[key] for key in ("NAME", "HOST", "PORT"))


@pytest.fixture
def workers(launcher: Launcher, django_db_blocker: DjangoDbBlocker) -> Iterator[Launcher]:
    """Starts workers, with the workflows of `tests.crash_app` registered and all tables empty.

    What the test commits is really committed; workers that are left are killed and the tables are
    emptied afterwards.
    """
    with django_db_blocker.unblock(), registered():
        clear()
        try:
            yield launcher
        finally:
            launcher.end_all()
            clear()
            connections.close_all()


def prepare() -> str:
    """Makes the recorder's tables in Django's database; its URL for workers."""
    assert _is_test_database(), "these tests empty all tables: not those of the project itself"
    with connection.cursor() as cursor:
        cursor.execute(record.TABLES)
    return f"{database_url()}&application_name=worker"


@contextmanager
def registered() -> Iterator[None]:
    """The workflows of `tests.crash_app` are known in this process, too."""
    with registry.isolated():
        for definition in vars(definitions).values():
            if isinstance(definition, Workflow):
                registry.register(definition)
        yield


def clear() -> None:
    """Empties the tables of the engine and of the recorder."""
    assert _is_test_database()
    tables = [f"workflow_{table}" for table in TABLES]
    with connection.cursor() as cursor:
        # DELETE: a TRUNCATE of small tables costs a file system operation for each of their indexes.
        for table in [*tables, "crash_call", "crash_effect"]:
            cursor.execute(f"DELETE FROM {table}")


def dispatch(
    name: str, script: dict[str, Any] | None = None, /, *, data: dict[str, Any] | None = None, **options: Any
) -> RunHandle:
    """A run with a key of its own, and a script for its handlers (see `tests.crash_app.deeds`)."""
    key = uuid.uuid4().hex
    return workflows.dispatch(name, {"key": key, **(data or {})}, context={"script": script or {}}, **options)


def key_of(handle: RunHandle) -> str:
    """What its waits correlate by."""
    found: str = Run.objects.get(pk=handle.run_id).input["key"]
    return found


def status(handle: RunHandle) -> str:
    return Run.objects.values_list("status", flat=True).get(pk=handle.run_id)


def node(handle: RunHandle, path: str) -> Node:
    return Node.objects.get(run_id=handle.run_id, path=path)


def finished(*handles: RunHandle, within: float = 60) -> None:
    """Waits until the runs are over, and every job of theirs is gone."""
    ids = [handle.run_id for handle in handles]

    def over() -> bool:
        left = Run.objects.filter(pk__in=ids, finished_at__isnull=True).count()
        return not left and not Job.objects.filter(run_id__in=ids).exists()

    eventually(over, within, what=lambda: f"the runs did not end:\n{_left(ids)}")


def _left(ids: list[uuid.UUID]) -> str:
    """What there is still to do in runs that do not end."""
    lines = []
    for run in Run.objects.filter(pk__in=ids, finished_at__isnull=True):
        lines.append(f"run {run.pk} of {run.workflow} is {run.status}, last changed {run.updated_at}")
        live = Node.objects.filter(run=run, status__in=states.NODE_LIVE, started_at__isnull=False)
        lines += [
            f"    {n.path} {n.status} attempt {n.attempt} due {n.due_at} wait {n.wait_event}" for n in live
        ]
    for job in Job.objects.filter(run_id__in=ids):
        lines.append(
            f"job {job.pk} {job.kind} of run {job.run_id}, attempt {job.attempt}, due {job.available_at}, "
            f"held by {job.worker_id} since {job.locked_at}: {job.last_error}"
        )
    return "\n".join(lines)


def idle(within: float = 60) -> None:
    """Waits until no job is left but those of a later time."""
    eventually(lambda: not Job.objects.filter(lease_token__isnull=False).exists(), within)


def take_over(seconds: float = 600) -> int:
    """The leases of workers that were killed run out and are swept up; what comes back is due at once.

    Time passes for everybody: no living worker may hold a lease meanwhile. Returns how many jobs came back.
    """
    advance(seconds)
    swept = sweeps.run_once()["leases"]
    advance(seconds)
    return swept


def age_leases(*worker_pids: int, seconds: float = 3600) -> None:
    """The leases of these workers run out, those of others do not. A row that is being written to is passed by: its
    worker is not dead yet, as far as the database can tell."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH held AS (
                SELECT j.id FROM workflow_job AS j JOIN workflow_worker AS w ON w.id = j.worker_id
                WHERE w.pid = ANY(%s) AND j.lease_token IS NOT NULL FOR UPDATE OF j SKIP LOCKED
            )
            UPDATE workflow_job AS j SET locked_at = j.locked_at - %s * interval '1 second'
            FROM held WHERE j.id = held.id
            """,
            (list(worker_pids), seconds),
        )


def lose_leases(worker_pid: int) -> None:
    """The leases of a worker that is stopped or dead run out, for certain: a heartbeat that was on its way when it was
    stopped may still hold a row for a moment.
    """
    held = Job.objects.filter(
        worker_id__in=WorkerRow.objects.filter(pid=worker_pid).values("pk"),
        locked_at__gt=Now() - timedelta(minutes=30),
    )

    def gone() -> bool:
        age_leases(worker_pid)
        return not held.exists()

    eventually(gone, what="its leases cannot be aged")


def calls(handle: RunHandle, path: str, phase: str = "run") -> list[tuple[int, int, str | None]]:
    """What handlers wrote down: (attempt, pid, how it ended or None), in the order in which they began."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attempt, pid, how FROM crash_call WHERE run_id = %s AND path = %s AND phase = %s "
            "ORDER BY started_at",
            (handle.run_id, path, phase),
        )
        return cursor.fetchall()


def called(handle: RunHandle, path: str, phase: str = "run", times: int = 1) -> list[Any]:
    """Waits until a handler was entered so often; the calls."""
    return eventually(
        lambda: found if len(found := calls(handle, path, phase)) >= times else None,
        what=f"{path} was not called {times} times",
    )


def make_due() -> None:
    """Jobs that wait for a later time are due now."""
    Job.objects.filter(lease_token__isnull=True).update(available_at=F("available_at") - timedelta(days=1))


def sessions(where: str = "application_name LIKE 'workflow %' OR application_name = 'worker'") -> list[int]:
    """The server processes of the engine's connections."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND ({where})")
        return [row[0] for row in cursor.fetchall()]


def terminate(pids: list[int]) -> int:
    """Ends server processes, as an administrator or a fail-over would; how many there were."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(pg_terminate_backend(pid)) FROM unnest(%s::int[]) AS p(pid)", (pids,))
        return cursor.fetchone()[0]
