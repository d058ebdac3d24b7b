"""Workers, user code and bad luck: drives a simulated run to its end, one small step at a time.

A `Workers` holds any number of units at work. Each step (a claim, the read after it, a settled boundary, a
handler's outcome, a timer, a crash at any of these points, an event for a parked wait) is one call, so that a
test can put them in any order, and `run` puts them in an order of its `Tape`. `rules.Watch` looks on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.unit.plan.simulator import Database, JobRow, Lease, RunRow
from workflow import states
from workflow.definitions import Action, Stage, Tree
from workflow.plan import (
    Answered,
    Ask,
    Checked,
    Completed,
    Due,
    Fact,
    Failed,
    Move,
    Refused,
    Start,
    Suspended,
    Undo,
    Unit,
)
from workflow.plan import fault as make_fault
from workflow.plan.faults import Unfit
from workflow.plan.outputs import validated


def checked(ask: Ask, tree: Tree) -> Checked:
    """What a stage's `output=` says of what it is asked about."""
    try:
        return Checked(ask.ordinal, *validated(ask.value, tree, ask.ordinal))
    except Unfit as unfit:
        return Checked(ask.ordinal, error=unfit.error)


EVENT = {
    "id": "e",
    "type": "t",
    "payload": {"paid": True},
    "correlation": None,
    "at": "2026-01-01T00:00:00+00:00",
}
Step = Callable[[], object]
STEPS = 20_000
LATE = 0.001
"""Seconds that each step takes, so that what was armed together does not stay together."""


class Tape:
    """A source of choices: the numbers it was given, then those of a generator with a fixed seed."""

    def __init__(self, numbers: bytes = b"", seed: int = 0) -> None:
        self._numbers: Iterator[int] = iter(numbers)
        self._random = random.Random(seed)

    def below(self, limit: int) -> int:
        number = next(self._numbers, None)
        return self._random.randrange(limit) if number is None else number % limit

    def pick(self, options: list[Any]) -> Any:
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        return self.below(100) >= 100 - percent  # a tape of zeros is a calm one


@dataclass
class Fate:
    """How likely the ways are in which things go wrong, in percent, and how often each may at most happen."""

    failures: int = 20
    fatal: int = 20
    refusals: int = 5
    skips: int = 15
    suspensions: int = 10
    timeouts: int = 25
    crashes: int = 5
    caps: int = 15
    shutdowns: int = 3
    anew: int = 3
    moves: int = 70
    pauses: int = 3
    cancels: int = 0
    retries: int = 50
    left: dict[str, int] = field(
        default_factory=lambda: {
            "crash": 12,
            "shutdown": 4,
            "suspend": 12,
            "anew": 3,
            "cancel": 1,
            "retry": 3,
        }
    )

    def spend(self, what: str) -> bool:
        self.left[what] -= 1
        return self.left[what] >= 0


@dataclass(eq=False)
class Actor:
    """One unit at work in some worker."""

    lease: Lease
    kind: str
    run: RunRow
    plan: Unit | Undo | None = None
    move: Move | None = None
    """A move whose boundary is not settled yet."""
    told: list[Fact] = field(default_factory=list)
    """What that move was made of."""
    stays: bool = False
    """It was refused a move to another node, and makes no other."""
    running: dict[int, Start] = field(default_factory=dict)
    asked: list[Ask] = field(default_factory=list)
    timers: list[tuple[float, int]] = field(default_factory=list)
    committed: list[Completed] = field(default_factory=list)
    """Atomic handlers that have settled their completion and are about to return."""
    inbox: list[Fact] = field(default_factory=list)


class Looker:
    """Is told what happens; the base of `rules.Watch`."""

    def settled(self, actor: Actor, move: Move) -> None:
        """A boundary is in the database, what it starts is not started yet."""

    def checkpoint(self, actor: Actor, ordinal: int) -> None:
        """An atomic handler has settled its own completion."""

    def idle(self) -> None:
        """Nobody is at work and no job is left."""


class Workers:
    """All the workers there are, and the user code that they run."""

    def __init__(self, database: Database, looker: Looker | None = None) -> None:
        self.database = database
        self.looker = looker or Looker()
        self.actors: list[Actor] = []
        self.moves = 0
        """How often a job may move on in one boundary."""
        self.values = 0
        """Counts what handlers return, so that each output tells who wrote it."""

    # --- one step each --------------------------------------------------------------------------

    def claim(self, job: JobRow) -> Actor:
        actor = Actor(self.database.claim(job), job.kind, self.database.read_run())
        self.actors.append(actor)
        return actor

    def begin(self, actor: Actor) -> Move:
        """Reads the nodes and makes the first move. An orphan's job is dropped instead."""
        snapshot = self.database.snapshot(actor.lease, actor.run)
        tree = self.database.tree
        undo = actor.kind == states.COMPENSATE
        actor.plan = Undo(tree, snapshot) if undo else Unit(tree, actor.lease.ordinal, snapshot)
        return self._plan(actor, [])

    def _plan(self, actor: Actor, facts: list[Fact]) -> Move:
        """The next move, the first one without facts."""
        assert actor.plan is not None
        if isinstance(actor.plan, Unit):
            actor.plan.moves_left = 0 if actor.stays else self.moves
        actor.told = facts
        actor.move = actor.plan.advance(facts) if facts else actor.plan.begin()
        return actor.move

    def settle(self, actor: Actor) -> bool:
        """Settles the move's boundary and starts what follows. False: the lease was gone."""
        move, actor.move = actor.move, None
        assert move is not None
        if not move.boundary.empty:
            if not self.database.settle(actor.lease, move.boundary):
                if move.boundary.moves and self.database.holds(actor.lease):
                    self._stay(actor)
                    return True
                self.crash(actor)
                return False
            self.looker.settled(actor, move)
        if move.back is not None:
            actor.plan, actor.kind = move.back, states.COMPENSATE
        if move.done:
            assert not move.starts
            assert not move.asks
            self.actors.remove(actor)
            return True
        actor.running.update({start.ordinal: start for start in move.starts})
        actor.asked += move.asks
        actor.timers += [(self.database.now + timer.delay, timer.ordinal) for timer in move.timers]
        assert actor.running or actor.asked or actor.inbox, "the unit neither works nor lets go"
        return True

    def _stay(self, actor: Actor) -> None:
        """The job is not to move on: the same facts are planned again, and what they answer is not asked again."""
        actor.stays = True
        heard, actor.inbox = actor.told, [*actor.told, *actor.inbox]
        move = self.anew(actor)
        known = {fact.ordinal for fact in heard if not isinstance(fact, Due)}
        move.asks = [ask for ask in move.asks if ask.ordinal not in known]

    def post(self, actor: Actor, fact: Fact) -> None:
        """A handler, a gate or a timer has come to its end."""
        if (
            isinstance(fact, Answered | Checked | Refused)
            or self.database.tree.nodes[fact.ordinal].kind == states.STAGE
        ):
            actor.asked.remove(next(ask for ask in actor.asked if ask.ordinal == fact.ordinal))
        elif not isinstance(fact, Due):
            del actor.running[fact.ordinal]
        actor.inbox.append(fact)

    def advance(self, actor: Actor) -> Move:
        facts, actor.inbox = actor.inbox, []
        return self._plan(actor, facts)

    def commit(self, actor: Actor, ordinal: int, output: Any) -> bool:
        """An atomic handler settles its own completion; the unit hears of it with `Completed(settled=True)`."""
        assert actor.plan is not None
        text = None if output is None else json.dumps(output)
        settled = self.database.settle(actor.lease, actor.plan.checkpoint(ordinal, output, text))
        if settled:
            self.looker.checkpoint(actor, ordinal)
        return settled

    def crash(self, actor: Actor, code: str = "LEASE_HEARTBEAT_LOST") -> None:
        """The worker is gone with all that it knew; the sweep finds its lease."""
        self.actors.remove(actor)
        self.database.reap(actor.lease, code)

    def shutdown(self, actor: Actor) -> None:
        """The worker stops: it gives the unit back and forgets it."""
        assert actor.plan is not None
        assert actor.move is None
        actor.move = actor.plan.release()
        actor.running.clear()
        actor.asked.clear()
        self.settle(actor)

    def anew(self, actor: Actor) -> Move:
        """The unit reads the run again in the middle of its work, as it does when a boundary was refused.

        Handlers at work go on; questions are asked once more, although they are still being answered.
        """
        snapshot = self.database.snapshot(actor.lease)
        undo = actor.kind == states.COMPENSATE
        tree = self.database.tree
        before = actor.plan
        actor.plan = Undo(tree, snapshot) if undo else Unit(tree, actor.lease.ordinal, snapshot)
        actor.plan.inflight = {
            *actor.running,
            *(fact.ordinal for fact in actor.inbox if not isinstance(fact, Due)),
        }
        if isinstance(before, Unit) and isinstance(actor.plan, Unit):
            actor.plan.resumed = before.resumed & actor.plan.inflight
        actor.told = []
        actor.move = actor.plan.begin()
        return actor.move

    # --- shorthands for tests that know what they want ------------------------------------------

    def take(self, path: str | None = None) -> Actor:
        """Claims a due job, of the node with that path if one is given, and settles its first boundary."""
        ordinal = None if path is None else self.database.tree.by_path[path].ordinal
        (job,) = [job for job in self.database.due() if ordinal in (None, job.ordinal)]
        actor = self.claim(job)
        self.begin(actor)
        self.settle(actor)
        return actor

    def tell(self, actor: Actor, *facts: Fact) -> Move:
        """Posts facts, plans and settles what follows from them; returns the move."""
        for fact in facts:
            self.post(actor, fact)
        move = self.advance(actor)
        self.settle(actor)
        return move

    # --- a whole run ----------------------------------------------------------------------------

    def run(self, tape: Tape, fate: Fate | None = None, deeds: Tape | None = None) -> None:
        """Goes on until nothing is due and nothing will be. `deeds`: a tape of their own for what handlers do."""
        fate = fate or Fate()
        deeds = deeds or tape
        for _ in range(STEPS):
            self.moves = 99 if tape.chance(fate.moves) else 0
            self.database.paused = tape.chance(fate.pauses)
            if not self._strike(tape, fate):
                steps = self._steps(deeds, fate)
                if steps:
                    tape.pick(steps)()
                elif not self._wait() and not self._bring_back(tape, fate):
                    return
            self.database.now += LATE
            if not self.actors and not self.database.jobs:
                self.looker.idle()
        raise AssertionError(f"the run is still {self.database.status} after {STEPS} steps")

    def _strike(self, tape: Tape, fate: Fate) -> bool:
        """Bad luck, if it is its turn."""
        if self.actors and tape.chance(fate.crashes) and fate.spend("crash"):
            code = "LEASE_ABSOLUTE_CAP" if tape.chance(fate.caps) else "LEASE_HEARTBEAT_LOST"
            self.crash(tape.pick(self.actors), code)
        elif (idle := self._idle()) and tape.chance(fate.shutdowns) and fate.spend("shutdown"):
            self.shutdown(tape.pick(idle))
        elif (working := self._working()) and tape.chance(fate.anew) and fate.spend("anew"):
            self.anew(tape.pick(working))
        elif (
            self.database.status in states.RUN_FORWARD and tape.chance(fate.cancels) and fate.spend("cancel")
        ):
            self.database.cancel()
        else:
            return False
        return True

    def _bring_back(self, tape: Tape, fate: Fate) -> bool:
        """Somebody retries a failed run, from its failure or from some node."""
        if self.database.status != states.FAILED or not tape.chance(fate.retries) or not fate.spend("retry"):
            return False
        self.database.retry(tape.pick([None, *self.database.tree.by_path]))
        return True

    def _steps(self, tape: Tape, fate: Fate) -> list[Step]:
        steps: list[Step] = [partial(self.claim, job) for job in self.database.due()]
        for actor in self.actors:
            steps += self._steps_of(actor, tape, fate)
        return steps + [partial(self._end_wait, node, tape, fate) for node in self.database.parked()]

    def _steps_of(self, actor: Actor, tape: Tape, fate: Fate) -> list[Step]:
        if actor.plan is None:
            return [partial(self._first, actor)]
        if actor.move is not None:
            return [partial(self.settle, actor)]
        committed = {fact.ordinal for fact in actor.committed}
        steps: list[Step] = [partial(self.advance, actor)] if actor.inbox else []
        steps += [
            partial(self._end_attempt, actor, start, tape, fate)
            for start in actor.running.values()
            if start.ordinal not in committed
        ]
        steps += [partial(self._answer, actor, ask, tape, fate) for ask in actor.asked]
        steps += [
            partial(self._ring, actor, *timer) for timer in actor.timers if timer[0] <= self.database.now
        ]
        steps += [partial(self._return, actor, fact) for fact in actor.committed]
        return steps

    def _working(self) -> list[Actor]:
        """The units that are between two moves."""
        return [actor for actor in self.actors if actor.plan is not None and actor.move is None]

    def _idle(self) -> list[Actor]:
        """The units that a stopping worker can give back: all that has happened is planned."""
        return [actor for actor in self._working() if not actor.inbox and not actor.committed]

    def _first(self, actor: Actor) -> None:
        live = (states.COMPENSATING,) if actor.kind == states.COMPENSATE else states.RUN_FORWARD
        if actor.run.status in live:
            self.begin(actor)
        else:
            self.actors.remove(actor)
            self.database.jobs.pop(actor.lease.ordinal, None)

    def _return(self, actor: Actor, fact: Completed) -> None:
        actor.committed.remove(fact)
        self.post(actor, fact)

    def _ring(self, actor: Actor, due_at: float, ordinal: int) -> None:
        actor.timers.remove((due_at, ordinal))
        self.post(actor, Due(ordinal))

    def _wait(self) -> bool:
        """Moves the clock to the next moment at which something is due."""
        moments = [job.available_at for job in self.database.jobs.values()]
        moments += [due_at for actor in self.actors for due_at, _ in actor.timers]
        later = [moment for moment in moments if moment > self.database.now]
        if later:
            self.database.now = min(later)
        return bool(later)

    # --- what user code does --------------------------------------------------------------------

    def _end_attempt(self, actor: Actor, start: Start, tape: Tape, fate: Fate) -> None:
        node = self.database.tree.nodes[start.ordinal]
        action = node.definition
        assert isinstance(action, Action)
        if tape.chance(fate.suspensions) and fate.spend("suspend"):
            self.post(actor, Suspended(start.ordinal, float(tape.pick([0, 1, 30]))))
        elif tape.chance(fate.failures):
            error = make_fault("ACTION_FAILED", f"attempt {start.attempt}", node.path)
            final = tape.chance(fate.fatal)
            self.post(actor, Failed(start.ordinal, error, float(tape.pick([0, 1, 5])), final))
        else:
            output = None if start.compensation else self._output(tape)
            if not action.atomic:
                text = None if output is None else json.dumps(output)
                self.post(actor, Completed(start.ordinal, output, text))
            elif self.commit(actor, start.ordinal, output):
                actor.committed.append(Completed(start.ordinal, output, None, settled=True))
            else:
                self.crash(actor)

    def _output(self, tape: Tape) -> Any:
        self.values += 1
        kind = tape.below(5)
        if kind == 4:
            return tape.pick([None, self.values, [self.values], {}])
        return dict.fromkeys(("a", "b", "c")[kind % 3 :], self.values)

    def _answer(self, actor: Actor, ask: Ask, tape: Tape, fate: Fate) -> None:
        node = self.database.tree.nodes[ask.ordinal]
        definition = node.definition
        assert isinstance(definition, Action | Stage)
        if ask.checks:
            self.post(actor, checked(ask, self.database.tree))
        elif tape.chance(fate.refusals):
            code = "PRECHECK_FAILED" if definition.precheck is not None else "ACTION_FAILED"
            self.post(actor, Refused(ask.ordinal, make_fault(code, "it raised", node.path)))
        elif ask.event is not None:
            output = self._output(tape)
            self.post(actor, Completed(ask.ordinal, output, None if output is None else json.dumps(output)))
        elif definition.when is not None and tape.chance(fate.skips):
            self.post(actor, Answered(ask.ordinal, go=False))
        else:
            self.post(actor, Answered(ask.ordinal, go=True, correlation="c"))

    def _end_wait(self, ordinal: int, tape: Tape, fate: Fate) -> None:
        if tape.chance(fate.timeouts):
            self.database.resolve(ordinal, {"timeout": True})
        else:
            self.database.resolve(ordinal, tape.pick([{"event": EVENT}, {"payload": None}, {"payload": [7]}]))
