"""LISTEN/NOTIFY on a connection of its own.

A pooler in transaction mode takes LISTEN and delivers nothing. It is recognised by the server's
process id, which is not the one that the connection was given; then one line in the log says so,
and the worker polls.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import psycopg
from django.utils.module_loading import import_string

from workflow.conf import conf
from workflow.store.poolers import ais_direct

logger = logging.getLogger("workflow")

JOBS = "workflow_job"
SIGNALS = "workflow_signal"
_PROBE_EVERY = 30.0
LONGEST_PAUSE = 5.0
"""Seconds between two tries to connect again, at most."""


class Doorbell:
    """Calls `on_job()` when a job was added, and `on_signal(run_id)` when a run's units should look again."""

    def __init__(
        self,
        parameters: Callable[[], dict[str, Any]],
        on_job: Callable[[], None],
        on_signal: Callable[[str], None],
    ) -> None:
        self._parameters = parameters
        self._on_job = on_job
        self._on_signal = on_signal

    async def listen(self) -> None:
        """Listens until cancelled; connects again, with a growing pause, whenever the connection is lost."""
        pause = 0.5
        deaf = False
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    **{"application_name": "workflow listener", **self._parameters()}, autocommit=True
                )
                async with connection:
                    if not await ais_direct(connection):
                        logger.warning(
                            "a pooler stands before PostgreSQL: no notifications, polling every %g s",
                            conf.POLL_INTERVAL,
                        )
                        return
                    await connection.execute(f"LISTEN {JOBS}")
                    await connection.execute(f"LISTEN {SIGNALS}")
                    self._on_job()  # whatever was added before we listened
                    pause = 0.5
                    deaf = False
                    await self._hear(connection)
            except (psycopg.Error, OSError) as error:
                if not deaf:  # one line for each time, however often it has to try
                    logger.warning(
                        "not listening, jobs are found by polling: %s", " ".join(str(error).split())
                    )
                deaf = True
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _hear(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for notification in connection.notifies(timeout=_PROBE_EVERY):
                if notification.channel == JOBS:
                    self._on_job()
                else:
                    self._on_signal(notification.payload)
            await connection.execute("SELECT 1")  # a peer that vanished without a word is noticed here


def doorbell_class() -> type[Doorbell]:
    """The `Doorbell` of the configured transport."""
    found: type[Doorbell] = import_string(f"{conf.TRANSPORT}.Doorbell")
    return found
