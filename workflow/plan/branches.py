"""The states that the nodes of one unit read.

A parallel member reads the state as it was when its group started, plus what its own branch has
added since. While a unit lives it keeps one state for each branch; a unit that comes back (after
a crash, a wait or a backoff) folds the branch's state again from the input and the outputs, in
the order in which they were merged. Either way the keys stand as in a state that is read from the
database, so that a handler iterates over the same whenever it is called again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from workflow.definitions import Tree
from workflow.payload import in_order
from workflow.plan.layout import layout, visible
from workflow.plan.snapshot import RunSnapshot, fold, merged, standing


class States:
    """The states that the actions of one unit read, by branch."""

    def __init__(self, tree: Tree, unit: int, run: RunSnapshot) -> None:
        self._tree = tree
        self._run = run
        self._layout = layout(tree)
        self._since: list[tuple[int, dict[str, Any]]] = []
        """Of a run of another version: what was merged since the claim, in order, which the snapshot's nodes lack."""
        home = self._layout.branch[unit]
        self._by_branch = {home: self._caught_up(unit) if home == 0 else self._fold(home)}
        self._own: set[int] = set()
        """Branches whose state nobody else holds, so that it may be changed in place."""

    def of(self, ordinal: int) -> dict[str, Any]:
        """The state that the node reads. From here on it is never changed in place."""
        branch = self._layout.branch[ordinal]
        self._own.discard(branch)
        return self._by_branch[branch]

    def open_group(self, container: int, members: Sequence[int]) -> None:
        """Gives each of these members of a parallel group its branch.

        Its state is the container's without what the group has added, and with what the member's own nodes
        have. A group that has added nothing may start from the container's state as it is.
        """
        if not members:
            return
        tree, nodes = self._tree, self._run.nodes
        mates = self._layout.mates[members[0]]
        added = standing(nodes, range(mates[0], tree.nodes[mates[-1]].end))
        base = self._fold(members[0], whole_group=True) if added else self.of(container)
        own: dict[int, list[int]] = {}
        for ordinal in added:
            member = ordinal
            while tree.nodes[member].parent != container:
                member = tree.nodes[member].parent
            own.setdefault(member, []).append(ordinal)
        for member in members:
            self._by_branch[member] = merged(tree, nodes, base, own[member]) if member in own else base

    def merge(self, ordinal: int, patch: dict[str, Any]) -> None:
        """Adds an output to the node's branch and to those that its branch lies in."""
        # Else nothing is ever folded that has come since, and the outputs would be kept for nothing.
        if self._run.tree is not None:
            self._since.append((ordinal, patch))
        branch = self._layout.branch[ordinal]
        while True:
            state = self._by_branch.get(branch)
            if state is not None:
                if branch not in self._own:
                    self._own.add(branch)
                    state = self._by_branch[branch] = dict(state)
                known = len(state)
                state.update(patch)
                if len(state) != known:
                    self._by_branch[branch] = in_order(state)
            if branch == 0:
                return
            branch = self._layout.branch[self._tree.nodes[branch].parent]

    def _caught_up(self, unit: int) -> dict[str, Any]:
        """The run's state, with what queued children have added between its reading and that of the nodes."""
        run, nodes = self._run, self._run.nodes
        if run.seq is None:
            return run.state
        below = range(unit, self._tree.nodes[unit].end)
        newer = [n for n in below if (nodes[n].completed_seq or 0) > run.seq]
        return merged(self._tree, nodes, run.state, standing(nodes, newer)) if newer else run.state

    def _fold(self, member: int, *, whole_group: bool = False) -> dict[str, Any]:
        """The state of a member's branch, made from the outputs; for the `whole_group`, as it was at its start."""
        end = self._layout.mates[member][0] if whole_group else len(self._tree.nodes)
        ranges = [range(low, min(high + 1, end)) for low, high in visible(self._tree, member)]
        state = fold(self._tree, self._run.input, self._run.nodes, chain.from_iterable(ranges))
        # Only where a member is over that a retry could not reset (`Gone`) has anything come since.
        for ordinal, patch in self._since:
            if any(ordinal in among for among in ranges):
                state.update(patch)
        return in_order(state) if self._since else state
