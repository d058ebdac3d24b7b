"""What user code's thread or coroutine may ask of the process it runs in, and for how long it asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import psycopg

from workflow.signals import Signal
from workflow.store.pipeline import Rows, Statement
from workflow.store.settle import Settlement
from workflow.store.trouble import is_connection_lost, is_in_the_way

if TYPE_CHECKING:
    from workflow.executor.attempt import Attempt

logger = logging.getLogger("workflow")

READS: Final = 3
"""How often a read that fails for no known reason is tried: a plan that a migration has made void fails once."""
LONGEST_PAUSE: Final = 5.0
"""Seconds, at most, between two tries of a read while the database is away."""


class Desk(Protocol):
    """What a handler's thread or coroutine may ask of the process it runs in."""

    def settle(self, settlement: Settlement) -> Settlement:
        """Settles a boundary for a plain handler, whose thread waits."""
        ...

    async def asettle(self, settlement: Settlement) -> Settlement:
        """Settles a boundary for an `async` handler."""
        ...

    def read(self, statement: Statement) -> Rows:
        """Runs one statement for a plain handler."""
        ...

    async def aread(self, statement: Statement) -> Rows:
        """Runs one statement for an `async` handler."""
        ...

    def reported(self, attempt: Attempt) -> None:
        """There are notes to be written."""
        ...

    def last_notes(self, attempt: Attempt) -> None:
        """From here on what it reports is left to its checkpoint. Returns when what is on its way has arrived."""
        ...

    def announce(self, settlements: Sequence[Settlement]) -> None:
        """Pushes history that was settled elsewhere."""
        ...


def patient_read(desk: Desk, statement: Statement, signal: Signal) -> Rows:
    """The rows of one statement. A database that is away, or a migration's lock, costs time and not an attempt. Raises
    `Aborted` once the signal is set meanwhile."""
    failures = 0
    while True:
        try:
            return desk.read(statement)
        except psycopg.Error as error:
            failures += 1
            pause = _until_read_again(error, failures)
        signal.wait(pause)
        signal.raise_if_aborted()


async def patient_aread(desk: Desk, statement: Statement, signal: Signal) -> Rows:
    """The same for an `async` handler."""
    failures = 0
    while True:
        try:
            return await desk.aread(statement)
        except psycopg.Error as error:
            failures += 1
            pause = _until_read_again(error, failures)
        await asyncio.sleep(pause)
        signal.raise_if_aborted()


def _until_read_again(error: psycopg.Error, failures: int) -> float:
    """Seconds until a read that has failed so often is tried again; raises the error if it is not."""
    if failures >= READS and not (is_connection_lost(error) or is_in_the_way(error)):
        raise error
    pause = min(0.1 * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE)
    logger.info("a step is read again in %.1f s: %s", pause, str(error).partition("\n")[0])
    return pause
