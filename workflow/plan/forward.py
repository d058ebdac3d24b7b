"""The unit going forward: which boundary comes next, and what starts after it. Pure.

A `Unit` is the plan's working copy of one claimed job: it holds the statuses as they will be once
the boundary that it returned is settled. A refused boundary ends the unit, so nothing is ever
taken back here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workflow import states
from workflow.definitions import Action, Stage, Tree
from workflow.errors import FailureCode
from workflow.plan.boundary import (
    AWAIT,
    FORWARD,
    RELEASE,
    Answered,
    Ask,
    Boundary,
    Change,
    Checked,
    Completed,
    Due,
    Fact,
    Failed,
    HistoryEntry,
    Move,
    NewJob,
    Refused,
    Start,
    Suspended,
    Timer,
)
from workflow.plan.faults import Unfit, compact, fault, is_unbegun, loss, reason, seen
from workflow.plan.losses import verdict
from workflow.plan.outputs import as_patch
from workflow.plan.settling import Settling
from workflow.plan.snapshot import RunSnapshot, nest
from workflow.plan.waits import output_of, park
from workflow.states import (
    ACTION,
    COMPLETED,
    NODE_LIVE,
    PENDING,
    PIPELINE,
    RUNNING,
    STAGE,
    WAITING,
)


class Unit(Settling):
    """One claimed unit job: a pipeline, or a stage or action with `via="queue"`."""

    def __init__(self, tree: Tree, ordinal: int, run: RunSnapshot) -> None:
        super().__init__(tree, ordinal, run)
        self._timed: dict[int, Timer] = {}
        """By node that waits for its turn: the timer that runs for it."""
        self._waits: set[int] = set()
        """Wait stages that are parked."""
        self._seen_due: set[int] = set()
        """Nodes that were not due at the claim, and have been told so."""
        self.resumed: set[int] = set()
        """Handlers at work that were suspended before. A plan that is made anew takes them over."""

    # --- what the executor calls ----------------------------------------------------------------

    def hold_back(self, seconds: float, longer: dict[int, float]) -> None:
        """Told before `begin`: what waits for its turn goes on in so many seconds at the earliest, and these nodes in
        so many, whether they have waited so far or not."""
        for ordinal in range(self.ordinal, self.tree.nodes[self.ordinal].end):
            row = self.run.nodes[ordinal]
            if row.due_in is not None or ordinal in longer:
                due = max(row.due_in or 0.0, longer.get(ordinal, seconds))
                self.run.nodes[ordinal] = replace(row, due_in=due)

    def begin(self) -> Move:
        """The first boundary after the claim: starts the unit, or takes it up where it stands."""
        self._draft.open()
        self.inflight = {ordinal for ordinal in self.inflight if self._is_at_work(ordinal)}
        if self.status[self.ordinal] not in NODE_LIVE:
            self._late()
            return self._close()
        if self.run_status == PENDING:
            self._run_goes_on(states.EVENT_STARTED)
        self._verdict = verdict(self.tree, self.ordinal, self.run)
        if self._verdict == FailureCode.LEASE_ABSOLUTE_CAP and not self._has_children_at_work():
            self._condemn(self.ordinal)
        else:
            self._enter(self.ordinal)
        self._verdict = None
        return self._close()

    def advance(self, facts: Sequence[Fact]) -> Move:
        """The next boundary after what just happened."""
        self._draft.open()
        # What an atomic action has settled itself comes before what this boundary will settle.
        for fact in sorted(facts, key=_settles_later) if len(facts) > 1 else facts:
            self._apply(fact)
        return self._close()

    def asleep(self) -> list[Due]:
        """For each handler that is suspended beside others at work: the fact that it is due, should it be so before
        its time, because what it waits for has come."""
        timed = self._timed.items()
        return [Due(n, timer) for n, timer in timed if n in self._later and self.status[n] == WAITING]

    def release(self) -> Move:
        """Gives the unit back unfinished: a stopping worker spends no attempt."""
        boundary = self._draft.open()
        for ordinal in sorted(self.inflight):
            if self._is_at_work(ordinal):
                self._give_back(ordinal)
        boundary.job = RELEASE
        boundary.refund = True
        boundary.last_error = ""
        boundary.awaited = self._awaited()
        move = self._draft.close()
        move.done = True
        return move

    def checkpoint(self, ordinal: int, output: Any, text: str | None, number: int = 0) -> Boundary:
        """The completion of one atomic action alone: its handler settles it in its own transaction.

        `number` is the handler's attempt. Changes nothing here; `Completed(settled=True)` tells the unit once that is
        committed.
        """
        node = self.tree.nodes[ordinal]
        attempt = max(self.attempt[ordinal], number)  # this plan may be about to give it back
        patch = nest(node.key, output)
        stale = "" if attempt > 1 else None
        return Boundary(
            patch=None if patch is None else text if patch is output else compact(patch),
            history=[HistoryEntry(states.EVENT_ACTION_COMPLETED, node.path, f'{{"attempt":{attempt}}}')],
            changes=[Change(ordinal, RUNNING, COMPLETED, output=text, error=stale, event=1)],
            ledgers_over=[(ordinal, FORWARD)] if attempt > 1 else [],
        )

    # --- facts ----------------------------------------------------------------------------------

    def _apply(self, fact: Fact) -> None:
        ordinal = fact.ordinal
        if isinstance(fact, Due):
            if fact.timer is not None and self._timed.get(ordinal) is not fact.timer:
                return  # it was due before that, and waits for something else by now
            self._timed.pop(ordinal, None)
            if self._later.pop(ordinal, None) is not None:
                self._enter(ordinal)
            return
        if self._counts_no_more(fact):
            return
        self.inflight.discard(ordinal)
        self.resumed.discard(ordinal)
        match fact:
            case Completed(settled=True):
                self._settled_itself(ordinal, fact.output)
            case Completed():
                self._order.ended(ordinal)
                self._draft.note(ordinal, fact.notes)
                if fact.leaves_open:
                    self._draft.move.boundary.ledgers_over.append((ordinal, FORWARD))
                if self.tree.nodes[ordinal].kind == ACTION:
                    self._complete(ordinal, fact.output, fact.text)
                else:
                    self._wait_over(ordinal, fact.output, fact.text)
            case Failed():
                self._order.ended(ordinal)
                self._draft.note(ordinal, fact.notes)
                self._attempt_failed(ordinal, fact.error, fact.delay, fact.final)
            case Suspended():
                self._order.ended(ordinal)
                self._draft.note(ordinal, fact.notes)
                self._draft.move.boundary.steps.extend(fact.steps)
                self._suspend(ordinal, fact.delay)
            case Answered(go=True):
                self._start(ordinal, fact.correlation)
            case Answered():
                self._skip(ordinal)
            case Checked():
                self._heard_of_output(fact)
            case Refused():
                self._fail(ordinal, fact.error)

    def _heard_of_output(self, fact: Checked) -> None:
        definition = self.tree.nodes[fact.ordinal].definition
        assert isinstance(definition, Stage)
        if fact.error is not None:
            self._fail(fact.ordinal, fact.error)
        elif definition.wait_for is not None:
            self._complete(fact.ordinal, fact.value, fact.text)
        else:
            self._container_over(fact.ordinal, *as_patch(definition.name, fact.value, fact.text))

    def _is_at_work(self, ordinal: int) -> bool:
        return self.status[ordinal] == RUNNING and self.tree.nodes[ordinal].kind == ACTION

    def _counts_no_more(self, fact: Fact) -> bool:
        """Whether somebody else has settled the node, or has answered the question, since a plan was made anew."""
        status = self.status[fact.ordinal]
        if status not in NODE_LIVE:
            self.inflight.discard(fact.ordinal)
            return True
        return (
            fact.ordinal not in self.inflight
            or (isinstance(fact, Answered) and status != PENDING)
            or (isinstance(fact, Refused) and status == RUNNING)
        )

    def _complete(self, ordinal: int, output: Any, text: str | None) -> None:
        node = self.tree.nodes[ordinal]
        patch = nest(node.key, output)
        if patch is not None:
            self._draft.patch(patch, text if patch is output else None)
        if node.kind == ACTION:
            self._completed.append(ordinal)
            attempt = self.attempt[ordinal]
            event = self._draft.say(states.EVENT_ACTION_COMPLETED, node.path, f'{{"attempt":{attempt}}}')
        else:
            event = self._draft.say(states.EVENT_STAGE_COMPLETED, node.path)
        stale = "" if self.attempt[ordinal] > 1 else None
        self._draft.change(ordinal, COMPLETED, output=text, event=event, error=stale)
        self._merge(ordinal, patch)
        self._settled(ordinal)

    def _settled_itself(self, ordinal: int, output: Any) -> None:
        """An atomic action's completion is in the database already."""
        self.status[ordinal] = COMPLETED
        self._completed.append(ordinal)
        self._is_whole = (
            self._is_whole and not self.tree.has_groups
        )  # else it may stand before what was heard first
        patch = nest(self.tree.nodes[ordinal].key, output)
        if patch is not None:
            self._order.settled(ordinal, patch)
        self._merge(ordinal, patch)
        self._settled(ordinal)

    def _merge(self, ordinal: int, patch: dict[str, Any] | None) -> None:
        if patch is not None:
            self._order.merged(ordinal, patch)
            self.states.merge(ordinal, patch)
            self._outputs.add(ordinal, patch)

    def _attempt_failed(self, ordinal: int, error: dict[str, Any], delay: float, final: bool) -> None:
        node = self.tree.nodes[ordinal]
        definition = node.definition
        assert isinstance(definition, Action)
        attempt = self.attempt[ordinal]
        if final or attempt >= definition.attempts:
            self._fail(ordinal, error)
            return
        data = {"attempt": attempt, "error": error, "delay": delay}
        self._draft.say(states.EVENT_ACTION_RETRYING, node.path, compact(data), delay)
        if delay <= 0:
            self._start_attempt(ordinal, error=compact(error))
            return
        self._draft.change(ordinal, PENDING, error=compact(error), due=delay)
        self._later[ordinal] = delay
        self._spent = reason(error)

    def _suspend(self, ordinal: int, delay: float) -> None:
        self._draft.say(states.EVENT_WAITING, self.tree.nodes[ordinal].path)
        self._draft.change(ordinal, WAITING, due=delay)
        self._later[ordinal] = delay

    def _give_back(self, ordinal: int) -> None:
        if ordinal in self.resumed:  # its attempt began long ago; it is replayed once more
            self._suspend(ordinal, 0.0)
            return
        attempt = self.attempt[ordinal]
        data = {"attempt": attempt, "error": None, "delay": 0, "reason": "shutdown"}
        self._draft.say(states.EVENT_ACTION_RETRYING, self.tree.nodes[ordinal].path, compact(data))
        self._draft.change(ordinal, PENDING, attempt=attempt - 1)

    # --- going on -------------------------------------------------------------------------------

    def _enter(self, ordinal: int) -> None:
        """Takes up a live node whose turn it is, in whichever status it was left."""
        node = self.tree.nodes[ordinal]
        status = self.status[ordinal]
        if node.own_job and ordinal != self.ordinal and not (status == PENDING and self._descends(ordinal)):
            self._children.add(ordinal)
            if status == PENDING:
                self._draft.move.boundary.new_jobs.append(NewJob(states.UNIT, ordinal))
        elif status == PENDING:
            if self._too_early(ordinal):
                return
            if self.attempt[ordinal] == 0 and _has_gate(node.definition) and not self._has_begun(ordinal):
                self._ask(ordinal)
            else:
                self._start(ordinal, None)
        elif status == RUNNING and node.kind == ACTION:
            if ordinal in self.inflight:  # a plan that is made anew adopts what is still at work
                self._order.started(ordinal)
            else:
                self._lost(ordinal)
        elif status == RUNNING:
            self._open_container(ordinal)
        elif node.kind == ACTION:
            self._resume_suspended(ordinal)
        else:
            self._resume_wait(ordinal)

    def _has_begun(self, ordinal: int) -> bool:
        """Whether a stage that a retry has reset has anything done: it goes on, and is not asked whether to.

        What is skipped does not tell: the stage may have been, and all of it with it.
        """
        return any(self.status[n] == COMPLETED for n in range(ordinal + 1, self.tree.nodes[ordinal].end))

    def _too_early(self, ordinal: int) -> bool:
        """Whether the node was not yet due at the claim; asked once, for the clock goes on since."""
        due = self.run.nodes[ordinal].due_in
        if due is None or due <= 0 or ordinal in self._seen_due:
            return False
        self._seen_due.add(ordinal)
        self._later[ordinal] = due
        return True

    def _ask(self, ordinal: int, event: dict[str, Any] | None = None) -> None:
        if self._condemn(ordinal):
            return
        self.inflight.add(ordinal)
        self._draft.move.asks.append(Ask(ordinal, self.states.of(ordinal), event))

    def _start(self, ordinal: int, correlation: str | None) -> None:
        node = self.tree.nodes[ordinal]
        definition = node.definition
        self._run_goes_on(states.EVENT_RESUMED)
        if node.kind == ACTION:
            self._start_attempt(ordinal)
        elif isinstance(definition, Stage) and definition.wait_for is not None:
            try:
                wait = park(definition.wait_for, self.states.of(ordinal), correlation, node.path)
            except Unfit as unfit:
                self._fail(ordinal, unfit.error)
                return
            self._draft.change(ordinal, WAITING, wait=wait)
            self._waits.add(ordinal)
        else:
            self._draft.change(ordinal, RUNNING)
            self._open_container(ordinal)

    def _start_attempt(self, ordinal: int, error: str | None = None) -> None:
        attempt = self.attempt[ordinal] + 1
        self._draft.say(
            states.EVENT_ACTION_STARTED, self.tree.nodes[ordinal].path, f'{{"attempt":{attempt}}}'
        )
        self._draft.change(ordinal, RUNNING, attempt=attempt, error=error)
        self._launch(ordinal)

    def _launch(self, ordinal: int) -> None:
        self.inflight.add(ordinal)
        self._order.started(ordinal)
        resumed = ordinal in self.resumed
        start = Start(ordinal, self.attempt[ordinal], self.states.of(ordinal), resumed=resumed)
        self._draft.move.starts.append(start)

    def _lost(self, ordinal: int) -> None:
        """An attempt that is `running` at the claim died with its worker; the reason is on the job."""
        if is_unbegun(self.run.last_error):
            self._launch(ordinal)
            return
        code = loss(self.run.last_error) or FailureCode.LEASE_HEARTBEAT_LOST
        message = f"attempt {self.attempt[ordinal]} was lost with its worker{seen(self.run.last_error)}"
        error = fault(code, message, self.tree.nodes[ordinal].path)
        self._attempt_failed(ordinal, error, 0.0, final=code == FailureCode.LEASE_ABSOLUTE_CAP)

    def _resume_suspended(self, ordinal: int) -> None:
        if not self._too_early(ordinal):
            self._draft.say(states.EVENT_RESUMED, self.tree.nodes[ordinal].path)
            self._draft.change(ordinal, RUNNING)
            self.resumed.add(ordinal)
            self._launch(ordinal)

    def _resume_wait(self, ordinal: int) -> None:
        node = self.tree.nodes[ordinal]
        outcome = self.run.nodes[ordinal].wait_outcome
        definition = node.definition
        assert isinstance(definition, Stage)
        assert definition.wait_for is not None
        if outcome is None:
            self._waits.add(ordinal)
        elif "event" in outcome and definition.wait_for.pick is not None:
            self._ask(ordinal, outcome["event"])
        else:
            try:
                output = output_of(definition.wait_for, outcome, node.path)
            except Unfit as unfit:
                self._fail(ordinal, unfit.error)
            else:
                self._wait_over(ordinal, output, None if output is None else compact(output))

    def _wait_over(self, ordinal: int, output: Any, text: str | None) -> None:
        """A wait has its output, which `output=` of its stage may have something to say about."""
        node = self.tree.nodes[ordinal]
        assert isinstance(node.definition, Stage)
        if node.definition.output_adapter is not None:
            checked = self._checked(ordinal, node.definition, output)
            if checked is None:
                return
            output, text = checked
        self._complete(ordinal, output, text)

    # --- closing a move -------------------------------------------------------------------------

    def _close(self) -> Move:
        move = self._draft.close()
        if move.done or move.back is not None:
            return move
        if self.inflight:
            if loss(self.run.last_error) is not None and not move.boundary.empty:
                # It is dealt with, and must not be taken for the end of what is at work from here on.
                self.run.last_error = move.boundary.last_error = ""
            for ordinal, delay in self._later.items():
                if ordinal not in self._timed:
                    self._timed[ordinal] = Timer(ordinal, delay)
                    move.timers.append(self._timed[ordinal])
            move.boundary.alone = self._alone()
            return move
        move.done = True
        move.boundary.awaited = self._awaited()
        if self._held or self._later or self._forgives():
            move.boundary.job = RELEASE
            move.boundary.delay = self._pause()
            move.boundary.refund = not self._spent
            move.boundary.last_error = self._spent
        elif move.boundary.awaited:
            move.boundary.job = AWAIT
        else:
            raise RuntimeError(f"unit {self.tree.nodes[self.ordinal].path!r} has nothing to do or to await")
        return move

    def _is_at_rest(self) -> bool:
        return not (
            self.inflight
            or self._later
            or self._held
            or any(self.status[wait] == WAITING for wait in self._waits)
            or any(self.status[child] in NODE_LIVE for child in self._children)
        )

    def _has_children_at_work(self) -> bool:
        """Whether a queued stage has queued actions that are somebody else's to settle."""
        node = self.tree.nodes[self.ordinal]
        return node.kind == STAGE and any(
            self.tree.nodes[below].own_job and self.status[below] in NODE_LIVE
            for below in range(self.ordinal + 1, node.end)
        )

    def _forgives(self) -> bool:
        """Whether the job must not go without a release: one that stays, since what it awaits has settled, would
        keep the loss that this unit has dealt with."""
        return bool(self._draft.move.boundary.awaited) and loss(self.run.last_error) is not None

    def _alone(self) -> bool:
        """A pipeline that is about to start its only handler, with no child at work in a job of its own: until
        the boundary is settled no one else writes to the run."""
        return (
            len(self.inflight) == 1 == len(self._draft.move.starts) + len(self._draft.move.asks)
            and self.tree.nodes[self.ordinal].kind == PIPELINE
            and not any(self.status[child] in NODE_LIVE for child in self._children)
        )

    def _pause(self) -> float:
        """Seconds until the released job is due again; 0 where only the database's clock can tell."""
        if self._held or not self._timed.keys().isdisjoint(
            self._later
        ):  # some of that delay has passed already
            return 0.0
        return min(self._later.values(), default=0.0)

    def _awaited(self) -> list[tuple[int, ...]]:
        sets: dict[tuple[int, int], list[int]] = {}
        for child in self._children:
            if self.status[child] in NODE_LIVE:
                parent = self.tree.nodes[child].parent
                sets.setdefault((parent, self._cursor.get(parent, 0)), []).append(child)
        awaited = [tuple(sorted(members)) for members in sets.values()]
        awaited.extend((wait,) for wait in self._waits if self.status[wait] == WAITING)
        awaited.extend((node,) for node in self._later if self.status[node] == WAITING)
        return awaited


def _has_gate(definition: object) -> bool:
    """Whether user code is asked before the node starts."""
    if not isinstance(definition, Action | Stage):
        return False
    wait = definition.wait_for if isinstance(definition, Stage) else None
    correlates = wait is not None and wait.correlate_handler is not None
    return correlates or definition.when is not None or definition.precheck is not None


def _settles_later(fact: Fact) -> bool:
    return not (isinstance(fact, Completed) and fact.settled)
