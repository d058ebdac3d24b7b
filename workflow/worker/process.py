"""One worker process: it claims due jobs, drives their units on one event loop, and stops in good order."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, Final

import psycopg
from django.db import connections

from workflow import ids, sweeps
from workflow.conf import conf
from workflow.executor import Mover
from workflow.registry import registry
from workflow.sql import workers as workers_sql
from workflow.store.committer import Committer
from workflow.store.ports import AsyncPort, parameters_of
from workflow.store.settle import Rivals
from workflow.store.trouble import is_connection_lost, is_in_the_way
from workflow.transports.postgres import doorbell_class
from workflow.worker import leaving
from workflow.worker.claiming import LONGEST_PAUSE, PATIENCE, Claimer, counted
from workflow.worker.course import Course
from workflow.worker.endings import ends_task
from workflow.worker.forks import let_children_be
from workflow.worker.heartbeat import Heartbeat
from workflow.worker.memory import collected_seldom, resident
from workflow.worker.options import Options
from workflow.worker.outage import Outage
from workflow.worker.pusher import Pusher
from workflow.worker.runtime import WorkerRuntime
from workflow.worker.sources import Due, Source
from workflow.worker.standing import Standing
from workflow.worker.threads import ThreadPool
from workflow.worker.units import Units

logger = logging.getLogger("workflow")

UNSTARTED: Final = 1
"""Exit status of a burst whose database cannot be reached."""
RETIRED: Final = 75
"""Exit status of a process that has done its share and wants another to take its place."""
OUTGROWN: Final = 76
"""The same of one that has become too big."""
WATCH_INTERVAL: Final = 0.1
"""Seconds between two looks at running attempts: how exactly timeouts are kept."""
LONGEST_LOOK: Final = 5.0
"""Seconds, at most, between two looks after leases that no notification has asked for."""
LONGEST_REST: Final = 10.0
"""Seconds, at most, between two tries of something in the background that fails again and again."""
MEGABYTE: Final = 2**20


class WorkerProcess:
    """Made on the event loop that it works on. `source` says which jobs it claims: by default whatever is due."""

    def __init__(
        self,
        parameters: dict[str, Any],
        options: Options,
        source: Callable[[Callable[[], None]], Source] | None = None,
    ) -> None:
        self.id = str(ids.new_id())
        self._options = options
        self._parameters = parameters
        self._loop = asyncio.get_running_loop()
        self._course = Course()
        self._standing = Standing(self.id, shares=source is None and not options.burst)
        self._source: Source = (
            Due(options.queues, self._standing.age) if source is None else source(self._course.bell.set)
        )
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
        self._units = Units(self._runtime, self._outage, self._course.bell.set)
        self._heartbeat = Heartbeat(
            lambda: parameters,
            self.id,
            self._units.leases,
            lambda: self._threadsafe(self._units.look),
            lambda: self._pool.abandoned,
            self._outage,
        )
        self._claimer = Claimer(
            self.id,
            self._claims,
            self._source,
            options,
            self._course,
            units=self._units,
            runtime=self._runtime,
            pusher=self._pusher,
            outage=self._outage,
            standing=self._standing,
            silent=lambda: self._heartbeat.silent,
            sweep=self._sweep_once,
        )
        self._runtime.mover = Mover(self._claimer.moves, self._units.take)

    # --- life -----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Works until it is told to stop, or in a burst until nothing is due. Returns the exit status."""
        if not await self._register():
            await self._rest.close(PATIENCE)
            self._pool.close()
            return UNSTARTED
        self._heartbeat.start()
        background = [
            self._loop.create_task(self._forever(name, work), name=f"workflow-{name}")
            for name, work in (
                ("listening", self._listen),
                ("sweeping", self._sweep),
                ("watching", self._watch),
                ("looking after leases", self._look),
                ("pushing", self._pusher.run),
                ("finding its place", lambda: self._standing.keep(self._rest)),
                ("telling of what is left", lambda: self._source.background(self._rest)),
            )
        ]
        try:
            await self._claimer.until_stopped()
            self._source.close()
            await self._finish()
            await self._pusher.drained(1.0)
        finally:
            await self._end(background)
            await self._close()
        if self._course.retiring and not self._course.stopping.is_set():
            return OUTGROWN if self._course.outgrown else RETIRED
        return 0

    def stop(self) -> None:
        """Claim nothing more and let handlers finish. Safe to call again."""
        if not self._course.stopping.is_set():
            logger.info(
                "worker %s stops: it claims nothing more, handlers get %g s", self.id, conf.SHUTDOWN_GRACE
            )
            self._course.stopping.set()
            self._course.bell.set()

    def hurry(self) -> None:
        """Give everything back now."""
        self.stop()
        self._course.hurry.set()

    def on_signal(self) -> None:
        """The first signal stops, the second is in a hurry."""
        if self._course.stopping.is_set():
            self.hurry()
        else:
            self.stop()

    async def _register(self) -> bool:
        """Signs on as soon as there is a database; whether there is anything to go on with. A burst waits for none:
        the next one finds what is due.
        """
        serves = [
            {
                "name": w.name,
                "version": w.version,
                "fingerprint": w.tree.fingerprint,
                "compatible": w.compatible_versions,
                # It is not like those that do: nobody leaves to it what comes due.
                **({} if self._standing.shares else {"shares": False}),
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
        while not self._course.stopping.is_set():
            try:
                await self._unless_stopping(self._rest.run([(workers_sql.REGISTER, row)]))
            except psycopg.Error as error:
                if not is_connection_lost(error):
                    raise
                if self._options.burst:
                    reason = " ".join(str(error).split())
                    logger.error("the burst does not start: the database cannot be reached: %s", reason)
                    return False
                self._outage.lost("starting", error)
                await self._course.wait_for_bell(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                break
        if not self._course.stopping.is_set():
            logger.info(
                "worker %s serves %s, %s at once",
                self.id,
                counted(len(serves), "workflow"),
                counted(self._options.concurrency, "unit"),
            )
        return True

    async def _unless_stopping(self, work: Awaitable[Any]) -> None:
        """Waits for it, but for a few seconds only once the process is to stop: a server that is frozen has no end."""
        task = asyncio.ensure_future(work)
        stopping = self._loop.create_task(self._course.stopping.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([task], timeout=PATIENCE)
            if task.done():
                task.result()
            else:
                logger.warning("the database does not answer, and the worker stops before it has signed on")
        finally:
            stopping.cancel()
            task.cancel()

    async def _finish(self) -> None:
        """Lets handlers finish within the grace, then gives back what is left without spending an attempt."""
        if self._course.retiring:
            self._tell_parent()
            await self._units.over(conf.SHUTDOWN_GRACE, self._course.stopping)
        self._units.stop()
        await self._units.over(conf.SHUTDOWN_GRACE, self._course.hurry)
        await self._units.interrupt(PATIENCE)
        if self._units.stranded:
            try:
                await asyncio.wait_for(self._claimer.release_stranded(), PATIENCE)
            except (psycopg.Error, TimeoutError) as error:
                logger.warning("what was claimed last comes back when its lease runs out: %s", error)

    def _tell_parent(self) -> None:
        if self._options.tell is not None:
            with suppress(OSError):
                os.write(self._options.tell, b"%d\n" % os.getpid())

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
            await asyncio.wait_for(self._sign_off(), PATIENCE)
        except (psycopg.Error, TimeoutError) as error:
            logger.info("could not sign off: %s", error)
        await asyncio.gather(*(port.close(PATIENCE) for port in (self._committing, self._claims, self._rest)))
        self._pool.close()
        settled = f"{self.committer.boundaries} boundar{'y' if self.committer.boundaries == 1 else 'ies'}"
        commits = counted(self.committer.commits, "commit")
        logger.info("worker %s stopped; it settled %s in %s", self.id, settled, commits)

    async def _sign_off(self) -> None:
        await self._source.give_up(self._rest)
        await self._rest.run([(workers_sql.STOPPED, (self.id,))])

    # --- background -----------------------------------------------------------------------------

    def _threadsafe(self, fn: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(fn)
        except RuntimeError:
            logger.debug("the loop has ended")

    async def _forever(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Nothing that goes wrong in the background may end it: timeouts, sweeps and wake-ups would just stop."""
        pause = 1.0
        while True:
            begun = self._loop.time()
            try:
                await work()
                return
            except BaseException as error:
                if ends_task(error):
                    raise
                if isinstance(error, psycopg.Error) and is_connection_lost(error):
                    self._outage.lost(name, error)
                    longest = LONGEST_PAUSE
                elif is_in_the_way(error):
                    logger.info("%s met another session's lock, and starts anew", name)
                    longest = LONGEST_REST
                else:
                    logger.exception("%s failed and starts anew", name)
                    longest = LONGEST_REST
            await asyncio.sleep(pause)
            pause = 1.0 if self._loop.time() - begun > 2 * LONGEST_REST else min(pause * 2, longest)

    async def _listen(self) -> None:
        await doorbell_class()(
            lambda: self._parameters, self._course.bell.set, self._units.signalled
        ).listen()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(conf.SWEEP_INTERVAL * random.uniform(0.8, 1.2))
            if await self._sweep_once():
                self._course.bell.set()

    async def _sweep_once(self) -> bool:
        """Whether it changed anything."""
        return any((await sweeps.sweep(self._rest, self._runtime.announce_rows)).values())

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
        if limit is not None and not self._course.retiring and (used := resident()) > limit * MEGABYTE:
            self._course.outgrown = True
            self._claimer.retire(f"{used // MEGABYTE} MB are resident, more than {limit}")


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
    mask = None
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "pthread_sigmask"):
        # A signal that comes before there is a loop to take it waits for that, and kills nobody meanwhile. So nothing
        # that may take long happens until then: above all no connection is made, for a server may be frozen.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        # Nobody has to connect by Django's backend for an embedded server to be there: whoever asked `refusal` has.
        parameters = parameters_of(connections[conf.DATABASE])
        connections[conf.DATABASE].close()  # this thread needs it no more

        async def main() -> int:
            process = WorkerProcess(parameters, options)
            _install_signals(process, options.parent is not None)
            return await process.run()

        with collected_seldom():
            return leaving.run(main())
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
