"""The loop in which a worker process claims jobs and launches their units.

When and how many is decided here; which ones is up to the `Source`: whatever is due, or what the process is asked for.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import psycopg

from workflow.conf import conf
from workflow.executor import execute
from workflow.registry import registry
from workflow.store import claims as claims_store
from workflow.store.openings import Openings
from workflow.store.ports import Port
from workflow.store.trouble import is_connection_lost, is_in_the_way
from workflow.worker.course import Course
from workflow.worker.options import Options
from workflow.worker.outage import Outage
from workflow.worker.pusher import Pusher
from workflow.worker.runtime import WorkerRuntime
from workflow.worker.sources import Source
from workflow.worker.standing import Standing
from workflow.worker.units import Units

logger = logging.getLogger("workflow")

LONGEST_PAUSE: Final = 5.0
"""Seconds, at most, between two tries while the database is away: so soon does work go on when it is back."""
CLAIM_PAUSE: Final = 0.02
"""Seconds between two claims while more is due than this process has room for."""
CLAIM_REST: Final = 0.005
"""Seconds between two claims while units are at work and jobs come due one by one: a claim of its own costs a job
half as much again. An idle process claims at once, if it goes first (see `Standing`)."""
BUSY: Final = 4
"""From so many units on a process counts as being at work."""
PATIENCE: Final = 2.0
"""Seconds that a stopping worker gives a database which may be away."""


def counted(number: int, noun: str) -> str:
    """1 workflow, 2 workflows."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class Claimer:
    """`silent()` says whether no heartbeat gets through: then nothing is claimed. `sweep()` is one pass of all sweeps,
    and says whether it changed anything.
    """

    def __init__(
        self,
        worker_id: str,
        port: Port,
        source: Source,
        options: Options,
        course: Course,
        *,
        units: Units,
        runtime: WorkerRuntime,
        pusher: Pusher,
        outage: Outage,
        standing: Standing,
        silent: Callable[[], bool],
        sweep: Callable[[], Awaitable[bool]],
    ) -> None:
        self._worker_id = worker_id
        self._port = port
        self._source = source
        self._options = options
        self._course = course
        self._units = units
        self._runtime = runtime
        self._pusher = pusher
        self._outage = outage
        self._standing = standing
        self._silent = silent
        self._sweep = sweep
        self._loop = asyncio.get_running_loop()
        self._openings = Openings(registry.all())
        self._rest_until = 0.0
        """While more is due than can be taken: when to claim next, on the loop's clock, with few units free."""
        self._claimed_at = 0.0
        """When the latest claim began, on the loop's clock."""
        self._more = False
        """Whether more may have been due than it could take."""

    async def until_stopped(self) -> None:
        """Claims until the process is to leave, or in a burst until nothing is due."""
        pause = 0.5
        while not self._course.leaving:
            self._course.bell.clear()
            wait: float | None = conf.POLL_INTERVAL
            try:
                if (room := self._room()) > 0 and self._source.wants():
                    wait = self._rest_of_pause(room) or await self._claim_or_stop(room)
                pause = 0.5
            except psycopg.Error as error:
                if is_connection_lost(error):
                    self._outage.lost("claiming", error)
                elif is_in_the_way(error):
                    logger.info("claiming met another session's lock, and is tried again")
                else:
                    logger.exception("claiming failed and is tried again")
                wait, pause = pause * random.uniform(0.5, 1.0), min(pause * 2, LONGEST_PAUSE)
            except Exception:
                logger.exception("claiming failed and is tried again")
                wait, pause = pause * random.uniform(0.5, 1.0), min(pause * 2, LONGEST_PAUSE)
            if wait is None:
                return
            rang = wait > 0 and await self._course.wait_for_bell(wait)
            await self._rest_between_claims(rang)

    def moves(self) -> int:
        """How many more times a unit may move on to another node, which counts as a job that was taken."""
        if self._course.leaving or self._silent():
            return 0
        if self._options.max_jobs is None:
            return sys.maxsize
        return self._options.max_jobs - self._units.launched

    def retire(self, why: str) -> None:
        """The process is to be replaced by another."""
        logger.info("worker %s retires: %s", self._worker_id, why)
        self._course.retiring = True
        self._course.bell.set()

    async def release_stranded(self) -> None:
        """A claim whose answer was lost may have been committed: whatever nobody drives goes back."""
        count, left = await claims_store.release_stranded(self._port, self._worker_id, self._units.tokens())
        self._units.stranded = left > 0
        if count:
            logger.info("%s given back: the claim was never answered", counted(count, "job"))

    def _room(self) -> int:
        """How many jobs may be claimed now."""
        if self._silent():
            return 0
        room = self._options.concurrency - len(self._units)
        if self._options.max_jobs is None:
            return room
        left = self._options.max_jobs - self._units.launched
        if left <= 0:
            self.retire(f"it has taken {self._units.launched} jobs")
        return min(room, left)

    async def _rest_between_claims(self, rang: bool) -> None:
        """`rang`: something has just come due."""
        rest = 0.0
        if len(self._units) >= BUSY:
            rest = self._claimed_at + CLAIM_REST - self._loop.time()
        if rang and not self._more:
            rest = max(rest, self._standing.pause())
        if rest > 0:
            await asyncio.sleep(rest)

    def _rest_of_pause(self, room: int) -> float:
        """Seconds for which claiming had better wait, 0 for none: under a backlog units are claimed many at a time."""
        if room >= self._options.concurrency // 4:
            return 0
        return max(self._rest_until - self._loop.time(), 0.0)

    async def _claim_or_stop(self, room: int) -> float | None:
        """Claims; a claim that is on its way when the worker is told to stop gets a little time to come back."""
        claiming = self._loop.create_task(self._claim(room))
        stopped = self._loop.create_task(self._course.stopping.wait())
        try:
            await asyncio.wait([claiming, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not claiming.done():
                await asyncio.wait([claiming], timeout=PATIENCE)
            if claiming.done():
                return claiming.result()
            return 0
        finally:
            stopped.cancel()
            if not claiming.done() or claiming.cancelled() or claiming.exception() is not None:
                self._units.stranded = True
            claiming.cancel()

    async def _claim(self, room: int) -> float | None:
        """Claims and launches; in how many seconds to look again, None to leave."""
        self._claimed_at = self._loop.time()
        self._more = False
        idle = not self._units
        if self._units.stranded:
            await self.release_stranded()
        claimed, due = await self._take(room)
        self._outage.back()
        try:
            if self._course.stopping.is_set():
                await claims_store.release(self._port, claimed, delay=0.0, refund=True)
                return 0
            if claimed:
                await execute(claimed, self._runtime, self._units.launch, self._source.strangers)
        finally:
            self._source.launched(claimed, self._units)
        self._more = len(claimed) >= room
        if self._more:
            self._rest_until = self._loop.time() + CLAIM_PAUSE
            return 0 if len(self._units) < self._options.concurrency else conf.POLL_INTERVAL
        if self._options.burst and claimed:
            return 0  # a delivery may have made something due
        if self._options.burst and not self._units:
            # A unit that has ended meanwhile may have left a job that the claim could not see yet.
            # No other worker may be there to find waits past their deadlines and leases that are stale.
            return 0 if not idle or await self._sweep() else None
        wait = conf.POLL_INTERVAL * random.uniform(0.8, 1.2)
        return wait if due is None else max(min(wait, due), 0.001)

    async def _take(self, room: int) -> tuple[list[claims_store.Claim], float | None]:
        """The claim, which begins fresh runs as well. One that the database refuses is made again without that: so a
        run that cannot be begun (a trigger that raises, a row that somebody has locked) keeps no other.
        """

        async def ask(**options: Any) -> tuple[list[claims_store.Claim], float | None]:
            return await self._source.claim(self._port, self._worker_id, room, **options)

        try:
            claimed, due = await ask(openings=self._openings)
        except psycopg.Error as error:
            if is_connection_lost(error):
                raise
            logger.warning("for a while no run is begun by its claim: %s", error)
            self._openings.rest()
            return await ask()
        self._pusher.announce(claims_store.opened(claimed, self._openings))
        return claimed, due
