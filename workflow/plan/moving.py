"""Whether a unit's job moves on to another node of its run, where otherwise a job would be added for that node. Pure.

A job that is added has to be claimed: a commit of its own, and the run and its nodes read again, only to learn what
this plan knows already. So where the unit has its run to itself its job becomes the other node's in the very boundary
that comes to it: down to a queued child that is alone in its group, up to the parent when that child is over, on to
the next pipeline, and back, to the compensation of a run that was begun here. From there on it is as if the job had
been claimed as that node's. Whether somebody else comes first (a pause, a higher priority) the database decides: it
refuses such a boundary as a whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from workflow.definitions import Tree
from workflow.errors import FailureCode
from workflow.plan.backward import Undo
from workflow.plan.branches import States
from workflow.plan.draft import Draft
from workflow.plan.layout import layout
from workflow.plan.snapshot import NodeSnapshot, RunSnapshot
from workflow.states import COMPENSATING, PENDING


class Moving(ABC):
    """The part of a `Unit` that decides which node's job it has in hand: that of `ordinal`."""

    def __init__(self, tree: Tree, ordinal: int, run: RunSnapshot, draft: Draft) -> None:
        self.tree = tree
        self.ordinal = ordinal
        """The node whose job this is, once the boundary in hand is settled."""
        self.run = run
        self.moves_left = 0
        """How often the job may move on in the next boundary. The executor says so before it asks for that one."""
        self.status = draft.status
        """By ordinal, as they will be once the boundary in hand is settled; of the unit's own nodes alone."""
        self.attempt = draft.attempt
        self.states = States(tree, ordinal, run)
        self._draft = draft
        self.has_steps = False
        """Whether steps were left that a walk back has to undo, or may have been: the ledger alone knows them."""
        self._is_whole = run.status == PENDING
        """Whether all that has ever happened to the run has happened here, in an order that is known."""
        self._completed: list[int] = []
        """The actions that have completed here, in that order."""
        self._above: list[int] = []
        """The units that the job has come down from, which are in memory here; the nearest one last."""
        self._verdict: FailureCode | None = None
        """While a unit is taken up: user code that is asked outside of attempts has taken its worker too often."""
        self._spent = ""
        """The last attempt that has failed since the claim: the job's attempt is spent, too."""

    @abstractmethod
    def _is_at_rest(self) -> bool:
        """Whether nothing of this unit, and nothing beneath it, is at work, waits or has yet to be found out."""

    def _descends(self, child: int) -> bool:
        """Down to a pending child with a job of its own. With no parallel member above it, nor it being one, nobody
        else can be at work on the run.

        One that a retry has reset may hold what is done: then its states are folded from outputs that this unit may
        not have read (`needed`), so its own claim reads them.
        """
        below = range(child + 1, self.tree.nodes[child].end)
        if (
            layout(self.tree).branch[child]
            or (self.run.nodes[child].due_in or 0.0) > 0
            or any(self.status[ordinal] != PENDING for ordinal in below)
            or not self._may_move()
        ):
            return False
        self._above.append(self.ordinal)
        self._become(child)
        # A guard, where this boundary does not begin it because a gate is to be asked first: it may have gone on by a
        # job of its own since this unit has read it.
        self._draft.change(child, PENDING)
        return True

    def _rises(self) -> bool:
        """Up to the parent of a child that is over, where the job has come down from it."""
        if not self._above or not self._may_move():
            return False
        self._become(self._above.pop())
        return True

    def _crosses(self, pipeline: int) -> bool:
        """On to the next pipeline. One that comes after a live one is untouched with all that is beneath it: a retry
        that resets the earlier one resets the later one as a whole."""
        if self.status[pipeline] != PENDING or not self._may_move():
            return False
        self._become(pipeline)
        return True

    def _turns_back(self, error: dict[str, Any]) -> bool:
        """Back: what has completed last is being undone in the boundary that ends the way forward.

        Only where the whole story is known here; else the job of the compensation is to be claimed, and reads it.
        """
        if not self._is_whole or self.has_steps or not self._may_move():
            return False
        undo = Undo(self.tree, self._as_it_stands(error))
        first = undo.begin()
        move = self._draft.move
        touched = {change.ordinal for change in move.boundary.changes}
        if first.done or any(change.ordinal in touched for change in first.boundary.changes):
            return False  # nothing to undo; or one boundary would change a node twice
        self._become(0)
        move.boundary.changes += first.boundary.changes
        move.starts += first.starts
        move.back = undo
        return True

    def _as_it_stands(self, error: dict[str, Any]) -> RunSnapshot:
        """What a claim of the compensation would read once the boundary in hand is settled."""
        nodes = [NodeSnapshot(*row) for row in zip(self.status, self.attempt, strict=True)]
        for place, ordinal in enumerate(self._completed, 1):
            nodes[ordinal].completed_seq = place
        state = self.states.of(self.ordinal)
        return RunSnapshot(COMPENSATING, self.run.input, state, nodes, error, job_attempt=1)

    def _may_move(self) -> bool:
        return self.moves_left > 0 and self._verdict is None and self._is_at_rest()

    def _become(self, ordinal: int) -> None:
        self.moves_left -= 1
        self.ordinal = ordinal
        self._spent = self.run.last_error = ""
        self._draft.move.boundary.moves += (ordinal,)
