"""Static facts about a tree: who is a parallel member, and in which branch each node lies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from workflow.definitions import Stage, Tree


@dataclass(frozen=True, slots=True)
class Layout:
    """`branch` by ordinal: the nearest ancestor, or itself, that is a parallel member; 0 when there is none.

    `mates` by parallel member: its group, itself included. `crew` by node with a job of its own: those of its
    group that have one, itself included. `folds`: the units that fold a state from outputs when they come
    back, since they work on a parallel member, or are one. `waits`: some stage waits.
    """

    branch: list[int]
    mates: dict[int, tuple[int, ...]]
    crew: dict[int, tuple[int, ...]]
    folds: frozenset[int]
    waits: bool


@lru_cache(maxsize=1024)
def layout(tree: Tree) -> Layout:
    """The tree's layout, computed once for each definition."""
    branch = [0] * len(tree.nodes)
    mates: dict[int, tuple[int, ...]] = {}
    crews: dict[int, tuple[int, ...]] = {}
    for node in tree.nodes:
        for group in node.groups:
            crew = tuple(member for member in group if tree.nodes[member].own_job)
            crews.update(dict.fromkeys(crew, crew))
            for member in group:
                if len(group) > 1:
                    branch[member] = member
                    mates[member] = group
                else:
                    branch[member] = branch[node.ordinal]
    folds = frozenset(node.unit for node in tree.nodes if branch[node.ordinal])
    waits = any(isinstance(n.definition, Stage) and n.definition.wait_for is not None for n in tree.nodes)
    return Layout(branch, mates, crews, folds, waits)


Ranges = list[tuple[int, int]]
"""Ordinals from the first to the last of each pair, both included."""


def needed(tree: Tree, unit: int) -> Ranges:
    """What a unit reads; 0 for the whole tree (compensation).

    A unit reads its own subtree and the pipelines' statuses, and the run's state says the rest. One that
    folds a state also reads what came before it, without its mates' subtrees: these it must not see.
    """
    last = len(tree.nodes) - 1
    if unit == 0:
        return [(1, last)]
    end = tree.nodes[unit].end - 1
    pipelines = [p for (p,) in tree.nodes[0].groups if not unit <= p <= end]
    if unit not in layout(tree).folds:
        return [*((p, p) for p in pipelines), (unit, end)]
    return visible(tree, unit) + [(p, p) for p in pipelines if p > end]


def visible(tree: Tree, ordinal: int) -> Ranges:
    """What a node may read the outputs of: all that is before it, and its own subtree, without those that run
    beside it or beside a node that it lies in."""
    facts = layout(tree)
    found: Ranges = []
    last = tree.nodes[ordinal].end - 1
    branch = facts.branch[ordinal]
    while branch:
        # A group's members lie side by side: those before the branch are left out, those after it come later
        # than all that is visible.
        found.append((branch, last))
        last = facts.mates[branch][0] - 1
        branch = facts.branch[tree.nodes[branch].parent]
    return [(1, last), *reversed(found)]
