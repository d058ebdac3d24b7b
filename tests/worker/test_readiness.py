"""When a worker refuses to start, and whether one is alive: on the command line and from Python."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.functions import Now
from django.test import override_settings

from tests.support.workers import REPOSITORY, Launcher, database_url, eventually
from tests.worker.test_stopping import ready
from workflow import Stage, Workflow, worker, workflows
from workflow.conf import conf
from workflow.errors import WorkflowInvalid
from workflow.models import Worker
from workflow.registry import registry
from workflow.testing import drain

pytestmark = pytest.mark.crash


def test_a_probe_hears_of_workers_of_its_own_host_only(workers: Launcher, capsys: Any) -> None:
    assert not worker.check()
    with pytest.raises(CommandError, match="no worker is alive on "):
        call_command("workflow:worker", check=True)
    first = workers.start()
    ready(first.pid)
    assert worker.check()
    call_command("workflow:worker", check=True)
    assert str(first.pid) in capsys.readouterr().out
    assert not worker.check(hostname="another.host")
    assert first.stop() == 0
    assert not worker.check()


def test_a_worker_that_was_killed_is_dead_once_its_leases_are(workers: Launcher) -> None:
    first = workers.start()
    ready(first.pid)
    first.kill()
    assert worker.check()
    unheard = timedelta(seconds=conf.STALE_LEASE_THRESHOLD + 1)
    Worker.objects.filter(pid=first.pid).update(seen_at=Now() - unheard)
    assert not worker.check()


def test_a_probe_without_a_database_is_one_line_and_status_1(workers: Launcher) -> None:
    environment = {
        **os.environ,
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing",
        "LOG_LEVEL": "ERROR",
    }
    done = subprocess.run(
        [sys.executable, "manage.py", "workflow:worker", "--check"],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("CommandError: the database cannot be asked: connection failed")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [("--max-jobs", "0"), ("--max-rss", "-5"), ("--max-jobs", "x")])
def test_absurd_limits_are_refused(arguments: tuple[str, str]) -> None:
    with pytest.raises(CommandError, match=arguments[0]):
        call_command("workflow:worker", *arguments)


# --- refusals -------------------------------------------------------------------------------------


def refused(match: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the command nor the function starts; each says why in one line."""
    with pytest.raises(CommandError, match=match) as raised:
        call_command("workflow:worker", burst=True)
    assert "\n" not in str(raised.value)
    caplog.clear()
    assert worker.run(burst=True) == 1
    (record,) = [record for record in caplog.records if record.name == "workflow"]
    assert record.getMessage().startswith("the worker does not start: ")


def test_a_faulty_setting(workers: Launcher, caplog: pytest.LogCaptureFixture) -> None:
    with override_settings(WORKFLOW={"HEARTBEAT_INTERVAL": 60, "STALE_LEASE_THRESHOLD": 60}):
        refused("half of STALE_LEASE_THRESHOLD", caplog)


def test_a_faulty_definition(workers: Launcher, caplog: pytest.LogCaptureFixture) -> None:
    registry.faults.append(("shop.workflows", WorkflowInvalid('Stage "pay": has no actions')))
    refused('shop.workflows: Stage "pay"', caplog)


def test_a_migration_that_was_not_applied(workers: Launcher, caplog: pytest.LogCaptureFixture) -> None:
    recorder = MigrationRecorder(connection)
    last = max(name for app, name in recorder.applied_migrations() if app == "workflow")
    recorder.record_unapplied("workflow", last)
    try:
        refused(rf"not applied \({last}\): run manage.py migrate", caplog)
    finally:
        recorder.record_applied("workflow", last)


@pytest.mark.django_db(transaction=True)
def test_an_open_transaction_which_is_left_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    with registry.isolated(), transaction.atomic():
        handle = workflows.dispatch(Workflow("unseen", stages=[Stage("s", run=lambda state: None)]), {})
        refused("workflow.testing.drain", caplog)
        drain(handle.run_id)
        assert handle.status().run.status == "completed"


def test_a_worker_starts_where_nothing_speaks_against_it(workers: Launcher) -> None:
    assert worker.refusal() is None
    assert workers.start(burst=True).wait() == 0
    eventually(lambda: Worker.objects.exclude(stopped_at=None).count() == 1)


def test_what_a_server_says_that_lets_nobody_in_is_told(workers: Launcher, tmp_path: Path) -> None:
    """It may be mended while the worker waits, so it goes on trying; but it is no outage."""
    nowhere = f"postgresql:///there_is_no_such?{urlsplit(database_url()).query}"
    with Launcher(tmp_path, nowhere) as launcher:
        there = launcher.start()
        said = 'starting is tried again; the server says: database "there_is_no_such" does not exist'
        eventually(lambda: there.lines("the database refuses connections for 0 s now", said), what=there.said)
        assert there.stop() == 0
        assert not there.lines("is away")
