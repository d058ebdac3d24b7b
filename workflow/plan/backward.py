"""The saga going backward: completed actions are undone one by one, the newest completed first. Pure.

Each compensation has attempts of its own. One that fails for good is written on its node, which
stays `completed`, and the walk goes on; the run keeps the error that triggered it.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    Notes,
    Start,
    Suspended,
)
from workflow.plan.draft import Draft
from workflow.plan.faults import compact, fault, loss, reason
from workflow.plan.snapshot import RunSnapshot
from workflow.states import COMPENSATED, COMPLETED


class Undo:
    """One claimed compensation job. The executor drives it as it drives a `Unit`."""

    def __init__(self, tree: Tree, run: RunSnapshot) -> None:
        self.tree = tree
        self.ordinal = 0
        self.run = run
        self.inflight: set[int] = set()
        """The action whose compensation is at work in this process. A plan that is made anew is told before `begin`."""
        self._attempt = [node.compensate_attempt for node in run.nodes]
        self._failures = [
            tree.nodes[ordinal].path
            for ordinal, node in enumerate(run.nodes)
            if node.error is not None and node.error.get("code") == FailureCode.COMPENSATION_FAILED
        ]
        self._left = self._order()
        """What is still to be undone, the next one last."""
        self._draft = Draft([node.status for node in run.nodes], self._attempt)

    def begin(self) -> Move:
        """Starts the next compensation, or goes on where a dead worker stopped."""
        self._open()
        if self.inflight:
            return self._draft.close()  # a plan that is made anew adopts what is still at work
        if self._left:
            ordinal = self._left[-1]
            if self.run.nodes[ordinal].due_in is not None:  # it suspended itself, which spends no attempt
                self._attempt[ordinal] -= 1
            elif self._is_lost_for_good(ordinal):
                seen = self.run.last_error or FailureCode.LEASE_HEARTBEAT_LOST
                message = f"attempt {self._attempt[ordinal]} was lost with its worker ({seen})"
                path = self.tree.nodes[ordinal].path
                self._failed(ordinal, fault(FailureCode.COMPENSATION_FAILED, message, path))
        return self._next()

    def advance(self, facts: Iterable[Fact]) -> Move:
        """The next boundary after an attempt ended."""
        self._open()
        for fact in facts:
            if fact.ordinal not in self.inflight:
                continue
            self.inflight.discard(fact.ordinal)
            if not self._left or fact.ordinal != self._left[-1]:
                continue  # it settled itself before the plan was made anew
            if isinstance(fact, Completed):
                self._note(fact.notes)
                self._undone(fact.ordinal, fact.settled)
            elif isinstance(fact, Suspended):
                return self._suspend(fact)
            elif isinstance(fact, Failed):
                self._note(fact.notes)
                if not fact.final and self._attempt[fact.ordinal] < self._limit(fact.ordinal):
                    return self._retry(fact)
                self._failed(fact.ordinal, {**fact.error, "code": FailureCode.COMPENSATION_FAILED})
        return self._next()

    def release(self) -> Move:
        """Gives the walk back unfinished: a stopping worker spends no attempt."""
        self._open().refund = True
        for ordinal in self.inflight:
            self._attempt[ordinal] -= 1
            self._draft.change(ordinal, COMPLETED, compensate_attempt=self._attempt[ordinal])
        return self._release(0.0)

    def checkpoint(self, ordinal: int, output: Any, text: str | None) -> Boundary:
        """The mark of one atomic compensation alone: its handler settles it in its own transaction."""
        path, data = self.tree.nodes[ordinal].path, compact({"attempt": self._attempt[ordinal]})
        return Boundary(
            compensating=True,
            history=[HistoryEntry(states.EVENT_ACTION_COMPENSATED, path, data)],
            changes=[Change(ordinal, COMPLETED, COMPENSATED)],
        )

    # --- inside ---------------------------------------------------------------------------------

    def _order(self) -> list[int]:
        failed = set(self._failures)
        undoable = [
            (row.completed_seq or 0, node.ordinal)
            for node, row in zip(self.tree.nodes, self.run.nodes, strict=True)
            if row.status == COMPLETED
            and isinstance(node.definition, Action)
            and node.definition.compensate_handler is not None
            and node.path not in failed
        ]
        return [ordinal for _, ordinal in sorted(undoable)]

    def _limit(self, ordinal: int) -> int:
        definition = self.tree.nodes[ordinal].definition
        assert isinstance(definition, Action)
        return definition.compensate_attempts

    def _is_lost_for_good(self, ordinal: int) -> bool:
        """Whether the attempt in hand was lost with its worker and is not to be tried again."""
        attempt = self._attempt[ordinal]
        capped = loss(self.run.last_error) == FailureCode.LEASE_ABSOLUTE_CAP
        return attempt >= self._limit(ordinal) or (capped and attempt > 0)

    def _undone(self, ordinal: int, settled: bool) -> None:
        self._left.pop()
        if not settled:
            data = compact({"attempt": self._attempt[ordinal]})
            self._draft.say(states.EVENT_ACTION_COMPENSATED, self.tree.nodes[ordinal].path, data)
            self._draft.change(ordinal, COMPENSATED)

    def _failed(self, ordinal: int, error: dict[str, Any]) -> None:
        self._left.pop()
        path = self.tree.nodes[ordinal].path
        self._failures.append(path)
        data = compact({"attempt": self._attempt[ordinal], "error": error})
        self._draft.say(states.EVENT_ACTION_COMPENSATION_FAILED, path, data)
        self._draft.change(ordinal, COMPLETED, error=compact(error))

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
        attempt = self._attempt[fact.ordinal]
        data = {"attempt": attempt, "error": fact.error, "delay": fact.delay, "compensation": True}
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
        ordinal = self._left[-1]
        attempt = self._attempt[ordinal] = self._attempt[ordinal] + 1
        self._draft.change(ordinal, COMPLETED, compensate_attempt=attempt)
        self.inflight.add(ordinal)
        self._draft.move.starts.append(Start(ordinal, attempt, self.run.state, compensation=True))
        return self._draft.close()

    def _over(self) -> Move:
        boundary = self._draft.move.boundary
        boundary.run_target = COMPENSATED
        self._draft.say(states.EVENT_COMPENSATED)
        if self._failures:
            boundary.run_error = compact({**(self.run.error or {}), "compensation_failures": self._failures})
        boundary.job = DELETE
        self._draft.move.done = True
        return self._draft.close()

    def _open(self) -> Boundary:
        """Begins the next move. The walk is all that is left of its run, so it has the run to itself."""
        boundary = self._draft.open(compensating=True)
        boundary.alone = True
        return boundary
