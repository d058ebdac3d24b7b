"""Rings: sends one Celery message for each job that is due, from a thread of a Celery worker's main process.

It listens to PostgreSQL and polls as the floor. So whoever dispatches needs no broker, and what a transaction rolls
back is never rung. Relays of several workers share the work: `rung_at` on the job says that it was rung.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import psycopg
from django.db import DatabaseError

from workflow import failpoints
from workflow.conf import conf
from workflow.sql import claim as claim_sql
from workflow.sql import rings as sql
from workflow.sql.arrays import plain
from workflow.store.poolers import is_direct
from workflow.store.ports import BY_INDEX, connection_parameters
from workflow.store.trouble import is_connection_lost
from workflow.transports.celery import Unreachable
from workflow.transports.postgres import JOBS
from workflow.worker.outage import Outage

logger = logging.getLogger("workflow")

WINDOW: Final = 1_000
"""Due jobs, the first in the claim's order, that are looked at: no more than these wait in the broker."""
BATCH: Final = 200
"""Jobs that are rung in one transaction: what is more urgent and comes meanwhile waits for no more messages."""
FIRST_AGAIN: Final = 30.0
LONGEST_AGAIN: Final = 600.0
"""Seconds after which a job that nobody has taken is rung again: as long again as it had been due when it was rung, but
within these. A message was lost, or all workers are busy, and then more messages are of no use."""
REST: Final = 0.02
REST_SHARE: Final = 5
"""Seconds between two looks, however many jobs come; and so many times what the latest look took."""
SOON: Final = 0.1
"""Seconds until the next look after one that had something to ring: under a backlog, others have come to its front."""
LONGEST_PAUSE: Final = 5.0
"""Seconds, at most, between two tries while the database or the broker is away."""
LONGEST_WAIT: Final = 0.5
"""Seconds, at most, after which it hears that it is to stop."""


class Sends(Protocol):
    """Where messages go. `connect` and `send` raise `Unreachable`."""

    def connect(self) -> None: ...

    def send(self, job_id: str, queue: str, priority: int) -> None: ...

    def close(self) -> None: ...


class Relay:
    """One thread. Nothing of it is shared: how many relays there are, and whether one dies, makes no difference."""

    def __init__(
        self, sender: Sends, parameters: Callable[[], dict[str, Any]] = connection_parameters
    ) -> None:
        self._sender = sender
        self._parameters = parameters
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workflow-relay", daemon=True)
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._listens = False
        self._rest = REST
        self._complained_of = ""
        self._database = Outage()
        self._broker = Outage("the broker")

    def start(self) -> None:
        _forks.watch()
        self._thread.start()

    def stop(self) -> None:
        """Returns at once."""
        self._stop.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        logger.info("jobs that are due are rung by Celery messages")
        pause = 0.5
        while not self._stop.is_set():
            try:
                with _forks.none():
                    wait = self.turn()
                self._wait(wait)
                pause = 0.5
                continue
            except Unreachable as error:
                self._broker.lost("ringing", error)
            except (psycopg.Error, DatabaseError, OSError) as error:
                self._drop()
                if isinstance(error, DatabaseError) or is_connection_lost(error):
                    self._database.lost("ringing", error)
                else:
                    self._complain(error)
            except Exception as error:
                self._drop()
                self._complain(error)
            self._stop.wait(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)
        with _forks.none():
            self._drop()
            self._sender.close()

    def _complain(self, error: Exception) -> None:
        """Once for each kind of trouble, however often it is tried again."""
        if str(error) != self._complained_of:
            self._complained_of = str(error)
            logger.error("ringing failed and is tried again", exc_info=error)

    def turn(self) -> float:
        """Rings what is to be rung now; in how many seconds to look again."""
        self._sender.connect()
        connection = self._connect()
        parameters = (WINDOW, WINDOW, FIRST_AGAIN, LONGEST_AGAIN, FIRST_AGAIN, LONGEST_AGAIN, BATCH)
        begun = time.monotonic()
        jobs = connection.execute(sql.RING, parameters).fetchall()
        self._rest = max(REST, REST_SHARE * (time.monotonic() - begun))
        self._database.back()
        failpoints.hit("relay.rung")
        self._send(sorted(jobs, key=lambda job: (-job[2], job[3])))
        self._broker.back()
        if len(jobs) == BATCH:
            return 0.0
        (due,) = connection.execute(claim_sql.NEXT_DUE, (None, None, 0, None, None)).fetchone() or (None,)
        wait = conf.POLL_INTERVAL * random.uniform(0.8, 1.2)
        if jobs:
            wait = min(wait, SOON)
        return wait if due is None else max(min(wait, due), 0.001)

    def _send(self, jobs: list[tuple[Any, ...]]) -> None:
        """Only now that it is committed: whoever gets a message must not find its job locked."""
        for place, (job, queue, priority, _) in enumerate(jobs):
            try:
                self._sender.send(job, queue, priority)
            except Unreachable:
                unsent = plain(each[0] for each in jobs[place:])
                self._connect().execute(sql.UNRING, (unsent,))
                raise
            except Exception as error:  # of the project's routes; the job is rung again some time
                self._complain(error)

    def _wait(self, seconds: float) -> None:
        """Until a job was added, or for so many seconds."""
        connection = self._connection
        end = time.monotonic() + seconds
        self._stop.wait(min(self._rest, seconds))
        while not self._stop.is_set() and (left := end - time.monotonic()) > 0:
            left = min(left, LONGEST_WAIT)
            if connection is None or not self._listens:
                self._stop.wait(left)
            elif any(True for _ in connection.notifies(timeout=left, stop_after=1)):
                return

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            parameters = {"application_name": "workflow relay", **self._parameters()}
            # Nothing is prepared: a plan that was made when nothing was due would be kept for a backlog.
            connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
            self._connection = connection
            self._listens = is_direct(connection)
            if self._listens:
                connection.execute(BY_INDEX)
                connection.execute(f"LISTEN {JOBS}")
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Forks:
    """Celery forks its pool's processes from the main process, at any time. None is to be born while the relay holds a
    lock (of a library, a logger) that nobody would ever release in there.
    """

    LONGEST: Final = 1.0
    """Seconds that a fork waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forking = (
            threading.local()
        )  # two threads may fork at once, and each lets go of what it holds itself
        self._watching = False

    def none(self) -> threading.Lock:
        """While this is held, no process is forked."""
        return self._lock

    def watch(self) -> None:
        if not self._watching and hasattr(os, "register_at_fork"):
            self._watching = True
            os.register_at_fork(before=self._before, after_in_parent=self._after, after_in_child=self._born)

    def _before(self) -> None:
        self._forking.held = self._lock.acquire(timeout=self.LONGEST)

    def _after(self) -> None:
        if getattr(self._forking, "held", False):  # not so where it was registered in the middle of a fork
            self._forking.held = False
            self._lock.release()

    def _born(self) -> None:
        self._lock = threading.Lock()


_forks = _Forks()
