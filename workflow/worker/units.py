"""The units that a worker process has in hand: launched, driven, lost, given back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

import psycopg

from workflow.conf import conf
from workflow.executor import Execution, give_back
from workflow.signals import LEASE_LOST
from workflow.store import claims as claims_store
from workflow.store.trouble import is_connection_lost, is_in_the_way
from workflow.worker.endings import ends_task
from workflow.worker.outage import Outage
from workflow.worker.runtime import WorkerRuntime

logger = logging.getLogger("workflow")


class Units:
    """By lease token, not by job: a process may claim again a job that it has lost, while the handler of the
    first claim has not yet heard of it. `on_room` is called whenever one is over.
    """

    def __init__(self, runtime: WorkerRuntime, outage: Outage, on_room: Callable[[], None]) -> None:
        self._runtime = runtime
        self._outage = outage
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._executions: dict[str, Execution] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._look_again = False
        self.launched = 0
        """How many jobs were taken: claimed, or moved on to."""
        self.stranded = False
        """Whether a job may be left that carries a token of ours and that nobody drives."""

    def __len__(self) -> int:
        return len(self._tasks)

    # --- driving --------------------------------------------------------------------------------

    def launch(self, execution: Execution) -> None:
        """Drives a unit until it lets go of its job."""
        self.launched += 1
        self._executions[execution.lease.token] = execution
        task = self._loop.create_task(self._drive(execution))
        self._tasks[execution.lease.token] = task
        task.add_done_callback(partial(self._ended, execution.lease.token))
        seconds = conf.UNIT_TIMEOUT
        self._arm(execution, seconds, seconds)

    def driving(self, token: str) -> asyncio.Task[None] | None:
        """What drives the unit of this claim; None when there is none, or it is over."""
        return self._tasks.get(token)

    def take(self, count: int) -> None:
        """So many jobs are taken without a claim: units move on to other nodes."""
        self.launched += count

    def _arm(self, execution: Execution, limit: float, seconds: float) -> None:
        """Ends what is in hand once the unit has been the same node's for longer than `limit`; looks in `seconds`."""

        def fire() -> None:
            if execution.lease.token in self._executions:
                left = execution.since + limit - time.monotonic()
                if left <= 0.001:  # the loop's clock may be that much ahead
                    left = execution.expire_unit(limit)
                self._arm(execution, limit, left)

        execution.timer = self._loop.call_later(seconds, fire)

    async def _drive(self, execution: Execution) -> None:
        try:
            await execution.run()
        except BaseException as error:
            if ends_task(error):
                raise
            execution.abandon(LEASE_LOST)
            try:
                await give_back(execution.claim, execution.lease, error, self._runtime)
            except Exception:
                self.stranded = True
                logger.exception("job %s could not be given back", execution.claim.job_id)
        finally:
            del self._executions[execution.lease.token]
            if execution.timer is not None:
                execution.timer.cancel()

    def _ended(self, token: str, task: asyncio.Task[None]) -> None:
        del self._tasks[token]
        self._on_room()

    # --- leases ---------------------------------------------------------------------------------

    def leases(self) -> list[tuple[str, str]]:
        """(job id, token) of each. Called from any thread."""
        return [(e.lease.job_id, e.lease.token) for e in list(self._executions.values())]

    def tokens(self) -> list[str]:
        """The tokens of each."""
        return list(self._executions)

    def signalled(self, run_id: str) -> None:
        """Somebody has changed a run: units of it look whether they still hold their lease, and what is due."""
        if any(e.lease.run_id == run_id for e in self._executions.values()):
            self.look()

    def look(self) -> None:
        """Asks soon which leases are gone, and why; handlers are told. And which suspended handlers of units at work
        are due, which are called again, and which of their children are over, so that what follows may begin."""
        if not self._executions:
            return
        if self._looking is not None and not self._looking.done():
            self._look_again = True
            return
        self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        while True:
            self._look_again = False
            executions = list(self._executions.values())
            leases = [execution.lease for execution in executions]
            asleep = {
                (execution.lease.token, execution.lease.node(due.ordinal)): due
                for execution in executions
                for due in execution.asleep()
            }
            awaited = {
                execution.lease.token: [
                    {(execution.lease.token, execution.lease.node(ordinal)) for ordinal in group}
                    for group in execution.awaited()
                ]
                for execution in executions
            }
            children = [child for groups in awaited.values() for group in groups for child in group]
            try:
                seen = await claims_store.look(self._runtime.port, leases, list(asleep), children)
            except psycopg.Error as error:
                if is_connection_lost(error):
                    self._outage.lost("looking after leases", error)
                elif not is_in_the_way(error):
                    logger.exception("leases could not be looked after; the next look does")
                return
            for token, reason in seen.lost.items():
                self._lose(token, reason)
            for member in seen.due:
                if (execution := self._executions.get(member[0])) is not None:
                    execution.post(asleep[member])
            for token, groups in awaited.items():
                if (execution := self._executions.get(token)) and any(group <= seen.over for group in groups):
                    execution.outdate()
            if not self._look_again:
                return

    def _lose(self, token: str, reason: str) -> None:
        execution = self._executions.get(token)
        if (
            execution is not None and not execution.settling
        ):  # else the answer to that tells: its job may be over by it
            execution.lose(reason)

    def lose_all(self) -> None:
        """All leases count as lost: handlers are told, and nothing of theirs is taken any more."""
        for execution in list(self._executions.values()):
            execution.abandon(LEASE_LOST)

    # --- the end --------------------------------------------------------------------------------

    async def over(self, seconds: float, hurry: asyncio.Event) -> None:
        """Returns once all units are over, after so many seconds, or when there is a hurry."""
        if not self._tasks:
            return
        hurried = self._loop.create_task(hurry.wait())
        everything = self._loop.create_task(asyncio.wait(self._tasks.values()))
        await asyncio.wait([hurried, everything], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        everything.cancel()

    def stop(self) -> None:
        """Handlers may finish, nothing new is started, then the unit is given back."""
        for execution in list(self._executions.values()):
            execution.stop()

    async def interrupt(self, seconds: float) -> None:
        """Gives back what is left: handlers are told to stop, and what they return is not taken."""
        for execution in list(self._executions.values()):
            logger.warning("job %s is given back: its handler did not end in time", execution.lease.job_id)
            execution.interrupt()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)
