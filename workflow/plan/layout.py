"""Static facts about a tree: who is a parallel member, and in which branch each node lies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from workflow.definitions import Tree


@dataclass(frozen=True, slots=True)
class Layout:
    """`branch` by ordinal: the nearest ancestor, or itself, that is a parallel member; 0 when there is none.

    `mates` by parallel member: its group, itself included.
    """

    branch: list[int]
    mates: dict[int, tuple[int, ...]]


@lru_cache(maxsize=1024)
def layout(tree: Tree) -> Layout:
    """The tree's layout, computed once for each definition."""
    branch = [0] * len(tree.nodes)
    mates: dict[int, tuple[int, ...]] = {}
    for node in tree.nodes:
        for group in node.groups:
            for member in group:
                if len(group) > 1:
                    branch[member] = member
                    mates[member] = group
                else:
                    branch[member] = branch[node.ordinal]
    return Layout(branch, mates)


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
