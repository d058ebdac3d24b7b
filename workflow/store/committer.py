"""Group commit: `Committer` gathers the boundaries that wait and settles them together.

Boundaries that arrive while a commit is under way wait for it and go out with the next one; an
idle committer commits at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import psycopg

from workflow import failpoints
from workflow.plan.boundary import KEEP
from workflow.store.ports import Port
from workflow.store.settle import (
    EVERYBODY,
    Rivals,
    Settlement,
    apply_results,
    locked_runs,
    rejection,
    statements,
    which_applied,
)
from workflow.store.trouble import is_connection_lost, is_passing, is_refusal

logger = logging.getLogger("workflow")

Announce = Callable[[Sequence[Settlement]], None]
Item = tuple[Settlement, "asyncio.Future[Settlement]"]
"""A boundary, and whoever waits for its answer."""


GATHERING: Final = 0.003
"""Seconds, at most, for which the boundaries of units that were told together are gathered again: a commit costs as
much as a dozen boundaries in it."""


LEFT_ALONE: Final = 5.0
"""Seconds for which a run is left alone of which another row than its own is locked: to find that out again, and of
which one in a batch, takes two seconds in which nothing is settled."""


TRIES: Final = 5
"""How often a boundary that fails alone is tried before its unit is told, and goes back to the queue. What user code
has answered is lost then: with the pauses in between that is after eight seconds."""
LONGER: Final = 4
"""By how much each of these pauses is longer than the one before."""


class Outages(Protocol):
    """Whoever keeps count of times when the database is away."""

    def lost(self, what: str, error: BaseException) -> None: ...

    def back(self) -> None: ...


class Committer:
    """Group commit: takes boundaries from many units and settles those that wait in one transaction.

    `settle` returns the settlement (its `seq` is None when it was refused), or raises `Rejected`
    when the database would not take this boundary's data. Connection failures are retried here
    until the database answers; the outcome of a commit that was cut off is asked for, never guessed.
    What else goes wrong with one boundary says nothing about its data: it is tried a few times more, alone,
    and then raised as it is.
    Boundaries of a run that somebody else keeps locked wait aside, and hold up nobody.
    """

    LARGE = 16
    """From so many boundaries on a commit is told of in two halves."""
    SIBLINGS = 4
    """After a commit with so many boundaries of units that go on, as many are soon to come: they are gathered."""
    TURNS = 8
    """Of the event loop, in which a unit whose next handler is `async` and has nothing to wait for comes back."""

    def __init__(
        self,
        port: Port,
        announce: Announce | None = None,
        *,
        outage: Outages | None = None,
        rivals: Rivals = EVERYBODY,
        limit: int = 500,
        gathering: float = GATHERING,
        first_pause: float = 0.1,
    ) -> None:
        self._port = port
        self._outage = outage
        self._announce = announce
        self._rivals = rivals
        self._limit = limit
        self._gathering = gathering
        self._first_pause = first_pause
        self._queue: list[Item] = []
        self._working: asyncio.Task[None] | None = None
        self._locked: set[str] = set()
        """Runs that somebody else has locked."""
        self._left_alone: set[str] = set()
        """Runs that wait until they are tried again: somebody has locked a row beneath, or a boundary has failed."""
        self._looking: asyncio.Task[None] | None = None
        self._wanted = 0
        """How many boundaries are waited for before the next commit; 0 for none."""
        self._enough = asyncio.Event()
        self.commits = 0
        self.boundaries = 0

    async def settle(self, settlement: Settlement) -> Settlement:
        future: asyncio.Future[Settlement] = asyncio.get_running_loop().create_future()
        self._queue.append((settlement, future))
        if 0 < self._wanted <= len(self._queue):
            self._enough.set()
        self._go_on()
        return await future

    def _go_on(self) -> None:
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(), name="workflow-committer")

    async def _work(self) -> None:
        """Commits until nothing waits. The server and this process are to be at work at the same time: of a large
        commit one half is told at once, and the other half when what the first made of it is on its way.
        """
        untold: list[Item] = []
        while True:
            batch = self._take()
            if not batch:
                if not untold:
                    return
                untold = _tell(untold)
                await self._until_busy(len(self._queue) + 1)
                continue
            try:
                if untold:
                    committing = asyncio.create_task(self._commit(batch), name="workflow-commit")
                    await asyncio.sleep(0)  # it is sent
                    untold = _tell(untold)
                    settled = await committing
                else:
                    settled = await self._commit(batch)
            except Exception as error:  # nobody may wait for ever for an answer
                logger.exception("settling %d boundaries failed", len(batch))
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            half = len(settled) if len(settled) < self.LARGE else len(settled) // 2
            untold = settled[half:]
            _tell(settled[:half])
            if untold:
                await self._until_busy(half)
            elif (going_on := sum(s.boundary.job == KEEP for s, _ in settled)) >= self.SIBLINGS:
                await self._gather(going_on)

    async def _gather(self, count: int) -> None:
        """Waits until so many boundaries have come, but not for long."""
        self._wanted = count
        self._enough.clear()
        try:
            async with asyncio.timeout(self._gathering):
                while len(self._queue) < count:
                    await self._enough.wait()
        except TimeoutError:
            pass
        self._wanted = 0

    async def _until_busy(self, waiting: int) -> None:
        """Lets units go on, until so many boundaries wait or those that need nobody else are through."""
        for _ in range(self.TURNS):
            if len(self._queue) >= waiting:
                return
            await asyncio.sleep(0)

    def _take(self) -> list[Item]:
        """As many as fit, one of a run at most and none of a locked one, in the order of their arrival. What has failed
        alone goes alone."""
        batch: list[Item] = []
        rest: list[Item] = []
        runs = self._locked | self._left_alone
        limit = self._limit
        for item in self._queue:
            run_id = item[0].lease.run_id
            left = run_id in runs or len(batch) >= limit or (item[0].failures and batch)
            runs.add(run_id)  # what a run has settled first comes first, also if it is left
            if left:
                rest.append(item)
            else:
                batch.append(item)
                if item[0].failures:
                    limit = 1
        self._queue = rest
        return batch

    async def _commit(self, batch: list[Item]) -> list[Item]:
        """Settles what it can; those whose answer is there and that are still to be told of it."""
        settlements = [s for s, _ in batch]
        try:
            if failpoints.armed:
                _hit("settle.before", settlements)
            await self._run(settlements)
            if failpoints.armed:
                _hit("settle.after", settlements)
        except psycopg.errors.LockNotAvailable:
            if not await self._set_aside([s.lease.run_id for s in settlements]):
                if len(batch) > 1:  # no run is locked, but a row beneath one: each tells for itself
                    return await self._commit_singly(batch)
                self._leave_alone(settlements[0].lease.run_id)
            self._queue[:0] = batch
            return []
        except Exception as error:
            if not is_refusal(error):  # it does not tell either what became of the commit
                for settlement in settlements:
                    settlement.unsure = True
            if len(batch) > 1:  # one bad boundary fails alone
                return await self._commit_singly(batch)
            self._fail(batch[0], error)
            return []
        self.commits += 1
        self.boundaries += len(batch)
        if self._announce is not None:
            try:
                self._announce([s for s in settlements if s.seq is not None])
            except Exception:  # they are settled all the same
                logger.exception("what was settled could not be announced")
        return batch

    async def _commit_singly(self, batch: list[Item]) -> list[Item]:
        """Each in a transaction of its own."""
        return [told for item in batch for told in await self._commit([item])]

    def _fail(self, item: Item, error: Exception) -> None:
        """What becomes of a boundary that has failed alone."""
        settlement, future = item
        if isinstance(error, psycopg.Error):
            if is_refusal(error):
                error = rejection(error)
            else:
                settlement.failures += 1
                if settlement.failures < TRIES:
                    self._try_later(item, error)
                    return
        else:
            logger.error("settling a boundary failed", exc_info=error)
        if not future.done():
            future.set_exception(error)

    def _try_later(self, item: Item, error: psycopg.Error) -> None:
        """Nobody waits for it meanwhile, except its run."""
        settlement = item[0]
        pause = self._first_pause * LONGER ** (settlement.failures - 1)
        logger.warning(
            "a boundary of run %s is tried again in %.1f s: %s",
            settlement.lease.run_id,
            pause,
            str(error).partition("\n")[0],  # what follows may quote the row, which holds the user's data
        )
        self._queue.insert(0, item)
        self._rest(settlement.lease.run_id, pause)

    async def _run(self, settlements: list[Settlement]) -> None:
        """One transaction; tried again while the database is away. A refusal of the data is raised."""
        pause = self._first_pause
        asked, was_lost = any(s.unsure for s in settlements), False
        left = settlements
        while True:
            try:
                if asked:
                    left = await self._unsettled(settlements)
                    asked = False
                if left:
                    results = await self._port.run(statements(left, self._rivals))
                    if failpoints.armed:
                        _hit("settle.answer", left)
                    apply_results(left, results)
                if was_lost and self._outage is not None:
                    self._outage.back()
                return
            except psycopg.Error as error:
                if is_passing(error):
                    logger.info("settling is tried again: %s", error)
                elif is_connection_lost(error):
                    if self._outage is not None:
                        self._outage.lost("settling", error)
                    asked = was_lost = True
                    for settlement in settlements:
                        settlement.unsure = True
                else:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)

    async def _set_aside(self, run_ids: list[str]) -> bool:
        """Some of these runs are locked: finds out which, and leaves them for later. False when none is found."""
        try:
            found = await locked_runs(self._port, run_ids)
        except psycopg.Error as error:  # they are tried again as they are
            logger.info("locked runs could not be told apart: %s", error)
            return True
        if found:
            logger.info("boundaries of %d runs wait for another session's lock", len(found))
            self._locked |= found
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look_again(), name="workflow-locked")
        return bool(found)

    def _leave_alone(self, run_id: str) -> None:
        """Somebody has locked a node or a job of this run, which nobody can be asked: it is tried again in a while."""
        logger.info("a boundary of run %s waits for another session's lock on a row of it", run_id)
        self._rest(run_id, LEFT_ALONE)

    def _rest(self, run_id: str, seconds: float) -> None:
        """Leaves this run alone for so long."""
        self._left_alone.add(run_id)

        def over() -> None:
            self._left_alone.discard(run_id)
            self._go_on()

        asyncio.get_running_loop().call_later(seconds, over)

    async def _look_again(self) -> None:
        pause = self._first_pause
        while self._locked:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 1.0)
            try:
                still = await locked_runs(self._port, self._locked)
            except psycopg.Error as error:
                logger.debug("locked runs are looked at again later: %s", error)
                continue
            if still != self._locked:
                self._locked &= still
                self._go_on()

    async def _unsettled(self, settlements: list[Settlement]) -> list[Settlement]:
        """Those of a cut-off commit that did not make it; the others get their answer.

        The run's lock makes this wait for a server process that may still be committing.
        """
        results = await self._port.run(which_applied(settlements))
        applied = {row[0] for row in results[1]}
        left = []
        for settlement in settlements:
            if settlement.id in applied:
                settlement.seq = settlement.seq or 0
            else:
                left.append(settlement)
        return left


def _tell(items: list[Item]) -> list[Item]:
    """Gives them their answers; nobody is left."""
    for settlement, future in items:
        if not future.done():
            future.set_result(settlement)
    return []


def _hit(place: str, settlements: Sequence[Settlement]) -> None:
    """Failpoints for each kind of boundary in a batch: what it starts, ends, parks or gives back."""
    for settlement in settlements:
        boundary = settlement.boundary
        kinds = {f"{c.source}-{c.target}" for c in boundary.changes} | {f"job-{boundary.job}"}
        if boundary.moves:
            kinds.add("job-moves" if boundary.moves[-1] else "job-back")
        if boundary.run_target:
            kinds.add(f"run-{boundary.run_target}")
        if boundary.compensating:
            kinds.add("compensate")
        if boundary.steps:
            kinds.add("step")
        for kind in sorted(kinds):
            failpoints.hit(f"{place}:{kind}")
    failpoints.hit(place)
