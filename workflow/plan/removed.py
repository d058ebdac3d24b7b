"""Nodes that are over in a run, and that the definition which goes on with it has no more: where they stood. Pure.

Their outputs stay part of the state, so they keep a place in the tree that the plan walks. The run's rows tell the
order of its own tree, and what ran side by side in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from workflow.definitions import Gone, Tree


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node is in the run's own tree: its ordinal, whether it has a job of its own, and the ordinal of the first
    member of the parallel group that it runs in, None for one that has its turn alone."""

    ordinal: int
    own_job: bool
    beside: int | None


def removed(tree: Tree, origins: Mapping[str, Origin]) -> tuple[Gone, ...]:
    """The nodes that the run alone has, in the order of its own tree. `origins`: of all its nodes, by path.

    One whose mates the definition still has stays beside them; any other had its turn between its siblings.
    """
    mates: defaultdict[int | None, list[str]] = defaultdict(list)
    for path, origin in origins.items():
        if path in tree.by_path:
            mates[origin.beside].append(path)
    found = []
    for path in sorted(origins.keys() - tree.by_path.keys(), key=lambda path: origins[path].ordinal):
        origin = origins[path]
        above = path.rpartition(".")[0]
        parent = tree.by_path.get(above) if above else tree.nodes[0]
        if parent is None:  # it went with its parent
            found.append(Gone(path, origin.own_job))
            continue
        beside = mates[origin.beside][0] if origin.beside is not None and mates[origin.beside] else None
        turns = [[tree.nodes[child].path for child in group] for group in parent.groups]
        later = (turn[0] for turn in turns if min(origins[mate].ordinal for mate in turn) > origin.ordinal)
        found.append(Gone(path, origin.own_job, beside, next(later, None)))
    return tuple(found)
