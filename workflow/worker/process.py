"""One worker process: it claims due jobs, drives their units on one event loop, and stops in good order."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import socket
from collections.abc import Coroutine, Sequence
from typing import Any

import psycopg

from workflow import ids, sweeps
from workflow.conf import conf
from workflow.executor import Execution, execute
from workflow.registry import registry
from workflow.signals import LEASE_LOST
from workflow.sql import claim as claim_sql
from workflow.sql import workers as workers_sql
from workflow.sql.arrays import plain
from workflow.store import claims as claims_store
from workflow.store.ports import AsyncPort, connection_parameters
from workflow.store.settle import Committer, is_connection_lost
from workflow.transports.postgres import doorbell_class
from workflow.worker.heartbeat import Heartbeat
from workflow.worker.pusher import Pusher
from workflow.worker.runtime import WorkerRuntime
from workflow.worker.threads import ThreadPool

logger = logging.getLogger("workflow")

WATCH_INTERVAL = 0.1
"""Seconds between two looks at running attempts: how exactly timeouts are kept."""


class WorkerProcess:
    """`queues` None serves all of them; `burst` leaves once nothing is due and nothing is at work."""

    def __init__(
        self, parameters: dict[str, Any], *, concurrency: int, queues: Sequence[str] | None, burst: bool
    ) -> None:
        self.id = str(ids.new_id())
        self._concurrency = concurrency
        self._queues = queues
        self._burst = burst
        self._parameters = parameters
        self._executions: dict[str, Execution] = {}
        self._units: set[asyncio.Task[None]] = set()
        self._errands: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._bell = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._committing = AsyncPort(lambda: self._parameters, "workflow settle")
        self._claims = AsyncPort(lambda: self._parameters, "workflow claim")
        self._rest = AsyncPort(lambda: self._parameters, "workflow sweep")
        self._pool = ThreadPool(conf.THREADS, self._loop)
        self._pusher = Pusher(self._rest)
        self.committer = Committer(self._committing, self._pusher.announce)
        self._runtime = WorkerRuntime(self._rest, self.committer, self._pool, self._pusher)
        self._heartbeat = Heartbeat(
            lambda: self._parameters,
            self.id,
            self._leases,
            lambda jobs: self._threadsafe(self._lost_jobs, jobs),
            lambda: self._threadsafe(self._lost_all),
            lambda: self._pool.abandoned,
        )

    # --- life -----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Works until it is told to stop, or in a burst until nothing is due. Returns the exit status."""
        await self._register()
        self._heartbeat.start()
        background = [
            self._loop.create_task(coroutine, name=f"workflow-{name}")
            for name, coroutine in (
                ("listen", self._listen()),
                ("sweep", self._sweep()),
                ("watch", self._watch()),
                ("push", self._pusher.run()),
            )
        ]
        try:
            await self._claim_until_stopped()
            await self._finish()
            await self._pusher.drained(1.0)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._close()
        return 0

    def stop(self) -> None:
        """First signal: claim nothing more, let handlers finish. Second: give everything back now."""
        if self._stopping.is_set():
            self._hurry.set()
            return
        logger.info(
            "worker %s stops: it claims nothing more, handlers get %g s", self.id, conf.SHUTDOWN_GRACE
        )
        self._stopping.set()
        self._bell.set()

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
        queues = list(self._queues) if self._queues is not None else []
        row = (
            self.id,
            socket.gethostname(),
            os.getpid(),
            json.dumps(queues),
            json.dumps(serves),
            self._concurrency,
            conf.THREADS,
        )
        await self._patiently(workers_sql.REGISTER, row)
        logger.info(
            "worker %s serves %d workflows, %d units at once", self.id, len(serves), self._concurrency
        )

    async def _patiently(self, sql: str, parameters: tuple[Any, ...]) -> None:
        """Runs a statement as soon as the database can be reached."""
        pause = 0.5
        while True:
            try:
                await self._rest.run([(sql, parameters)])
                return
            except psycopg.Error as error:
                if not is_connection_lost(error) or self._stopping.is_set():
                    raise
                logger.warning("the database is away, trying again in %.1f s: %s", pause, error)
            await self._sleep(pause)
            pause = min(pause * 2, 30.0)

    async def _finish(self) -> None:
        """Lets handlers finish within the grace, then gives back what is left without spending an attempt."""
        for execution in list(self._executions.values()):
            execution.stop()
        if self._units:
            hurry = self._loop.create_task(self._hurry.wait())
            everything = self._loop.create_task(asyncio.wait(self._units))
            await asyncio.wait(
                [hurry, everything], timeout=conf.SHUTDOWN_GRACE, return_when=asyncio.FIRST_COMPLETED
            )
            hurry.cancel()
            everything.cancel()
        left = list(self._executions.values())
        for execution in left:
            logger.warning("%s is given back: its handler did not end in time", execution.claim.job_id)
            execution.interrupt()
        if self._units:
            await asyncio.wait(self._units, timeout=5)

    async def _close(self) -> None:
        self._heartbeat.stop()
        await self._runtime.close()
        try:
            await asyncio.wait_for(self._rest.run([(workers_sql.STOPPED, (self.id,))]), timeout=2)
        except (psycopg.Error, TimeoutError) as error:
            logger.info("could not sign off: %s", error)
        for port in (self._committing, self._claims, self._rest):
            await port.close()
        self._pool.close()
        settled, commits = self.committer.boundaries, self.committer.commits
        logger.info("worker %s stopped; it settled %d boundaries in %d commits", self.id, settled, commits)

    # --- claiming -------------------------------------------------------------------------------

    async def _claim_until_stopped(self) -> None:
        pause = 0.5
        while not self._stopping.is_set():
            self._bell.clear()
            free = self._concurrency - len(self._units)
            wait: float | None = None
            try:
                if free > 0 and not self._heartbeat.silent:
                    wait = await self._claim(free)
                else:
                    wait = conf.POLL_INTERVAL
                pause = 0.5
            except (psycopg.Error, OSError) as error:
                logger.warning("claiming failed, trying again in %.1f s: %s", pause, error)
                wait, pause = pause, min(pause * 2, 30.0)
            if wait is None:
                return
            if wait > 0:
                await self._wait_for_bell(wait)

    async def _claim(self, free: int) -> float | None:
        """Claims and launches; in how many seconds to look again, None to leave."""
        claimed, due = await claims_store.claim(self._claims, self.id, free, self._queues)
        if claimed:
            await execute(claimed, self._runtime, self._launch)
        if len(claimed) >= free:
            return 0 if len(self._units) < self._concurrency else conf.POLL_INTERVAL
        if claimed:
            return 0
        if self._burst and not self._units:
            return None
        wait = conf.POLL_INTERVAL * random.uniform(0.8, 1.2)
        return wait if due is None else max(min(wait, due), 0.001)

    def _launch(self, execution: Execution) -> None:
        job_id = execution.claim.job_id
        self._executions[job_id] = execution
        task = self._loop.create_task(self._drive(execution))
        self._units.add(task)
        task.add_done_callback(self._unit_ended)
        if conf.UNIT_TIMEOUT > 0:
            self._arm(execution, conf.UNIT_TIMEOUT)

    def _arm(self, execution: Execution, seconds: float) -> None:
        def fire() -> None:
            if self._executions.get(execution.claim.job_id) is execution:
                execution.expire_unit(seconds)
                self._arm(execution, seconds)

        execution.timer = self._loop.call_later(seconds, fire)

    async def _drive(self, execution: Execution) -> None:
        try:
            await execution.run()
        except Exception:
            logger.exception("unit %s of run %s failed", execution.claim.job_id, execution.lease.run_id)
            execution.abandon(LEASE_LOST)
            await claims_store.release(
                self._rest,
                [execution.claim],
                delay=5.0,
                refund=False,
                reason="the engine failed; see the worker's log",
            )
        finally:
            self._executions.pop(execution.claim.job_id, None)
            if execution.timer is not None:
                execution.timer.cancel()

    def _unit_ended(self, task: asyncio.Task[None]) -> None:
        self._units.discard(task)
        self._bell.set()
        if not task.cancelled() and task.exception() is not None:
            logger.error("a unit could not be given back", exc_info=task.exception())

    async def _wait_for_bell(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._bell.wait()
        except TimeoutError:
            await self._look_for_lost()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    # --- leases ---------------------------------------------------------------------------------

    def _leases(self) -> list[tuple[str, str]]:
        return [(e.lease.job_id, e.lease.token) for e in list(self._executions.values())]

    def _threadsafe(self, fn: Any, *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(fn, *arguments)
        except RuntimeError:
            logger.debug("the loop has ended")

    def _lost_jobs(self, jobs: Sequence[str]) -> None:
        """The heartbeat found leases gone: why is asked before handlers are told."""
        if any(job_id in self._executions for job_id in jobs):
            self._spawn(self._look_for_lost())

    def _lost_all(self) -> None:
        for execution in list(self._executions.values()):
            execution.abandon(LEASE_LOST)

    async def _look_for_lost(self) -> None:
        """Asks which leases are gone: the floor under a notification that may be lost."""
        leases = self._leases()
        if not leases:
            return
        jobs, tokens = plain(job for job, _ in leases), plain(token for _, token in leases)
        try:
            rows = (await self._rest.run([(claim_sql.LOST, (jobs, tokens))]))[0]
        except psycopg.Error as error:
            logger.info("could not look after leases: %s", error)
            return
        for job_id, reason in rows:
            self._lose(job_id, reason)

    def _lose(self, job_id: str, reason: str) -> None:
        execution = self._executions.get(job_id)
        if execution is not None and execution.lost is None:
            logger.warning("job %s of run %s is lost: %s", job_id, execution.lease.run_id, reason)
            execution.abandon(reason)

    # --- background -----------------------------------------------------------------------------

    async def _listen(self) -> None:
        def on_signal(run_id: str) -> None:
            if any(e.lease.run_id == run_id for e in self._executions.values()):
                self._spawn(self._look_for_lost())

        await doorbell_class()(lambda: self._parameters, self._bell.set, on_signal).listen()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(conf.SWEEP_INTERVAL * random.uniform(0.8, 1.2))
            if any((await sweeps.sweep(self._rest)).values()):
                self._bell.set()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            self._runtime.watch()


def _install_signals(process: WorkerProcess) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, process.stop)
        except (NotImplementedError, RuntimeError):  # Windows, or not the main thread
            return


def run_process(*, concurrency: int, queues: Sequence[str] | None, burst: bool) -> int:
    """One worker process, in this thread, until it is done. Returns the exit status."""

    parameters = connection_parameters()

    async def main() -> int:
        process = WorkerProcess(parameters, concurrency=concurrency, queues=queues, burst=burst)
        _install_signals(process)
        return await process.run()

    return asyncio.run(main())
