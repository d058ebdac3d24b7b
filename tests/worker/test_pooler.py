"""Behind PgBouncer in transaction mode: no notification comes, nothing outlives a transaction, all else is the same."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connection, connections
from psycopg.conninfo import make_conninfo
from pytest_django import DjangoDbBlocker

from tests.support import invariants
from tests.support.crash import called, calls, dispatch, finished, key_of, status
from tests.support.workers import Launcher, eventually
from workflow import states, workflows
from workflow.store.prepared import fetch_one

pytestmark = pytest.mark.crash

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
# A handler in a transaction holds a session, and these write down what they do over another one: there must be enough.
CONFIG = """
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 40
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
logfile = {folder}/log
pidfile = {folder}/pid
{prepared}
"""


def configuration(folder: Path, port: int) -> str:
    """PgBouncer before the test database's server."""
    entry = connection.settings_dict
    server = {
        name: str(entry[key])
        for name, key in (("host", "HOST"), ("port", "PORT"), ("user", "USER"), ("password", "PASSWORD"))
        if entry[key]
    }
    version = subprocess.run([PROGRAM or "", "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = (int(part) for part in version.split()[1].split(".")[:2])
    # Before 1.21 there was no such setting: no prepared statement ever worked.
    prepared = "max_prepared_statements = 0" if (major, minor) >= (1, 21) else ""
    return CONFIG.format(server=make_conninfo("", **server), port=port, folder=folder, prepared=prepared)


@pytest.fixture(scope="module")
def pooler(launcher: Launcher, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The URL of the test database behind a pooler."""
    assert PROGRAM is not None, "these tests need pgbouncer (Debian: apt-get install pgbouncer)"
    folder = Path(tempfile.mkdtemp(prefix="saga-pooler-"))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with django_db_blocker.unblock():
        (folder / "pgbouncer.ini").write_text(configuration(folder, port))
        host, name, user = (connection.settings_dict[key] for key in ("HOST", "NAME", "USER"))
    account = None
    if os.geteuid() == 0:  # it does not run as root; the embedded server's socket is its owner's alone
        account = Path(host).stat().st_uid if str(host).startswith("/") else 65534
        shutil.chown(folder, account)
    process = subprocess.Popen(
        [PROGRAM, str(folder / "pgbouncer.ini")], user=account, stderr=subprocess.DEVNULL
    )
    url = f"postgresql://{user}@127.0.0.1:{port}/{name}"
    try:
        eventually(lambda: process.poll() is not None or answers(url))
        assert process.poll() is None, (folder / "log").read_text()
        yield url
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def answers(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=5) as probe:
            probe.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture(scope="module")
def pooled(pooler: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Starts workers behind the pooler."""
    with Launcher(tmp_path_factory.mktemp("pooled"), f"{pooler}?application_name=worker") as made:
        yield made


def test_runs_of_every_kind_go_through_a_transaction_pooler(workers: Launcher, pooled: Launcher) -> None:
    pair = [pooled.start(settings={"POLL_INTERVAL": 0.2}) for _ in range(2)]
    there_and_back = [{}, {"tour.last.end": ["fail", "fatal"]}]
    handles = [dispatch("tour", script) for script in there_and_back for _ in range(5)]
    for handle in handles:
        workflows.publish("tour.go", correlation=key_of(handle))
    finished(*handles)
    ends = [states.COMPLETED] * 5 + [states.COMPENSATED] * 5
    assert [status(handle) for handle in handles] == ends
    for worker in pair:
        assert len(worker.lines("a pooler stands before PostgreSQL")) == 1
        assert not worker.lines("ERROR")
        assert worker.stop() == 0
    invariants.check(exact=True)


def test_a_cancel_is_heard_without_notifications(workers: Launcher, pooled: Launcher) -> None:
    pooled.start(settings={"POLL_INTERVAL": 0.5, "HEARTBEAT_INTERVAL": 20})
    handle = dispatch("plain", {"plain.s.a": ["hold:60"]})
    called(handle, "plain.s.a")
    workflows.cancel(handle.run_id)
    eventually(lambda: calls(handle, "plain.s.a")[0][2] == "Aborted", 10)


def test_nothing_of_the_workers_settings_stays_on_a_pooled_session(
    workers: Launcher, pooled: Launcher, pooler: str
) -> None:
    worker = pooled.start()
    finished(*(dispatch(name) for name in ("plain", "atomic", "ledger")))
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "enable_seqscan")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, boot_val, reset_val FROM pg_settings WHERE name = ANY(%s)", (list(names),)
        )
        fresh = {name: reset for name, _, reset in cursor.fetchall()}
    for _ in range(12):
        with psycopg.connect(pooler, autocommit=True) as session:
            found = session.execute(
                "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", (list(names),)
            ).fetchall()
            assert dict(found) == fresh
            prepared = session.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
            assert prepared == (0,)
    assert worker.stop() == 0


def test_a_project_behind_a_pooler_prepares_no_dispatch(
    pooler: str, django_db_blocker: DjangoDbBlocker
) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(pooler)
    behind = {"HOST": parts["host"], "PORT": parts["port"], "USER": parts["user"], "NAME": parts["dbname"]}
    with django_db_blocker.unblock():
        connections.databases["pooled"] = {**connections.databases["default"], **behind}
        try:
            statement = "SELECT count(*) FROM pg_prepared_statements"
            found = {fetch_one("pooled", statement, ())[0] for _ in range(20)}
        finally:
            connections["pooled"].close()
            del connections["pooled"], connections.databases["pooled"]
    assert found == {0}
