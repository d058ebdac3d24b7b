"""What a unit knows of its run when it is claimed, and the states its actions read.

A parallel member reads the state as it was when its group started, plus what its own branch has
added since. While a unit lives it keeps one state for each branch; a unit that comes back (after
a crash, a wait or a backoff) folds the branch's state again from the input and the outputs, in
the order in which they were merged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from workflow.definitions import Tree
from workflow.states import COMPLETED, PENDING


@dataclass(slots=True)
class NodeSnapshot:
    """One node's row. `due_in`: seconds until it may go on, or None."""

    status: str = PENDING
    attempt: int = 0
    compensate_attempt: int = 0
    due_in: float | None = None
    output: Any = None
    error: dict[str, Any] | None = None
    completed_seq: int | None = None
    wait_outcome: dict[str, Any] | None = None


@dataclass(slots=True)
class RunSnapshot:
    """A claimed run. `nodes` by ordinal; index 0 stands for the run itself and is never read."""

    status: str
    input: Any
    state: dict[str, Any]
    nodes: list[NodeSnapshot]
    error: dict[str, Any] | None = None
    last_error: str = ""
    """The job's: tells why an attempt that is still `running` at the claim was lost."""


@dataclass(slots=True)
class _Layout:
    """Static facts about a tree that states need: who is a parallel member, and in which branch each node lies."""

    branch: list[int] = field(default_factory=list)
    """By ordinal: the nearest ancestor, or itself, that is a parallel member; 0 when there is none."""
    mates: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By parallel member: its group, itself included."""


@lru_cache(maxsize=1024)
def layout(tree: Tree) -> _Layout:
    """The tree's layout, computed once for each definition."""
    found = _Layout(branch=[0] * len(tree.nodes))
    for node in tree.nodes:
        for group in node.groups:
            for member in group:
                if len(group) > 1:
                    found.branch[member] = member
                    found.mates[member] = group
                else:
                    found.branch[member] = found.branch[node.ordinal]
    return found


def seed(value: Any) -> dict[str, Any]:
    """The state that a validated input starts a run with."""
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"input": value}


def nest(key: str, output: Any) -> dict[str, Any] | None:
    """The patch that an output merges into the state: objects as they are, the rest under `key`, null nothing."""
    if output is None:
        return None
    return output if isinstance(output, dict) else {key: output}


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


def fold(tree: Tree, run_input: Any, nodes: list[NodeSnapshot], hidden: Iterable[int] = ()) -> dict[str, Any]:
    """The state made again from the input and the outputs still standing, in the order of their completion."""
    skip = frozenset(hidden)
    standing = sorted(
        (node.completed_seq or 0, ordinal)
        for ordinal, node in enumerate(nodes)
        if ordinal and node.status == COMPLETED and node.output is not None and ordinal not in skip
    )
    state = dict(seed(run_input))
    for _, ordinal in standing:
        state.update(nest(tree.nodes[ordinal].key, nodes[ordinal].output) or {})
    return state


def needed(tree: Tree, unit: int) -> list[tuple[int, int]]:
    """The ranges of ordinals, both ends included, that a unit reads; 0 for the whole tree (compensation).

    A unit outside every parallel group reads its own subtree and the pipelines' statuses: the run's state
    says the rest. A parallel member also folds its state from whatever is not in its mates' subtrees.
    """
    last = len(tree.nodes) - 1
    if unit == 0:
        return [(1, last)]
    end = tree.nodes[unit].end - 1
    pipelines = [(p, p) for group in tree.nodes[0].groups for p in group if not unit <= p <= end]
    facts = layout(tree)
    branch = facts.branch[unit]
    if branch == 0:
        return [*pipelines, (unit, end)]
    hidden: list[tuple[int, int]] = []
    while branch:
        hidden += [(mate, tree.nodes[mate].end) for mate in facts.mates[branch] if mate != branch]
        branch = facts.branch[tree.nodes[branch].parent]
    ranges = []
    first = 1
    for low, high in sorted(hidden):
        if low > first:
            ranges.append((first, low - 1))
        first = max(first, high)
    if first <= end:
        ranges.append((first, end))
    return ranges + [(p, p) for p, _ in pipelines if p > end]
