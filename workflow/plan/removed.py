"""Nodes that are over in a run, and that the definition which goes on with it has no more: where they stood. Pure.

Their outputs stay part of the state, so they keep a place in the tree that the plan walks. The run's rows tell the
order of its own tree, but not what ran side by side: that its history tells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from workflow import states
from workflow.definitions import Gone, Tree

ENDS: Final = frozenset(
    {
        states.EVENT_ACTION_COMPLETED,
        states.EVENT_ACTION_FAILED,
        states.EVENT_ACTION_SKIPPED,
        states.EVENT_STAGE_COMPLETED,
        states.EVENT_STAGE_FAILED,
        states.EVENT_STAGE_SKIPPED,
    }
)
BEGINS: Final = frozenset({states.EVENT_ACTION_STARTED, states.EVENT_WAITING})
TURNS: Final = ENDS | BEGINS
"""Names of the history entries that tell when nodes had their turn."""

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """A history entry of one of those names, or of a retry, which has no `path`."""

    seq: int
    name: str
    path: str | None


def removed(
    tree: Tree, ordinals: Mapping[str, int], own_jobs: Mapping[str, bool], past: Sequence[Entry]
) -> tuple[Gone, ...]:
    """The nodes that the run alone has, in the order of its own tree. `ordinals` and `own_jobs`: of all its nodes, by
    path. `past`: its history's entries of `TURNS` and of retries, in order.

    A node ran beside a sibling if both were begun before either of them was over, in the stretch between two retries in
    which it ended; one whose siblings had all yet to begin when it was over was before them.
    """
    paths = sorted(ordinals, key=lambda path: ordinals[path])
    mates = _mates(paths, frozenset(_overlapping(tree, _pairs(paths), past)))
    found = []
    for path in paths:
        if path in tree.by_path:
            continue
        above = path.rpartition(".")[0]
        parent = tree.by_path.get(above) if above else tree.nodes[0]
        if parent is None:  # it went with its parent
            found.append(Gone(path, own_jobs[path]))
            continue
        beside = next((mate for mate in mates[path] if mate in tree.by_path), None)
        turns = [[tree.nodes[child].path for child in group] for group in parent.groups]
        later = (turn[0] for turn in turns if min(ordinals[member] for member in turn) > ordinals[path])
        found.append(Gone(path, own_jobs[path], beside, next(later, None)))
    return tuple(found)


def _pairs(paths: Iterable[str]) -> list[Pair]:
    """Siblings that follow one another, of those that may be in one group."""
    before: dict[str, str] = {}
    pairs = []
    for path in paths:
        above = path.rpartition(".")[0]
        if above in before:
            pairs.append((before[above], path))
        if above:
            before[above] = path
    return pairs


def _overlapping(tree: Tree, pairs: Iterable[Pair], entries: Sequence[Entry]) -> Iterator[Pair]:
    """Which of these were in one group: of the definition, or going by the history."""
    groups = {
        tree.nodes[member].path: [tree.nodes[mate].path for mate in group]
        for node in tree.nodes
        for group in node.groups
        for member in group
    }
    for one, other in pairs:
        if one in groups and other in groups:
            is_one_group = other in groups[one]
        elif other in groups:
            is_one_group = _were_beside(one, groups[other], entries)
        elif one in groups:
            is_one_group = _were_beside(other, groups[one], entries)
        else:
            is_one_group = _were_beside(one, [other], entries) or _were_beside(other, [one], entries)
        if is_one_group:
            yield one, other


def _mates(paths: Iterable[str], together: Collection[Pair]) -> dict[str, list[str]]:
    """By path: the group that each node of the run had. `paths` in the order of its tree."""
    below: dict[str, list[str]] = {}
    for path in paths:
        below.setdefault(path.rpartition(".")[0], []).append(path)
    return {
        path: group for children in below.values() for group in _grouped(children, together) for path in group
    }


def _grouped(children: Iterable[str], together: Collection[Pair]) -> list[list[str]]:
    groups: list[list[str]] = []
    for path in children:
        if groups and (groups[-1][-1], path) in together:
            groups[-1].append(path)
        else:
            groups.append([path])
    return groups


def _were_beside(path: str, siblings: Iterable[str], entries: Sequence[Entry]) -> bool:
    """Whether any of these siblings was at work while this was."""
    own = [entry for entry in entries if _lies(entry, path)]
    if not own:
        return False
    end = own[-1].seq
    since = max((entry.seq for entry in entries if entry.path is None and entry.seq < end), default=0)
    turn = [entry for entry in entries if since < entry.seq <= end]
    begin = min((entry.seq for entry in turn if entry.name in BEGINS and _lies(entry, path)), default=end)
    for sibling in siblings:
        theirs = [entry for entry in turn if _lies(entry, sibling)]
        begun = any(entry.name in BEGINS for entry in theirs)
        over = any(e.name in ENDS and e.path == sibling and e.seq < begin for e in theirs)
        if begun and not over:
            return True
    return False


def _lies(entry: Entry, path: str) -> bool:
    return entry.path is not None and (entry.path == path or entry.path.startswith(f"{path}."))
