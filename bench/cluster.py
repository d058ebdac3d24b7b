"""A PostgreSQL of one's own: made in a temporary folder, durable as by default, ended and removed afterwards.

The programs are those of the system (Debian's are looked for where they lie) or else those of the embedded
server that the project brings along. The folder is on a disk, not in a memory file system, since the cost of
a commit is what is measured.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "timezone": "UTC",
}
SUPERUSER = "postgres"


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the server runs as when we are root, as it refuses to run as root."""

    uid: int
    gid: int


class Cluster:
    """One server. `dsn(database)` reaches it; `postmaster` is the process id of its first process."""

    def __init__(self, programs: Path, folder: Path, port: int) -> None:
        self.programs = programs
        self.folder = folder
        self.port = port
        self._password = secrets.token_hex(16)

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://{SUPERUSER}:{self._password}@127.0.0.1:{self.port}/{database}"

    @property
    def postmaster(self) -> int:
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    @cached_property
    def counts_statements(self) -> bool:
        """Whether pg_stat_statements is at hand."""
        config = self.programs / "pg_config"
        if not config.exists():
            return False
        found = subprocess.run([config, "--sharedir"], capture_output=True, text=True, check=False)
        return (Path(found.stdout.strip()) / "extension" / "pg_stat_statements.control").exists()

    def start(self) -> None:
        """Makes the cluster and starts its server; returns when it takes connections."""
        secret = self.folder / "secret"
        secret.write_text(self._password)
        if self._account is not None:
            for path in (self.folder, secret):
                os.chown(path, self._account.uid, self._account.gid)
        options = ("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", f"--pwfile={secret}")
        self._run("initdb", "-D", "data", "-U", SUPERUSER, *options)
        secret.unlink()
        settings = {**SETTINGS, "port": str(self.port), "unix_socket_directories": str(self.folder)}
        if self.counts_statements:
            settings["shared_preload_libraries"] = "pg_stat_statements"
            settings["pg_stat_statements.track"] = "top"
        lines = "".join(f"{name} = '{value}'\n" for name, value in settings.items())
        with (self.folder / "data" / "postgresql.conf").open("a") as configuration:
            configuration.write(lines)
        self._run("pg_ctl", "start", "-D", "data", "-l", "log", "-w", "-t", "60")

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-D", "data", "-m", "fast", "-w", "-t", "60")

    @cached_property
    def _account(self) -> Account | None:
        if sys.platform == "win32" or os.geteuid() != 0:
            return None
        import pwd

        names = {entry.pw_name for entry in pwd.getpwall()}
        entry = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
        return Account(entry.pw_uid, entry.pw_gid)

    def _run(self, program: str, *arguments: str) -> None:
        with tempfile.TemporaryFile("w+") as said:  # a server inherits it, and would keep a pipe open
            environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
            done = subprocess.run(
                [self.programs / program, *arguments],
                cwd=self.folder,
                env={**environment, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                check=False,
                user=self._account.uid if self._account else None,
                group=self._account.gid if self._account else None,
                extra_groups=[] if self._account else None,
            )
            said.seek(0)
            if done.returncode:
                raise RuntimeError(f"{program} failed: {said.read()[-2000:]}")


def programs() -> Path:
    """The folder of PostgreSQL's programs: `PGBIN`, the system's newest, or those of the embedded server."""
    if named := os.environ.get("PGBIN"):
        return Path(named)
    debian = sorted(
        (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")),
        key=lambda folder: int(folder.parent.name) if folder.parent.name.isdigit() else 0,
    )
    if debian:
        return debian[-1]
    if found := shutil.which("initdb"):
        folder = Path(found).resolve().parent
        if (folder / "pg_ctl").exists():
            return folder
    from example_project.embedded import EmbeddedPostgres

    server = EmbeddedPostgres(Path(tempfile.gettempdir()) / "workflow-bench")
    server._grant_access()  # the account that the server runs as has to reach them
    return server._programs


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A server for the length of a block; it is stopped and its files are removed in any case."""
    disk = Path("/var/tmp")
    folder = Path(tempfile.mkdtemp(prefix="workflow-bench-", dir=disk if disk.is_dir() else None))
    folder.chmod(0o755)
    made = Cluster(programs(), folder, free_port())
    try:
        made.start()
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
