"""One worker process: it claims due jobs, drives their units on one event loop, and stops in good order."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, Final

import psycopg

from workflow import ids, sweeps
from workflow.conf import conf
from workflow.executor import Mover, execute
from workflow.registry import registry
from workflow.sql import workers as workers_sql
from workflow.store import claims as claims_store
from workflow.store.committer import Committer
from workflow.store.openings import Openings
from workflow.store.ports import AsyncPort, connection_parameters
from workflow.store.settle import Rivals
from workflow.store.trouble import is_connection_lost
from workflow.transports.postgres import doorbell_class
from workflow.worker.forks import let_children_be
from workflow.worker.heartbeat import Heartbeat
from workflow.worker.memory import collected_seldom, resident
from workflow.worker.options import Options
from workflow.worker.outage import Outage
from workflow.worker.pusher import Pusher
from workflow.worker.runtime import WorkerRuntime
from workflow.worker.threads import ThreadPool
from workflow.worker.units import Units

logger = logging.getLogger("workflow")

RETIRED: Final = 75
"""Exit status of a process that has done its share and wants another to take its place."""
WATCH_INTERVAL: Final = 0.1
"""Seconds between two looks at running attempts: how exactly timeouts are kept."""
LONGEST_LOOK: Final = 5.0
"""Seconds, at most, between two looks after leases that no notification has asked for."""
LONGEST_PAUSE: Final = 5.0
"""Seconds, at most, between two tries while the database is away: so soon does work go on when it is back."""
LONGEST_REST: Final = 10.0
"""The same for something in the background that fails again and again for another reason."""
CLAIM_PAUSE: Final = 0.02
"""Seconds between two claims while more is due than this process has room for."""
CLAIM_REST: Final = 0.005
"""Seconds between two claims while units are at work and jobs come due one by one: a claim of its own costs a job
half as much again. An idle process claims at once."""
BUSY: Final = 4
"""From so many units on a process counts as being at work."""
PATIENCE: Final = 2.0
"""Seconds that a stopping worker gives a database which may be away."""
MEGABYTE: Final = 2**20


def counted(number: int, noun: str) -> str:
    """1 workflow, 2 workflows."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class WorkerProcess:
    """Made on the event loop that it works on."""

    def __init__(self, parameters: dict[str, Any], options: Options) -> None:
        self.id = str(ids.new_id())
        self._options = options
        self._parameters = parameters
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._bell = asyncio.Event()
        self._retiring = False
        self._rest_until = 0.0
        """While more is due than can be taken: when to claim next, on the loop's clock, with few units free."""
        self._claimed_at = 0.0
        """When the latest claim began, on the loop's clock."""
        self._strangers: set[tuple[str, int]] = set()
        """Versions of workflows that were met and are not served here: their jobs are left to other workers."""
        self._openings = Openings(registry.all())
        self._outage = Outage()
        self._committing = AsyncPort(lambda: parameters, "workflow settle")
        self._claims = AsyncPort(lambda: parameters, "workflow claim")
        self._rest = AsyncPort(lambda: parameters, "workflow sweep")
        self._pool = ThreadPool(conf.THREADS, self._loop)
        self._pusher = Pusher(self._rest)
        rivals = Rivals(options.queues, lambda: len(self._units) >= options.concurrency)
        self.committer = Committer(
            self._committing, self._pusher.announce, outage=self._outage, rivals=rivals
        )
        self._runtime = WorkerRuntime(self._rest, self.committer, self._pool, self._pusher)
        self._units = Units(self._runtime, self._outage, self._bell.set)
        self._runtime.mover = Mover(self._moves, self._units.take)
        self._heartbeat = Heartbeat(
            lambda: parameters,
            self.id,
            self._units.leases,
            lambda: self._threadsafe(self._units.look),
            lambda: self._pool.abandoned,
            self._outage,
        )

    # --- life -----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Works until it is told to stop, or in a burst until nothing is due. Returns the exit status."""
        await self._register()
        self._heartbeat.start()
        background = [
            self._loop.create_task(self._forever(name, work), name=f"workflow-{name}")
            for name, work in (
                ("listening", self._listen),
                ("sweeping", self._sweep),
                ("watching", self._watch),
                ("looking after leases", self._look),
                ("pushing", self._pusher.run),
            )
        ]
        try:
            await self._claim_until_stopped()
            await self._finish()
            await self._pusher.drained(1.0)
        finally:
            await self._end(background)
            await self._close()
        return RETIRED if self._retiring and not self._stopping.is_set() else 0

    def stop(self) -> None:
        """Claim nothing more and let handlers finish. Safe to call again."""
        if not self._stopping.is_set():
            logger.info(
                "worker %s stops: it claims nothing more, handlers get %g s", self.id, conf.SHUTDOWN_GRACE
            )
            self._stopping.set()
            self._bell.set()

    def hurry(self) -> None:
        """Give everything back now."""
        self.stop()
        self._hurry.set()

    def on_signal(self) -> None:
        """The first signal stops, the second is in a hurry."""
        if self._stopping.is_set():
            self.hurry()
        else:
            self.stop()

    async def _register(self) -> None:
        serves = [
            {
                "name": w.name,
                "version": w.version,
                "fingerprint": w.tree.fingerprint,
                "compatible": w.compatible_versions,
            }
            for w in registry.all()
        ]
        row = (
            self.id,
            socket.gethostname(),
            os.getpid(),
            json.dumps(self._options.queues or []),
            json.dumps(serves),
            self._options.concurrency,
            conf.THREADS,
        )
        pause = 0.5
        while not self._stopping.is_set():
            try:
                await self._rest.run([(workers_sql.REGISTER, row)])
            except psycopg.Error as error:
                if not is_connection_lost(error):
                    raise
                self._outage.lost("starting", error)
                await self._wait_for_bell(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                break
        logger.info(
            "worker %s serves %s, %s at once",
            self.id,
            counted(len(serves), "workflow"),
            counted(self._options.concurrency, "unit"),
        )

    async def _finish(self) -> None:
        """Lets handlers finish within the grace, then gives back what is left without spending an attempt."""
        if self._retiring:
            await self._units.over(conf.SHUTDOWN_GRACE, self._stopping)
        self._units.stop()
        await self._units.over(conf.SHUTDOWN_GRACE, self._hurry)
        await self._units.interrupt(PATIENCE)
        if self._units.stranded:
            try:
                await asyncio.wait_for(self._release_stranded(), PATIENCE)
            except (psycopg.Error, TimeoutError) as error:
                logger.warning("what was claimed last comes back when its lease runs out: %s", error)

    async def _end(self, background: Collection[asyncio.Task[None]]) -> None:
        """Cancels tasks until they are over. A library below one of them may swallow a cancellation, as
        `asyncio.wait_for` itself does before Python 3.12 when what it waits for ends at that moment.
        """
        left = set(background)
        for _ in range(4):
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=PATIENCE / 4)
            if not left:
                return
        logger.warning("left behind: %s", ", ".join(task.get_name() for task in left))

    async def _close(self) -> None:
        self._heartbeat.stop()
        await self._runtime.close()
        try:
            await asyncio.wait_for(self._rest.run([(workers_sql.STOPPED, (self.id,))]), PATIENCE)
        except (psycopg.Error, TimeoutError) as error:
            logger.info("could not sign off: %s", error)
        await asyncio.gather(*(port.close(PATIENCE) for port in (self._committing, self._claims, self._rest)))
        self._pool.close()
        settled = f"{self.committer.boundaries} boundar{'y' if self.committer.boundaries == 1 else 'ies'}"
        commits = counted(self.committer.commits, "commit")
        logger.info("worker %s stopped; it settled %s in %s", self.id, settled, commits)

    # --- claiming -------------------------------------------------------------------------------

    async def _claim_until_stopped(self) -> None:
        pause = 0.5
        while not self._stopping.is_set() and not self._retiring:
            self._bell.clear()
            wait: float | None = conf.POLL_INTERVAL
            try:
                if (room := self._room()) > 0:
                    wait = self._rest_of_pause(room) or await self._claim_or_stop(room)
                pause = 0.5
            except psycopg.Error as error:
                if is_connection_lost(error):
                    self._outage.lost("claiming", error)
                else:
                    logger.exception("claiming failed and is tried again")
                wait, pause = pause * random.uniform(0.5, 1.0), min(pause * 2, LONGEST_PAUSE)
            except Exception:
                logger.exception("claiming failed and is tried again")
                wait, pause = pause * random.uniform(0.5, 1.0), min(pause * 2, LONGEST_PAUSE)
            if wait is None:
                return
            if wait > 0:
                await self._wait_for_bell(wait)
            await self._rest_between_claims()

    def _room(self) -> int:
        """How many jobs may be claimed now."""
        if self._heartbeat.silent:
            return 0
        room = self._options.concurrency - len(self._units)
        if self._options.max_jobs is None:
            return room
        left = self._options.max_jobs - self._units.launched
        if left <= 0:
            self._retire(f"it has taken {self._units.launched} jobs")
        return min(room, left)

    def _moves(self) -> int:
        """How many more times a unit may move on to another node, which counts as a job that was taken."""
        if self._stopping.is_set() or self._retiring or self._heartbeat.silent:
            return 0
        if self._options.max_jobs is None:
            return sys.maxsize
        return self._options.max_jobs - self._units.launched

    async def _rest_between_claims(self) -> None:
        rest = self._claimed_at + CLAIM_REST - self._loop.time()
        if rest > 0 and len(self._units) >= BUSY:
            await asyncio.sleep(rest)

    def _rest_of_pause(self, room: int) -> float:
        """Seconds for which claiming had better wait, 0 for none: under a backlog units are claimed many at a time."""
        if room >= self._options.concurrency // 4:
            return 0
        return max(self._rest_until - self._loop.time(), 0.0)

    async def _claim_or_stop(self, room: int) -> float | None:
        """Claims; a claim that is on its way when the worker is told to stop gets a little time to come back."""
        claiming = self._loop.create_task(self._claim(room))
        stopped = self._loop.create_task(self._stopping.wait())
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
        idle = not self._units
        if self._units.stranded:
            await self._release_stranded()
        sparing = [stranger for stranger in self._strangers if registry.serves(*stranger) is None]
        claimed, due = await self._take(room, sparing)
        self._outage.back()
        if self._stopping.is_set():
            await claims_store.release(self._claims, claimed, delay=0.0, refund=True)
            return 0
        if claimed:
            await execute(claimed, self._runtime, self._units.launch, self._strangers)
        if len(claimed) >= room:
            self._rest_until = self._loop.time() + CLAIM_PAUSE
            return 0 if len(self._units) < self._options.concurrency else conf.POLL_INTERVAL
        if self._options.burst and claimed:
            return 0  # a delivery may have made something due
        if self._options.burst and not self._units:
            # A unit that has ended meanwhile may have left a job that the claim could not see yet.
            return None if idle else 0
        wait = conf.POLL_INTERVAL * random.uniform(0.8, 1.2)
        return wait if due is None else max(min(wait, due), 0.001)

    async def _take(
        self, room: int, sparing: Collection[tuple[str, int]]
    ) -> tuple[list[claims_store.Claim], float | None]:
        """The claim, which begins fresh runs as well. One that the database refuses is made again without that: so a
        run that cannot be begun (a trigger that raises, a row that somebody has locked) keeps no other.
        """
        ask = partial(claims_store.claim, self._claims, self.id, room, self._options.queues, sparing=sparing)
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

    async def _release_stranded(self) -> None:
        """A claim whose answer was lost may have been committed: whatever nobody drives goes back."""
        count = await claims_store.release_stranded(self._claims, self.id, self._units.tokens())
        self._units.stranded = False
        if count:
            logger.info("%s given back: the claim was never answered", counted(count, "job"))

    async def _wait_for_bell(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._bell.wait()
        except TimeoutError:
            return

    def _threadsafe(self, fn: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(fn)
        except RuntimeError:
            logger.debug("the loop has ended")

    # --- background -----------------------------------------------------------------------------

    async def _forever(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Nothing that goes wrong in the background may end it: timeouts, sweeps and wake-ups would just stop."""
        pause = 1.0
        while True:
            begun = self._loop.time()
            try:
                await work()
                return
            except Exception as error:
                if isinstance(error, psycopg.Error) and is_connection_lost(error):
                    self._outage.lost(name, error)
                    longest = LONGEST_PAUSE
                else:
                    logger.exception("%s failed and starts anew", name)
                    longest = LONGEST_REST
            await asyncio.sleep(pause)
            pause = 1.0 if self._loop.time() - begun > 2 * LONGEST_REST else min(pause * 2, longest)

    async def _listen(self) -> None:
        await doorbell_class()(lambda: self._parameters, self._bell.set, self._units.signalled).listen()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(conf.SWEEP_INTERVAL * random.uniform(0.8, 1.2))
            if any((await sweeps.sweep(self._rest, self._runtime.announce_rows)).values()):
                self._bell.set()

    async def _look(self) -> None:
        """The floor under a notification that may be lost."""
        while True:
            await asyncio.sleep(min(conf.POLL_INTERVAL, LONGEST_LOOK))
            self._units.look()

    async def _watch(self) -> None:
        ticks = 0
        while True:
            before = self._loop.time()
            await asyncio.sleep(WATCH_INTERVAL)
            self._runtime.watch(late=self._loop.time() - before - WATCH_INTERVAL)
            if self._heartbeat.fell_silent():
                self._units.lose_all()
            ticks += 1
            if ticks % 10 == 0:
                self._watch_surroundings()

    def _watch_surroundings(self) -> None:
        parent, limit = self._options.parent, self._options.max_rss
        if parent is not None and os.getppid() != parent:
            logger.error("the process that started this worker is gone")
            self.stop()
        if limit is not None and not self._retiring and (used := resident()) > limit * MEGABYTE:
            self._retire(f"{used // MEGABYTE} MB are resident, more than {limit}")

    def _retire(self, why: str) -> None:
        logger.info("worker %s retires: %s", self.id, why)
        self._retiring = True
        self._bell.set()


def _install_signals(process: WorkerProcess, supervised: bool) -> None:
    """A supervised process may be told twice, by the terminal and by its parent: only the latter is in a hurry."""
    loop = asyncio.get_running_loop()
    stop = process.stop if supervised else process.on_signal
    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if supervised:
        handlers[signal.SIGUSR2] = process.hurry
    try:
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
    except (NotImplementedError, RuntimeError):  # Windows, or not the main thread
        return
    let_children_be()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, list(handlers))


def run_process(options: Options) -> int:
    """One worker process, in this thread, until it is done. Returns the exit status."""
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "pthread_sigmask"):
        # A signal that comes before there is a loop to take it waits for that, and kills nobody meanwhile.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    parameters = connection_parameters()

    async def main() -> int:
        process = WorkerProcess(parameters, options)
        _install_signals(process, options.parent is not None)
        return await process.run()

    with collected_seldom():
        return asyncio.run(main())
