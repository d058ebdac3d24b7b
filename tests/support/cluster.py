"""A PostgreSQL server of the tests' own, to be stopped and crashed at will."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management import call_command
from django.db import connection, connections

from example_project.embedded import DATABASE_NAME, SUPERUSER, EmbeddedPostgres


class Cluster(EmbeddedPostgres):
    """As the embedded server, in a folder of its own."""

    def crash(self) -> None:
        """Every server process is gone at once, as when the machine loses its power."""
        with self._lock():
            self._run("pg_ctl", "stop", "-D", "data", "-m", "immediate", "-w", "-t", "60")

    def halt(self) -> None:
        """An orderly stop that waits for nobody."""
        self.stop(force=True)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A running server; Django's default database is on it, migrated, until the block is left."""
    folder = Path(tempfile.mkdtemp(prefix="saga-cluster-"))
    made = Cluster(folder / "postgres")
    entry = connections.settings["default"]
    before, wrapper = dict(entry), connections["default"]
    try:
        made.ensure_running()
        connections.close_all()
        entry.update(
            ENGINE="django.db.backends.postgresql",
            NAME=DATABASE_NAME,
            USER=SUPERUSER,
            HOST=str(made.socket_folder),
        )
        del connections["default"]
        call_command("migrate", verbosity=0)
        yield made
    finally:
        connections.close_all()
        entry.clear()
        entry.update(before)
        connections["default"] = wrapper  # the one that is closed before the test database is dropped
        made.stop(force=True)
        shutil.rmtree(folder, ignore_errors=True)


def reconnect() -> None:
    """After an outage: this process's own connection is dead, too."""
    connections.close_all()
    connection.ensure_connection()
