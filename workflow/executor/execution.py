"""One claimed unit from its first boundary to its last: settle, start, wait for facts, plan, settle.

An execution is driven by its runtime. It holds no lock and no transaction while user code runs, and
writes nothing but boundaries: one that is refused ends it, since its lease is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio import TimerHandle
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import psycopg

from workflow import states
from workflow.definitions import Workflow
from workflow.errors import FailureCode
from workflow.executor.attempt import Attempt, Outcome
from workflow.executor.ghosts import met
from workflow.executor.outcomes import tell
from workflow.executor.questions import Question
from workflow.executor.runtime import Runtime
from workflow.plan import (
    Boundary,
    Checked,
    Due,
    Fact,
    Failed,
    Move,
    Refused,
    RunSnapshot,
    Start,
    Undo,
    Unit,
    fault,
    is_start,
)
from workflow.signals import CANCELLED, LEASE_LOST, SHUTDOWN, TIMEOUT
from workflow.store import claims as claims_store
from workflow.store.claims import Claim, read_again, snapshots
from workflow.store.settle import Rejected, Settlement
from workflow.store.trouble import is_connection_lost

T = TypeVar("T")

logger = logging.getLogger("workflow")


FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two tries to read what a refused move needs, while the database is away. Beside handlers that are at
work a node is started so long after a refusal: the shorter one, and the longer one if it was its start."""
LOOK_AGAIN = 1.0
"""Seconds between two looks at a unit whose time is up while nothing of it can be expired."""
MAX_REFUSALS = 3
"""How often in a row a unit's data may be refused before its job goes back to the queue."""


def _nobody() -> None:
    """Nobody waits."""


class Execution:
    """A unit at work. `inbox` holds facts that the plan has not seen yet."""

    def __init__(self, claim: Claim, workflow: Workflow, run: RunSnapshot, runtime: Runtime) -> None:
        self.claim = claim
        self.lease = claim.lease(run.places)
        self.workflow = workflow
        self.inbox: list[Fact] = []
        self._apart: list[Fact] = []
        """Facts to be planned one at a time, before those of the inbox: together the database has refused them."""
        self._refusals = 0
        """How many boundaries in a row it has refused."""
        self.attempts: dict[int, Attempt] = {}
        self.stopping = False
        self.settling = False
        """Whether a boundary is on its way, which may have ended the job already."""
        self.outdated = False
        """Whether the run is to be read again: children have settled meanwhile, and something may follow."""
        self.lost: str | None = None
        self.timer: TimerHandle | None = None
        self.claimed_at = self.since = time.monotonic()
        """Since when it has the job, and since when as the node that it is now, on this process's own clock."""
        self.waited = 0.0
        """Seconds since then in which its handlers waited for a thread."""
        self.wake: Callable[[], None] = _nobody
        """Set by a runtime that waits for facts; called whenever there may be something to do."""
        self._runtime = runtime
        self._has_steps = False
        """Whether handlers have left steps that a walk back has to undo, or may have."""
        self._mover = None if run.places is not None else runtime.mover
        self._plan = self._make_plan(run)

    def _make_plan(self, run: RunSnapshot) -> Unit | Undo:
        tree = run.tree or self.workflow.tree
        if self.claim.kind == states.COMPENSATE:
            return Undo(tree, run)
        ordinal = self.claim.ordinal
        return Unit(tree, ordinal if run.places is None else run.places.index(ordinal), run)

    def _replan(self, run: RunSnapshot, inflight: set[int]) -> None:
        """A new plan for the run as it is now, told of what is at work and of what the old one alone knew."""
        before, self._plan = self._plan, self._make_plan(run)
        self._plan.inflight = inflight
        if isinstance(before, Unit) and isinstance(self._plan, Unit):
            self._plan.resumed = before.resumed & inflight

    # --- called by the runtime ------------------------------------------------------------------

    def post(self, fact: Fact, attempt: Attempt | None = None) -> bool:
        """Takes a fact; False when it comes from an attempt that counts no more."""
        if attempt is not None:
            if not self.counts(attempt):
                return False
            del self.attempts[attempt.ordinal]
            self.waited += attempt.waited
            self._has_steps = self._has_steps or attempt.leaves_steps
        self.inbox.append(fact)
        self.wake()
        return True

    def ended(self, outcome: Outcome, attempt: Attempt) -> bool:
        """Takes what a handler has come to; False when nobody waits for it any more."""
        return self.counts(attempt) and self.post(attempt.in_time(outcome), attempt)

    def counts(self, attempt: Attempt) -> bool:
        """Whether what it returns is waited for: one that has expired may still be at work beside the next one."""
        return self.attempts.get(attempt.ordinal) is attempt

    def expire(self, attempt: Attempt, code: FailureCode, seconds: float) -> bool:
        """Ends an attempt whose time is up. What it still returns is not taken.

        One that heeds its signal ends when its handler does, and is to be `cut` by the runtime after `HEED` seconds.
        """
        if not self.counts(attempt) or attempt.expired is not None:
            return False
        self._has_steps = True  # until its handler heeds that, it may settle another one
        attempt.expired = (code, seconds)
        attempt.signal.abort(TIMEOUT)
        if not attempt.heeds_signal:
            self.cut(attempt)
        return True

    def cut(self, attempt: Attempt) -> None:
        """Ends an expired attempt whether its handler has ended or not, and interrupts that."""
        if self.counts(attempt) and attempt.expired is not None:
            self.post(attempt.timed_out(*attempt.expired), attempt)
        attempt.user_code.interrupt()

    def expire_unit(self, seconds: float) -> float:
        """Ends what is in hand of a unit that has been at work for that long, without its waits for a thread.

        Returns in how many seconds to look again.
        """
        again, now = seconds, time.monotonic()
        if not self.attempts:  # user code is being asked, and what follows is still within this unit
            return max(self.since + self.waited + seconds - now, LOOK_AGAIN)
        for attempt in list(self.attempts.values()):
            if attempt.begun is None:
                again = min(again, seconds / 10)
            elif (left := self.since + self.waited + attempt.waited + seconds - now) > 0.001:
                again = min(again, left)
            elif not self.expire(attempt, FailureCode.UNIT_TIMEOUT, seconds):
                again = min(again, LOOK_AGAIN)  # its own time was up before, and it is about to end
        return again

    def abandon(self, reason: str) -> None:
        """The lease is gone: asks handlers to stop, and takes nothing from them any more."""
        self.lost = self.lost or reason
        for attempt in self.attempts.values():
            attempt.signal.abort(reason)
        self.attempts.clear()
        self.wake()

    def lose(self, reason: str) -> None:
        """The database says that the lease is gone: cancelled, or taken by another worker."""
        if self.lost is None:
            ghost = "orphan" if reason == CANCELLED else reason
            what = f"the lease is lost ({reason}), what its handlers return is discarded"
            met(ghost, self.lease.job_id, self.lease.run_id, what)
        self.abandon(reason)

    def stop(self) -> None:
        """Let handlers finish, start nothing new, and give the unit back."""
        self.stopping = True
        for attempt in list(self.attempts.values()):
            if attempt.drop():
                del self.attempts[attempt.ordinal]
        self.wake()

    def interrupt(self) -> None:
        """Give the unit back now: handlers are asked to stop and what they return is not taken."""
        self.stopping = True
        for attempt in list(self.attempts.values()):
            if attempt.expired is not None:
                self.cut(attempt)  # its time was up before, and so it counts
            attempt.signal.abort(SHUTDOWN)
        self.attempts.clear()
        self.wake()

    def asleep(self) -> list[Due]:
        """What to post for each handler that is suspended beside others, once the database says that it is due."""
        return self._plan.asleep() if isinstance(self._plan, Unit) else []

    def awaited(self) -> list[tuple[int, ...]]:
        """Groups of nodes with jobs of their own: once one is over as a whole, something may follow beside what is at
        work. None while user code is being asked, which would be asked again."""
        plan = self._plan
        if self.settling or not isinstance(plan, Unit) or plan.inflight - self.attempts.keys():
            return []
        return plan.awaited()

    def outdate(self) -> None:
        """Such a group is over."""
        self.outdated = True
        self.wake()

    @property
    def busy(self) -> bool:
        """Whether any handler of this unit is at work."""
        return bool(self.attempts)

    # --- the loop -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Drives the unit until it lets go of its job, or has lost it."""
        facts: list[Fact] = []
        move = self._next(facts)
        settled = self.claim.opened is not None  # the claim has settled it
        self.claim.started = True
        while not self._is_lost():  # also where the run was read again meanwhile
            try:
                settled = settled or await self._settle(move.boundary)
            except Rejected as rejected:
                if move.boundary.moves:  # perhaps it is only where the job was to go that does not fit
                    move, facts = await self._plan_unmoved(move, facts, str(rejected)), []
                    continue
                move, facts = await self._plan_anew(rejected, facts), []
                continue
            if not move.boundary.empty:
                self._refusals = 0
            if not settled or self._is_lost():
                reason = self.lost or await (
                    self._insist(self._loss) if move.boundary.moves else self._loss()
                )
                if reason is None and move.boundary.moves:
                    move, facts = await self._plan_unmoved(move, facts, "others come first"), []
                    continue
                self.lose(reason or LEASE_LOST)  # whatever its handlers returned does not count
                return
            settled = False
            if move.boundary.last_error is not None:
                self.claim.last_error = move.boundary.last_error
            if move.boundary.moves:
                self._moved(move)
            if move.done:
                return
            self._launch(move)
            if self.stopping and not self.attempts and not self._heard():
                await self._release()
                return
            if self._apart:
                facts = [self._apart.pop(0)]
                move = self._next(facts)
                continue
            facts = await self._runtime.facts(self)
            was_outdated, self.outdated = self.outdated, False
            # What asks user code now is heard first, or it would be asked twice: the next look says so again.
            if was_outdated and not self.stopping and self.awaited():
                self.inbox[:0] = facts
                move, facts = await self._plan_beside(), []
            else:
                move = self._next(facts) if facts else Move()

    def _next(self, facts: Sequence[Fact]) -> Move:
        """The next move of the plan; its first one without facts."""
        plan = self._plan
        if isinstance(plan, Unit):
            # What the claim has settled already is what the plan would say without moving.
            plan.moves_left = self._may_move() if facts or self.claim.opened is None else 0
            plan.has_steps = self._has_steps
        move = plan.advance(facts) if facts else plan.begin()
        self._take(len(move.boundary.moves))
        return move

    async def _loss(self) -> str | None:
        """Why the lease is gone, None when it is not."""
        return (await claims_store.lost(self._runtime.port, [self.lease])).get(self.lease.token)

    def _is_lost(self) -> bool:
        return self.lost is not None

    async def _settle(self, boundary: Boundary) -> bool:
        """False: refused, the lease is gone. Raises `Rejected` when the database would not take the data."""
        if boundary.empty:
            return True
        self.settling = True
        try:
            settled = (await self._runtime.settle(Settlement(self.lease, boundary))).seq is not None
        finally:
            self.settling = False
        if settled and (boundary.run_error is not None or boundary.compensating):
            plan = self._plan
            state = plan.run.state if isinstance(plan, Undo) else plan.states.of(plan.ordinal)
            tell(self.lease.run_id, self.workflow.name, plan.run.input, state, boundary)
        return settled

    async def _release(self) -> None:
        """Gives the unit back. An atomic handler that was told to stop may have settled its node just before: then
        the rest is given back as it is now."""
        try:
            await self._settle(self._plan.release().boundary)
        except Rejected:
            run = await self._read_again()
            if run is None:
                raise
            self._replan(run, self._plan.inflight)
            await self._settle(self._plan.release().boundary)

    async def _plan_anew(self, rejected: Rejected, facts: Sequence[Fact]) -> Move:
        """Reads the run again; what the database would not take becomes the error of its node.

        Of several facts nobody can tell which it was: they are planned again one at a time, each in a boundary of
        its own, and only the one that is refused alone is at fault. One that merely starts its node is at no fault
        at all: it is put off while others are at work, and the job goes back to the queue when none is.

        A node that is no longer `running` was settled by somebody else (an atomic handler that
        finished just as its time was up): the plan made anew goes on from there.
        """
        run = await self._read_again()
        settled = [] if run is None else [fact for fact in facts if self._is_settled(run, fact)]
        if settled:
            paths = ", ".join(self._plan.tree.nodes[fact.ordinal].path for fact in settled)
            logger.info(
                "run %s: %s was settled by somebody else just before, which stands", self.lease.run_id, paths
            )
        left = [fact for fact in facts if fact not in settled]
        if left or not settled:
            # Its first line: what follows may quote the row, which holds the user's data.
            reason = str(rejected).partition("\n")[0]
            logger.error("run %s: the database refused a boundary: %s", self.lease.run_id, reason)
        if run is None:
            raise rejected
        alone = left[0] if len(facts) == len(left) == 1 else None
        put_off = alone.ordinal if alone is not None and is_start(alone) and self._has_others(alone) else None
        if put_off is None:
            self._refusals += 1
            if self._refusals > MAX_REFUSALS:
                raise rejected
        if alone is not None and not is_start(alone):
            left = [self._refused(alone, rejected)]
        # A plan that is made anew knows by itself what is due.
        self._apart[:0] = [fact for fact in left if not isinstance(fact, Due) and fact.ordinal != put_off]
        return self._begin_anew(run, put_off, gently=True)

    def _refused(self, fact: Fact, rejected: Rejected) -> Fact:
        """The fact of a node whose outcome the database would not take."""
        node = self._plan.tree.nodes[fact.ordinal]
        error = fault(FailureCode.ACTION_FAILED, f"the database refused the outcome: {rejected}", node.path)
        if node.kind == states.ACTION and not isinstance(fact, Refused):
            return Failed(fact.ordinal, error, final=True)
        if isinstance(fact, Checked):
            return Checked(fact.ordinal, error=error)
        return Refused(fact.ordinal, error)

    def _has_others(self, fact: Fact) -> bool:
        """Whether other members of the unit are at work, or have been and are to be heard."""
        return bool(self.attempts) or any(other.ordinal != fact.ordinal for other in self._heard())

    def _heard(self) -> list[Fact]:
        """What has been posted and the plan has not seen."""
        return [*self._apart, *self.inbox]

    def _is_settled(self, run: RunSnapshot, fact: Fact) -> bool:
        status = run.nodes[fact.ordinal].status
        if isinstance(self._plan, Undo):
            return status == states.COMPENSATED
        return status not in states.NODE_LIVE

    # --- moving on ------------------------------------------------------------------------------

    def _may_move(self) -> int:
        """How often the job may move on in the next boundary."""
        if self._mover is None or self.stopping or self._is_lost():
            return 0
        return self._mover.allows(self.claimed_at)

    def _take(self, count: int) -> None:
        """Each move counts as a job that was claimed."""
        if count and self._mover is not None:
            self._mover.take(count)

    def _moved(self, move: Move) -> None:
        """The job is another node's now, or the compensation's."""
        node = self.lease.node(move.boundary.moves[-1])
        if move.back is None:
            self.claim.become(node, states.UNIT)
        else:
            self.claim.become(node, states.COMPENSATE)
            self._plan = move.back
        self.since, self.waited = time.monotonic(), 0.0

    async def _plan_unmoved(self, move: Move, facts: list[Fact], why: str) -> Move:
        """The database has refused the move: the same facts are planned again, on the node whose job it still is, and
        this unit does not try again. What they are the answer to is not asked a second time."""
        why = why.partition("\n")[0]  # what follows may quote the row, which holds the user's data
        logger.info("job %s of run %s goes through the queue: %s", self.lease.job_id, self.lease.run_id, why)
        self._take(-len(move.boundary.moves))
        if self._mover is not None:
            self._mover.refused()
            self._mover = None
        self.inbox[:0] = facts
        return await self._plan_further()

    async def _plan_beside(self) -> Move:
        """What may follow beside what is at work. A read that fails is no fault of theirs: the next look has it made
        again."""
        try:
            return await self._plan_further()
        except psycopg.Error as error:
            reason = str(error).partition("\n")[0]
            logger.warning("run %s is read again in a moment: %s", self.lease.run_id, reason)
            return Move()

    async def _plan_further(self) -> Move:
        """The run is read again, and planned on from there."""
        run = await self._insist(self._read_again)
        if run is None:
            raise RuntimeError("the run is gone, and the lease is not")
        return self._begin_anew(run)

    def _begin_anew(self, run: RunSnapshot, put_off: int | None = None, *, gently: bool = False) -> Move:
        """Begins with a new plan. What has been heard is not asked a second time.

        `gently`: beside what is at work nothing is started in this boundary, but on its own a moment later, and
        the node `put_off` after a while.
        """
        heard = {fact.ordinal for fact in self._heard() if not isinstance(fact, Due)}
        # What a stop has taken out of hand meanwhile was not lost: it is given back with the unit.
        dropped = self._plan.inflight if self.stopping else set()
        self._replan(run, {*self.attempts, *heard, *dropped})
        if gently and isinstance(self._plan, Unit) and (self.attempts or heard):
            self._plan.hold_back(FIRST_PAUSE, {} if put_off is None else {put_off: LONGEST_PAUSE})
        move = self._plan.begin()
        move.asks = [ask for ask in move.asks if ask.ordinal not in heard]
        return move

    async def _insist(self, read: Callable[[], Awaitable[T]]) -> T:
        """What is read once a move is refused, however long the database is away: what user code has answered is in
        hand, and would be taken for lost with its worker. A lease that is gone meanwhile ends that."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await read()
            except psycopg.Error as error:
                if self._is_lost() or not is_connection_lost(error):
                    raise
                logger.info("run %s is read again in %.1f s: %s", self.lease.run_id, pause, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _read_again(self) -> RunSnapshot | None:
        """The run as it is now; None when it is gone, or is not the definition's any more."""
        await read_again(self._runtime.port, self.claim)
        if self.claim.run is None:
            return None
        run = (await snapshots(self._runtime.port, [(self.claim, self.workflow.tree)]))[0]
        return run if isinstance(run, RunSnapshot) else None

    # --- starting user code ---------------------------------------------------------------------

    def _launch(self, move: Move) -> None:
        if self.stopping:
            return
        for start in move.starts:
            attempt = self._make_attempt(start)
            self.attempts[start.ordinal] = attempt
            self._runtime.start(self, attempt)
        for ask in move.asks:
            self._runtime.ask(self, Question(self._plan.tree, ask))
        for timer in move.timers:
            self._runtime.after(self, timer.delay, Due(timer.ordinal, timer))

    def _make_attempt(self, start: Start) -> Attempt:
        run = self.claim.run
        assert run is not None
        return Attempt(
            start,
            lease=self.lease,
            node=self._plan.tree.nodes[start.ordinal],
            run=run,
            secret_keys=self.workflow.secret_keys,
            checkpoint=self._plan.checkpoint,
            desk=self._runtime.desk(),
        )
