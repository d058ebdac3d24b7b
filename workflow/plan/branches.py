"""The states that the nodes of one unit read.

A parallel member reads the state as it was when its group started, plus what its own branch has
added since. While a unit lives it keeps one state for each branch; a unit that comes back (after
a crash, a wait or a backoff) folds the branch's state again from the input and the outputs, in
the order in which they were merged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workflow.definitions import Tree
from workflow.plan.layout import layout
from workflow.plan.snapshot import RunSnapshot, fold
from workflow.states import PENDING


class States:
    """The states that the actions of one unit read, by branch."""

    def __init__(self, tree: Tree, unit: int, run: RunSnapshot) -> None:
        self._tree = tree
        self._run = run
        self._layout = layout(tree)
        home = self._layout.branch[unit]
        self._by_branch: dict[int, dict[str, Any]] = {home: run.state if home == 0 else self._fold(home)}

    def of(self, ordinal: int) -> dict[str, Any]:
        """The state that the node reads. Never changed in place."""
        return self._by_branch[self._layout.branch[ordinal]]

    def open_group(self, container: int, members: Iterable[int]) -> None:
        """Gives each member of a parallel group its branch, from now or as it was when the group started."""
        nodes = self._run.nodes
        members = tuple(members)
        fresh = all(
            nodes[mate].status == PENDING and nodes[mate].attempt == 0
            for mate in self._layout.mates[members[0]]
        )
        base = self.of(container)
        for member in members:
            self._by_branch[member] = base if fresh else self._fold(member)

    def merge(self, ordinal: int, patch: dict[str, Any]) -> None:
        """Adds an output to the node's branch and to those that its branch lies in."""
        branch = self._layout.branch[ordinal]
        while True:
            state = self._by_branch.get(branch)
            if state is not None:
                self._by_branch[branch] = {**state, **patch}
            if branch == 0:
                return
            branch = self._layout.branch[self._tree.nodes[branch].parent]

    def _fold(self, member: int) -> dict[str, Any]:
        hidden: set[int] = set()
        branch = member
        while branch:
            for mate in self._layout.mates[branch]:
                if mate != branch:
                    hidden.update(range(mate, self._tree.nodes[mate].end))
            branch = self._layout.branch[self._tree.nodes[branch].parent]
        return fold(self._tree, self._run.input, self._run.nodes, hidden)
