"""The tree of nodes that a definition gives each of its runs, flat and ready for the planner."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from workflow.definitions.actions import Action
from workflow.definitions.stages import Stage

if TYPE_CHECKING:
    from workflow.definitions.pipelines import Pipeline, Workflow

NodeKind = Literal["run", "pipeline", "stage", "action"]

_KINDS: Final[tuple[NodeKind, ...]] = ("pipeline", "stage", "action")
"""By the number of dots in the path."""

_FINGERPRINT_LENGTH = 32  # 128 bits of the SHA-256


@dataclass(frozen=True, slots=True)
class Gone:
    """A node that is over in a run, and that the definition which the run goes on with has no more.

    own_job: whether it had a job of its own
    beside: path of a sibling of the definition that it ran beside, None when it had its turn alone
    before: path of the sibling that had its turn next, None when it was the last one
    """

    path: str
    own_job: bool
    beside: str | None = None
    before: str | None = None


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One node. Ordinals are places in tree order: depth first, a parent before its children, counted from 1.

    ordinal: its index in ``Tree.nodes``; 0 is the root, which stands for the run itself
    path: ``<pipeline>.<stage>[.<action>]``, "" for the root
    parent: ordinal of its parent; 0 for a pipeline, -1 for the root
    key: where a scalar or list output nests in the state
    groups: ordinals of its children, by execution group, in order
    own_job: whether it runs in a job of its own (pipelines, and what is placed ``via="queue"``)
    unit: ordinal of the nearest node with a job of its own, itself included; 0 for the root
    end: one past the last ordinal of its subtree
    """

    ordinal: int
    path: str
    name: str
    kind: NodeKind
    parent: int
    key: str
    groups: tuple[tuple[int, ...], ...]
    definition: Workflow | Pipeline | Stage | Action | Gone
    own_job: bool
    unit: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """All nodes of a workflow, by ordinal and by path.

    ``by_path`` leaves the root out: nobody can name it. ``fingerprint`` is equal for two trees when the runs
    of one can go on in the other, node for node. ``has_groups`` says whether some nodes run at the same time.
    """

    nodes: tuple[TreeNode, ...]
    by_path: dict[str, TreeNode]
    fingerprint: str
    has_groups: bool


def compile_tree(workflow: Workflow) -> Tree:
    """The tree of ``workflow``. Pure; takes a few microseconds a node."""
    nodes = tuple(_root_and_below(workflow))
    return Tree(
        nodes=nodes,
        by_path={node.path: node for node in nodes[1:]},
        fingerprint=_fingerprint(nodes),
        has_groups=any(len(group) > 1 for node in nodes for group in node.groups),
    )


def beside(tree: Tree) -> list[int | None]:
    """By ordinal: the first member of the parallel group that a node runs in, None for one that has its turn alone."""
    first: list[int | None] = [None] * len(tree.nodes)
    for group in (group for node in tree.nodes for group in node.groups if len(group) > 1):
        for member in group:
            first[member] = group[0]
    return first


@lru_cache(maxsize=128)
def placed(tree: Tree, own_jobs: tuple[bool, ...], gone: tuple[Gone, ...] = ()) -> Tree:
    """The tree as a run of another version has it. ``own_jobs`` by ordinal: with jobs where the run has them, since its
    rows and jobs were made so, and events, deadlines and sweeps go by them. ``gone``, in the order of the run's own
    tree: with the nodes that only the run has, whose outputs count as they did."""
    if not gone and all(node.own_job == own for node, own in zip(tree.nodes, own_jobs, strict=True)):
        return tree
    groups = {node.path: _paths(tree, node) for node in tree.nodes}
    for old in gone:
        siblings = groups[old.path.rpartition(".")[0]]
        if old.beside is not None:
            next(group for group in siblings if old.beside in group).append(old.path)
        else:
            turns = (turn for turn, group in enumerate(siblings) if old.before in group)
            siblings.insert(next(turns, len(siblings)), [old.path])
        groups[old.path] = []
    known: dict[str, TreeNode | Gone] = {old.path: old for old in gone}
    known |= {
        node.path: replace(node, own_job=own_job) for node, own_job in zip(tree.nodes, own_jobs, strict=True)
    }
    nodes: list[TreeNode] = []
    _place("", -1, groups, known, nodes)
    has_groups = any(len(group) > 1 for node in nodes for group in node.groups)
    return Tree(tuple(nodes), {node.path: node for node in nodes[1:]}, _fingerprint(nodes), has_groups)


def _paths(tree: Tree, node: TreeNode) -> list[list[str]]:
    return [[tree.nodes[child].path for child in group] for group in node.groups]


def _place(
    path: str,
    parent: int,
    groups: dict[str, list[list[str]]],
    known: dict[str, TreeNode | Gone],
    nodes: list[TreeNode],
) -> None:
    """Adds the node at ``path`` and all beneath it to ``nodes``, where their ordinals are from here on."""
    ordinal, node = len(nodes), known[path]
    if isinstance(node, Gone):
        name = path.rpartition(".")[2]
        key = name.partition("#")[0]  # an implicit action has the key of its stage
        kind = _KINDS[path.count(".")]
        node = TreeNode(ordinal, path, name, kind, parent, key, (), node, node.own_job, 0, 0)
    unit = ordinal if node.own_job else nodes[parent].unit if ordinal else 0
    node = replace(node, ordinal=ordinal, parent=parent, unit=unit)
    nodes.append(node)
    children: list[tuple[int, ...]] = []
    for group in groups[path]:
        members = []
        for child in group:
            members.append(len(nodes))
            _place(child, ordinal, groups, known, nodes)
        children.append(tuple(members))
    nodes[ordinal] = replace(node, groups=tuple(children), end=len(nodes))


def _root_and_below(workflow: Workflow) -> Iterator[TreeNode]:
    groups = _ordinals(1, [[pipeline.size] for pipeline in workflow.pipelines])
    end = 1 + workflow.size
    yield TreeNode(0, "", workflow.name, "run", -1, workflow.name, groups, workflow, False, 0, end)
    for (ordinal,), pipeline in zip(groups, workflow.pipelines, strict=True):
        yield from _pipeline_and_below(pipeline, ordinal)


def _pipeline_and_below(pipeline: Pipeline, at: int) -> Iterator[TreeNode]:
    name = pipeline.name
    groups = _ordinals(at + 1, [[stage.size for stage in group] for group in pipeline.items])
    yield TreeNode(at, name, name, "pipeline", 0, name, groups, pipeline, True, at, at + pipeline.size)
    for ordinals, group in zip(groups, pipeline.items, strict=True):
        for ordinal, stage in zip(ordinals, group, strict=True):
            yield from _stage_and_below(stage, ordinal, at, name)


def _stage_and_below(stage: Stage, at: int, pipeline: int, prefix: str) -> Iterator[TreeNode]:
    path = f"{prefix}.{stage.name}"
    own_job = stage.via == "queue"
    unit = at if own_job else pipeline
    groups = _ordinals(at + 1, [[1] * len(group) for group in stage.items])
    yield TreeNode(
        at, path, stage.name, "stage", pipeline, stage.name, groups, stage, own_job, unit, at + stage.size
    )
    for ordinals, group in zip(groups, stage.items, strict=True):
        for ordinal, action in zip(ordinals, group, strict=True):
            queued = action.via == "queue"
            yield TreeNode(
                ordinal=ordinal,
                path=f"{path}.{action.name}",
                name=action.name,
                kind="action",
                parent=at,
                key=stage.name if action.implicit else action.name,
                groups=(),
                definition=action,
                own_job=queued,
                unit=ordinal if queued else unit,
                end=ordinal + 1,
            )


def _ordinals(first: int, sizes: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    """The children's ordinals, group by group, from the sizes of their subtrees and the ``first`` ordinal."""
    groups = []
    for group in sizes:
        ordinals = []
        for size in group:
            ordinals.append(first)
            first += size
        groups.append(tuple(ordinals))
    return tuple(groups)


def _fingerprint(nodes: Sequence[TreeNode]) -> str:
    digest = hashlib.sha256()
    for node in nodes:
        wait = node.definition.wait_for if isinstance(node.definition, Stage) else None
        event = "" if wait is None else wait.event
        # An event's type is the user's text: repr keeps it from imitating the separators around it.
        digest.update(f"{node.path}|{node.kind}|{node.groups}|{node.own_job:d}|{event!r}\n".encode())
    return digest.hexdigest()[:_FINGERPRINT_LENGTH]
