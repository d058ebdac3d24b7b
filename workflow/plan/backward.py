"""The saga going backward: completed actions are undone one by one, the newest completed first. Pure.

Each compensation has attempts of its own. One that fails for good is written on its node, which
stays `completed`, and the walk goes on; the run keeps the error that triggered it.
"""

from __future__ import annotations

from typing import Any

from workflow import states
from workflow.definitions import Action, Tree
from workflow.errors import FailureCode
from workflow.plan.boundary import (
    DELETE,
    RELEASE,
    Boundary,
    Change,
    Completed,
    Fact,
    Failed,
    HistoryEntry,
    Move,
    Start,
    Suspended,
)
from workflow.plan.faults import compact, fault, loss, reason
from workflow.plan.snapshot import RunSnapshot


class Undo:
    """One claimed compensation job. The executor drives it as it drives a `Unit`."""

    def __init__(self, tree: Tree, run: RunSnapshot) -> None:
        self.tree = tree
        self.ordinal = 0
        self.run = run
        self.inflight: set[int] = set()
        self._attempt = [node.compensate_attempt for node in run.nodes]
        self._failures = [
            tree.nodes[ordinal].path
            for ordinal, node in enumerate(run.nodes)
            if node.error is not None and node.error.get("code") == FailureCode.COMPENSATION_FAILED
        ]
        self._left = self._order()
        self._move = Move()

    def begin(self) -> Move:
        """Starts the next compensation, or goes on where a dead worker stopped."""
        self._move = Move(boundary=Boundary(compensating=True, alone=True))
        if self.inflight:
            return self._move  # a plan that is made anew adopts what is still at work
        if self._left:
            ordinal = self._left[0]
            if self.run.nodes[ordinal].due_in is not None:  # it suspended itself, which spends no attempt
                self._attempt[ordinal] -= 1
            elif self._is_lost_for_good(ordinal):
                seen = self.run.last_error or FailureCode.LEASE_HEARTBEAT_LOST
                message = f"attempt {self._attempt[ordinal]} was lost with its worker ({seen})"
                path = self.tree.nodes[ordinal].path
                self._failed(ordinal, fault(FailureCode.COMPENSATION_FAILED, message, path))
        return self._next()

    def advance(self, facts: list[Fact]) -> Move:
        """The next boundary after an attempt ended."""
        self._move = Move(boundary=Boundary(compensating=True, alone=True))
        for fact in facts:
            if fact.ordinal not in self.inflight:
                continue
            self.inflight.discard(fact.ordinal)
            if fact.ordinal not in self._left:
                continue  # it settled itself before the plan was made anew
            if isinstance(fact, Completed | Failed | Suspended) and fact.notes is not None:
                self._move.boundary.history.extend(fact.notes.entries)
            if isinstance(fact, Completed):
                self._undone(fact.ordinal, fact.settled)
            elif isinstance(fact, Suspended):
                self._move.boundary.steps.extend(fact.steps)
                self._change(fact.ordinal, due=fact.delay)
                self._move.boundary.refund = True
                return self._release(fact.delay)
            elif isinstance(fact, Failed):
                if not fact.final and self._attempt[fact.ordinal] < self._limit(fact.ordinal):
                    return self._retry(fact)
                self._failed(fact.ordinal, {**fact.error, "code": FailureCode.COMPENSATION_FAILED})
        return self._next()

    def release(self) -> Move:
        """Gives the walk back unfinished: a stopping worker spends no attempt."""
        self._move = Move(boundary=Boundary(compensating=True, alone=True, refund=True))
        for ordinal in self.inflight:
            self._attempt[ordinal] -= 1
            self._change(ordinal, compensate_attempt=self._attempt[ordinal])
        return self._release(0.0)

    def checkpoint(self, ordinal: int, output: Any, text: str | None) -> Boundary:
        """The mark of one atomic compensation alone: its handler settles it in its own transaction."""
        return Boundary(
            compensating=True,
            history=[self._entry(states.EVENT_ACTION_COMPENSATED, ordinal)],
            changes=[Change(ordinal, states.COMPLETED, states.COMPENSATED)],
        )

    # --- inside ---------------------------------------------------------------------------------

    def _order(self) -> list[int]:
        undoable = [
            (node.completed_seq or 0, ordinal)
            for ordinal, node in enumerate(self.run.nodes)
            if ordinal
            and node.status == states.COMPLETED
            and self.tree.nodes[ordinal].kind == states.ACTION
            and self._action(ordinal).compensate_handler is not None
            and self.tree.nodes[ordinal].path not in self._failures
        ]
        return [ordinal for _, ordinal in sorted(undoable, reverse=True)]

    def _action(self, ordinal: int) -> Action:
        definition = self.tree.nodes[ordinal].definition
        assert isinstance(definition, Action)
        return definition

    def _limit(self, ordinal: int) -> int:
        return self._action(ordinal).compensate_attempts

    def _is_lost_for_good(self, ordinal: int) -> bool:
        """Whether the attempt in hand was lost with its worker and is not to be tried again."""
        attempt = self._attempt[ordinal]
        capped = loss(self.run.last_error) == FailureCode.LEASE_ABSOLUTE_CAP
        return attempt >= self._limit(ordinal) or (capped and attempt > 0)

    def _undone(self, ordinal: int, settled: bool) -> None:
        self._left.remove(ordinal)
        if not settled:
            self._move.boundary.history.append(self._entry(states.EVENT_ACTION_COMPENSATED, ordinal))
            self._change(ordinal, target=states.COMPENSATED)

    def _failed(self, ordinal: int, error: dict[str, Any]) -> None:
        self._left.remove(ordinal)
        path = self.tree.nodes[ordinal].path
        self._failures.append(path)
        data = {"attempt": self._attempt[ordinal], "error": error}
        self._move.boundary.history.append(
            HistoryEntry(states.EVENT_ACTION_COMPENSATION_FAILED, path, compact(data))
        )
        self._change(ordinal, error=compact(error))

    def _retry(self, fact: Failed) -> Move:
        path = self.tree.nodes[fact.ordinal].path
        data = {
            "attempt": self._attempt[fact.ordinal],
            "error": fact.error,
            "delay": fact.delay,
            "compensation": True,
        }
        self._move.boundary.history.append(
            HistoryEntry(states.EVENT_ACTION_RETRYING, path, compact(data), fact.delay)
        )
        if fact.delay <= 0:
            return self._next()
        return self._release(fact.delay, reason(fact.error))

    def _release(self, delay: float, last_error: str = "") -> Move:
        self._move.boundary.job = RELEASE
        self._move.boundary.delay = delay
        self._move.boundary.last_error = last_error
        self._move.done = True
        return self._move

    def _next(self) -> Move:
        if self._left:
            ordinal = self._left[0]
            self._attempt[ordinal] += 1
            self._change(ordinal, compensate_attempt=self._attempt[ordinal])
            self.inflight.add(ordinal)
            self._move.starts.append(
                Start(ordinal, self._attempt[ordinal], self.run.state, compensation=True)
            )
            return self._move
        boundary = self._move.boundary
        boundary.run_target = states.COMPENSATED
        boundary.history.append(HistoryEntry(states.EVENT_COMPENSATED))
        if self._failures:
            boundary.run_error = compact({**(self.run.error or {}), "compensation_failures": self._failures})
        boundary.job = DELETE
        self._move.done = True
        return self._move

    def _entry(self, name: str, ordinal: int) -> HistoryEntry:
        return HistoryEntry(name, self.tree.nodes[ordinal].path, compact({"attempt": self._attempt[ordinal]}))

    def _change(
        self,
        ordinal: int,
        target: str = states.COMPLETED,
        *,
        compensate_attempt: int | None = None,
        error: str | None = None,
        due: float | None = None,
    ) -> None:
        """Adds to the one change of this node; it is `completed` before, whatever becomes of it."""
        for change in self._move.boundary.changes:
            if change.ordinal == ordinal:
                change.target = target
                if compensate_attempt is not None:
                    change.compensate_attempt = compensate_attempt
                change.error = error or change.error
                change.due = due
                return
        change = Change(
            ordinal, states.COMPLETED, target, compensate_attempt=compensate_attempt, error=error, due=due
        )
        self._move.boundary.changes.append(change)
