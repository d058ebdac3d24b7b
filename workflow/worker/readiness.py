"""What keeps a worker from starting, and whether one is alive on this host."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, ProgrammingError, connections

from workflow.conf import conf, validate
from workflow.database import unmigrated
from workflow.registry import registry
from workflow.sql import workers as sql
from workflow.store.ports import DjangoPort


def refusal() -> str | None:
    """Why a worker must not start, in one line: a faulty setting or definition, migrations that are not applied,
    a transaction that is open in this thread.

    None when nothing speaks against it, and when the database cannot be asked: that is said by whoever
    needs it next.
    """
    for key, rule in validate():
        place = key if key == "WORKFLOW" else f'WORKFLOW["{key}"]'
        return f"{place} {rule}"
    for place, error in registry.faults:
        return f"{place}: {error}"
    if connections[conf.DATABASE].in_atomic_block:
        return "a transaction is open, and no worker sees what it wrote: in a TestCase call workflow.testing.drain"
    return unmigrated()


@dataclass(frozen=True, slots=True)
class Health:
    """True where a worker of this host is alive; `message` is one line for people."""

    alive: bool
    message: str

    def __bool__(self) -> bool:
        return self.alive


def check(hostname: str | None = None) -> Health:
    """Whether a worker process of this host (or of `hostname`) has signed on, has not signed off, and was heard of
    within `STALE_LEASE_THRESHOLD`. A database that cannot be reached is bad health, not an error.
    """
    host = hostname or socket.gethostname()
    try:
        rows = DjangoPort().run_now([(sql.ALIVE, (conf.STALE_LEASE_THRESHOLD,))])[0]
    except DatabaseError as error:
        if isinstance(error, ProgrammingError) and (reason := unmigrated()) is not None:
            return Health(False, reason)
        return Health(False, f"the database cannot be asked: {' '.join(str(error).split())}")
    pids = sorted(_pid(row) for row in rows if row[1] == host)
    if not pids:
        return Health(False, f"no worker is alive on {host}")
    return Health(True, f"alive on {host}: {', '.join(str(pid) for pid in pids)}")


def _pid(row: tuple[Any, ...]) -> int:
    return int(row[2])
