"""Static facts about a tree: who is a parallel member, and in which branch each node lies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from workflow.definitions import Stage, Tree


@dataclass(frozen=True, slots=True)
class Layout:
    """`branch` by ordinal: the nearest ancestor, or itself, that is a parallel member; 0 when there is none.

    `mates` by parallel member: its group, itself included. `folds`: the units that fold a state from outputs
    when they come back, since they work on a parallel member, or are one. `waits`: some stage waits.
    """

    branch: list[int]
    mates: dict[int, tuple[int, ...]]
    folds: frozenset[int]
    waits: bool


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
    folds = frozenset(node.unit for node in tree.nodes if branch[node.ordinal])
    waits = any(isinstance(n.definition, Stage) and n.definition.wait_for is not None for n in tree.nodes)
    return Layout(branch, mates, folds, waits)


def needed(tree: Tree, unit: int) -> list[tuple[int, int]]:
    """The ranges of ordinals, both ends included, that a unit reads; 0 for the whole tree (compensation).

    A unit reads its own subtree and the pipelines' statuses, and the run's state says the rest. One that
    folds a state also reads what came before it, without its mates' subtrees: these it must not see.
    """
    last = len(tree.nodes) - 1
    if unit == 0:
        return [(1, last)]
    end = tree.nodes[unit].end - 1
    facts = layout(tree)
    pipelines = [p for (p,) in tree.nodes[0].groups if not unit <= p <= end]
    if unit not in facts.folds:
        return [*((p, p) for p in pipelines), (unit, end)]
    hidden: list[tuple[int, int]] = []
    branch = facts.branch[unit]
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
    return ranges + [(p, p) for p in pipelines if p > end]
