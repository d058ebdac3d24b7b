"""Whether a unit's job moves on to another node of its run, where otherwise a job would be added for that node. Pure.

A job that is added has to be claimed: a commit of its own, and the run and its nodes read again, only to learn what
this plan knows already. So where the unit has its run to itself its job becomes the other node's in the very boundary
that comes to it: down to a queued child that is alone in its group, up to the parent when that child is over, on to
the next pipeline. From there on it is as if the job had been claimed as that node's. Whether somebody else comes first
(a pause, a higher priority) the database decides: it refuses such a boundary as a whole.

A run that turns back goes through the queue: its compensation reads the whole tree and its ledger anyway, and without
the claim it was measured to cost no less.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from workflow.definitions import Tree
from workflow.errors import FailureCode
from workflow.plan.draft import Draft
from workflow.plan.layout import layout
from workflow.plan.snapshot import RunSnapshot
from workflow.states import PENDING


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
        self._draft = draft
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
        else can be at work on the run."""
        if (
            layout(self.tree).branch[child]
            or (self.run.nodes[child].due_in or 0.0) > 0
            or not self._may_move()
        ):
            return False
        self._above.append(self.ordinal)
        self._become(child)
        return True

    def _rises(self) -> bool:
        """Up to the parent of a child that is over, where the job has come down from it."""
        if not self._above or not self._may_move():
            return False
        self._become(self._above.pop())
        return True

    def _crosses(self, pipeline: int) -> bool:
        """On to the next pipeline. One that is pending is untouched with all that is beneath it."""
        if self.status[pipeline] != PENDING or not self._may_move():
            return False
        self._become(pipeline)
        return True

    def _may_move(self) -> bool:
        return self.moves_left > 0 and self._verdict is None and self._is_at_rest()

    def _become(self, ordinal: int) -> None:
        self.moves_left -= 1
        self.ordinal = ordinal
        self._spent = self.run.last_error = ""
        self._draft.move.boundary.moves += (ordinal,)
