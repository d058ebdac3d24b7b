"""The saga going backward: completed actions are undone one by one, the newest completed first. Pure.

So are completed steps that were given a compensation, each in its own place, also those of an action
that failed. Each compensation has attempts of its own, an action's counted on its node, a step's in the
ledger (phase `undo`). One that fails for good is written there, a node stays `completed`, and the walk goes
on; the run keeps the error that triggered it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workflow import states
from workflow.definitions import Action, Tree
from workflow.errors import FailureCode
from workflow.plan.boundary import (
    BACKWARD,
    DELETE,
    RELEASE,
    Boundary,
    Change,
    Completed,
    Fact,
    Failed,
    HistoryEntry,
    Move,
    Notes,
    Start,
    StepWrite,
    Suspended,
)
from workflow.plan.draft import Draft
from workflow.plan.faults import compact, fault, loss, reason
from workflow.plan.snapshot import RunSnapshot, state_before
from workflow.states import COMPENSATED, COMPLETED

UNDO = "undo"
"""The phase of the ledger rows that tell of a step's compensation."""


class Undo:
    """One claimed compensation job. The executor drives it as it drives a `Unit`."""

    def __init__(self, tree: Tree, run: RunSnapshot) -> None:
        self.tree = tree
        self.ordinal = 0
        self.run = run
        self.inflight: set[int] = set()
        """The action whose compensation is at work in this process. A plan that is made anew is told before `begin`."""
        self._resumed: int | None = None
        """The action whose compensation goes on after it was suspended, until that is started."""
        self._attempt = [node.compensate_attempt for node in run.nodes]
        self._failures = [
            tree.nodes[ordinal].path
            for ordinal, node in enumerate(run.nodes)
            if node.error is not None and node.error.get("code") == FailureCode.COMPENSATION_FAILED
        ]
        self._failures.extend(
            path
            for step in run.steps
            if step.failed and (path := tree.nodes[step.ordinal].path) not in self._failures
        )
        self._left = self._order()
        """What is still to be undone, the next one last: actions, and steps by their keys."""
        self._step_attempt = {(step.ordinal, step.key): step.attempt for step in run.steps}
        self._draft = Draft([node.status for node in run.nodes], self._attempt)

    def begin(self) -> Move:
        """Starts the next compensation, or goes on where a dead worker stopped."""
        boundary = self._open()
        if self.inflight:
            return self._draft.close()  # a plan that is made anew adopts what is still at work
        if self._left:
            ordinal, step = self._left[-1]
            # One that suspended itself spends no attempt.
            if step is None and self.run.nodes[ordinal].due_in is not None:
                self._attempt[ordinal] -= 1
                self._resumed = ordinal
            elif self._is_lost_for_good():
                seen = self.run.last_error or FailureCode.LEASE_HEARTBEAT_LOST
                message = f"attempt {self._number()} was lost with its worker ({seen})"
                path = self.tree.nodes[ordinal].path
                self._failed(fault(FailureCode.COMPENSATION_FAILED, message, path))
        if loss(self.run.last_error) is not None:
            # It is dealt with, and must not be taken for the end of what is at work from here on.
            boundary.last_error = ""
        return self._next()

    def advance(self, facts: Iterable[Fact]) -> Move:
        """The next boundary after an attempt ended."""
        self._open()
        for fact in facts:
            if fact.ordinal not in self.inflight or not isinstance(fact, Completed | Failed | Suspended):
                continue  # a timer or an answer of the way forward comes late
            self.inflight.discard(fact.ordinal)
            if not self._left or fact.ordinal != self._left[-1][0]:
                continue  # it settled itself before the plan was made anew
            if isinstance(fact, Completed):
                self._note(fact.notes)
                self._undone(fact.settled, fact.leaves_open)
            elif isinstance(fact, Suspended):
                return self._suspend(fact)
            elif isinstance(fact, Failed):
                self._note(fact.notes)
                if not fact.final and self._number() < self._limit(fact.ordinal):
                    return self._retry(fact)
                self._failed({**fact.error, "code": FailureCode.COMPENSATION_FAILED})
        return self._draft.close() if self.inflight else self._next()

    def release(self) -> Move:
        """Gives the walk back unfinished: a stopping worker spends no attempt."""
        self._open().refund = True
        # What is at work may have settled itself before this plan was made anew: then the next one has not begun.
        if self._left and self._left[-1][0] in self.inflight:
            self._count(-1)
        return self._release(0.0)

    def checkpoint(self, ordinal: int, output: Any, text: str | None, number: int = 0) -> Boundary:
        """The mark of one atomic compensation alone: its handler, in attempt `number`, settles it in its own
        transaction."""
        attempt = max(self._attempt[ordinal], number)  # this plan may be about to give it back
        path, data = self.tree.nodes[ordinal].path, compact({"attempt": attempt})
        return Boundary(
            compensating=True,
            history=[HistoryEntry(states.EVENT_ACTION_COMPENSATED, path, data)],
            changes=[Change(ordinal, COMPLETED, COMPENSATED)],
            ledgers_over=[(ordinal, BACKWARD)] if attempt > 1 else [],
        )

    # --- inside ---------------------------------------------------------------------------------

    def _order(self) -> list[tuple[int, str | None]]:
        failed = set(self._failures)
        # A step adds nothing to the history: the entries up to its number were there before it.
        undoable: list[tuple[int, int, int, int, str | None]] = [
            (step.seq, 1, place, step.ordinal, step.key)
            for place, step in enumerate(self.run.steps)
            if not step.failed
        ]
        undoable += [
            (row.completed_seq or 0, 0, 0, node.ordinal, None)
            for node, row in zip(self.tree.nodes, self.run.nodes, strict=True)
            if row.status == COMPLETED
            and isinstance(node.definition, Action)
            and node.definition.compensate_handler is not None
            and node.path not in failed
        ]
        return [entry[3:] for entry in sorted(undoable, key=lambda entry: entry[:4])]

    def _number(self) -> int:
        """The attempt in hand."""
        ordinal, step = self._left[-1]
        return self._attempt[ordinal] if step is None else self._step_attempt[ordinal, step]

    def _count(self, by: int) -> int:
        """Writes that the attempt in hand is the next one, or, with -1, that it was none."""
        ordinal, step = self._left[-1]
        if step is None:
            self._attempt[ordinal] += by
            self._draft.change(ordinal, COMPLETED, compensate_attempt=self._attempt[ordinal])
        else:
            self._step_attempt[ordinal, step] += by
            self._write("running")
        return self._number()

    def _write(self, status: str, error: str | None = None) -> None:
        """Brings the ledger row of the step's compensation in hand up to date."""
        ordinal, step = self._left[-1]
        assert step is not None
        attempt = self._step_attempt[ordinal, step]
        write = StepWrite(ordinal, UNDO, step, "run", status, attempt=attempt, error=error)
        steps = self._draft.move.boundary.steps
        # One boundary may both end a step's compensation and start it again, and a row is written once in it.
        steps[:] = [known for known in steps if (known.ordinal, known.key) != (ordinal, step)]
        steps.append(write)

    def _limit(self, ordinal: int) -> int:
        definition = self.tree.nodes[ordinal].definition
        assert isinstance(definition, Action)
        return definition.compensate_attempts

    def _is_lost_for_good(self) -> bool:
        """Whether the attempt in hand was lost with its worker and is not to be tried again."""
        attempt = self._number()
        capped = loss(self.run.last_error) == FailureCode.LEASE_ABSOLUTE_CAP
        return attempt >= self._limit(self._left[-1][0]) or (capped and attempt > 0)

    def _undone(self, settled: bool, leaves_open: bool) -> None:
        ordinal, step = self._left[-1]
        path = self.tree.nodes[ordinal].path
        if step is not None:
            self._write("completed")
            fields = {"step": step, "attempt": self._number()}
            self._draft.say(
                states.EVENT_LOG, path, compact({"message": f"step {step} compensated", "fields": fields})
            )
        elif not settled:
            data = compact({"attempt": self._attempt[ordinal]})
            self._draft.say(states.EVENT_ACTION_COMPENSATED, path, data)
            self._draft.change(ordinal, COMPENSATED)
            if leaves_open:
                self._draft.move.boundary.ledgers_over.append((ordinal, BACKWARD))
        self._left.pop()

    def _failed(self, error: dict[str, Any]) -> None:
        ordinal, step = self._left[-1]
        path = self.tree.nodes[ordinal].path
        if path not in self._failures:
            self._failures.append(path)
        data = {"attempt": self._number(), "error": error} | ({} if step is None else {"step": step})
        self._draft.say(states.EVENT_ACTION_COMPENSATION_FAILED, path, compact(data))
        if step is None:
            self._draft.change(ordinal, COMPLETED, error=compact(error))
            self._draft.move.boundary.ledgers_over.append((ordinal, BACKWARD))
        else:
            self._write("failed", compact(error))
        self._left.pop()

    def _note(self, notes: Notes | None) -> None:
        """What a compensation logs; the progress of its node is that of the action."""
        if notes is not None:
            self._draft.move.boundary.history.extend(notes.entries)

    def _suspend(self, fact: Suspended) -> Move:
        boundary = self._draft.move.boundary
        self._note(fact.notes)
        boundary.steps.extend(fact.steps)
        boundary.refund = True
        self._draft.change(fact.ordinal, COMPLETED, due=fact.delay)
        return self._release(fact.delay)

    def _retry(self, fact: Failed) -> Move:
        data = {"attempt": self._number(), "error": fact.error, "delay": fact.delay, "compensation": True}
        path = self.tree.nodes[fact.ordinal].path
        self._draft.say(states.EVENT_ACTION_RETRYING, path, compact(data), fact.delay)
        if fact.delay <= 0:
            return self._next()
        return self._release(fact.delay, reason(fact.error))

    def _release(self, delay: float, last_error: str = "") -> Move:
        boundary = self._draft.move.boundary
        boundary.job = RELEASE
        boundary.delay = delay
        boundary.last_error = last_error
        self._draft.move.done = True
        return self._draft.close()

    def _next(self) -> Move:
        if not self._left:
            return self._over()
        ordinal, step = self._left[-1]
        attempt = self._count(1)
        self.inflight.add(ordinal)
        # A step is found again by its handler, which has to be started as it was then.
        state = self.run.state if step is None else state_before(self.tree, self.run, ordinal)
        resumed, self._resumed = ordinal == self._resumed, None
        start = Start(ordinal, attempt, state, compensation=True, step=step, resumed=resumed)
        self._draft.move.starts.append(start)
        return self._draft.close()

    def _over(self) -> Move:
        boundary = self._draft.move.boundary
        boundary.run_target = COMPENSATED
        self._draft.say(states.EVENT_COMPENSATED)
        if self._failures:
            error = self.run.error or self._first_failure()
            boundary.run_error = compact({**error, "compensation_failures": self._failures})
        boundary.job = DELETE
        self._draft.move.done = True
        return self._draft.close()

    def _first_failure(self) -> dict[str, Any]:
        """The error of a run that nothing has triggered but a command."""
        path, *others = self._failures
        more = f", nor could {len(others)} more" if others else ""
        return fault(FailureCode.COMPENSATION_FAILED, f"{path} could not be undone{more}", path)

    def _open(self) -> Boundary:
        """Begins the next move. The walk is all that is left of its run, so it has the run to itself."""
        boundary = self._draft.open(compensating=True)
        boundary.alone = True
        return boundary
