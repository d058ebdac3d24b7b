"""Where nodes stood that a run has and its definition has no more."""

from __future__ import annotations

from typing import Any

import pytest

from workflow import Action, Pipeline, Stage, WaitFor, Workflow, parallel
from workflow.definitions import Gone, Tree, TreeNode, beside, placed
from workflow.plan.layout import layout
from workflow.plan.removed import Origin, removed


def act(name: str, **options: Any) -> Action:
    return Action(name, lambda state: None, **options)


KEPT = Workflow("w", stages=[Stage("s", actions=[act("b"), parallel(act("d"), act("e"))])]).tree
RUN = ["w", "w.s", *(f"w.s.{name}" for name in "abcdef")]


def gone(*groups: str) -> list[tuple[str, str | None, str | None]]:
    """What `KEPT` has no more of a run whose actions `a` to `f` had these groups. Groups are given as their names."""
    first = {name: RUN.index(f"w.s.{group[0]}") + 1 for group in groups for name in group}
    origins = {path: Origin(n, False, first.get(path[4:])) for n, path in enumerate(RUN, 1)}
    return [(node.path, node.beside, node.before) for node in removed(KEPT, origins)]


def test_they_come_between_their_siblings_as_in_the_tree_of_the_run() -> None:
    assert gone("de") == [("w.s.a", None, "w.s.b"), ("w.s.c", None, "w.s.d"), ("w.s.f", None, None)]


def test_one_that_ran_beside_a_sibling_stays_beside_it() -> None:
    assert gone("ab", "cdef") == [
        ("w.s.a", "w.s.b", "w.s.b"),
        ("w.s.c", "w.s.d", "w.s.d"),
        ("w.s.f", "w.s.d", None),
    ]


def test_one_whose_mates_are_all_gone_had_its_turn_where_they_had_theirs() -> None:
    tree = Workflow("w", stages=[Stage("s", actions=[act("b")])]).tree
    first = {"w.s.x": 3, "w.s.y": 3}
    origins = {
        path: Origin(n, False, first.get(path))
        for n, path in enumerate(["w", "w.s", "w.s.x", "w.s.y", "w.s.b"], 1)
    }
    assert [(node.path, node.beside, node.before) for node in removed(tree, origins)] == [
        ("w.s.x", None, "w.s.b"),
        ("w.s.y", None, "w.s.b"),
    ]


OLD = Workflow(
    "w",
    pipelines=[
        Pipeline(
            "p",
            [
                Stage("x", actions=[act("x1", via="queue")]),
                parallel(Stage("y", run=lambda state: None), Stage("v", wait_for=WaitFor("go"))),
            ],
        ),
        Pipeline("q", [Stage("s", actions=[act("a"), parallel(act("b"), act("c"), act("d"))])]),
    ],
).tree


def reduced(*actions: Any) -> Tree:
    return Workflow("w", pipelines=[Pipeline("q", [Stage("s", actions=list(actions))])]).tree


def put_back(new: Tree) -> Tree:
    groups = beside(OLD)
    origins = {node.path: Origin(node.ordinal, node.own_job, groups[node.ordinal]) for node in OLD.nodes[1:]}
    kept = tuple(node.ordinal > 0 and origins[node.path].own_job for node in new.nodes)
    return placed(new, kept, removed(new, origins))


def shape(tree: Tree, node: TreeNode) -> list[list[str]]:
    return [sorted(tree.nodes[child].path for child in group) for group in node.groups]


@pytest.mark.parametrize(
    "new",
    [
        reduced(parallel(act("b"), act("d"))),
        reduced(act("a"), act("d")),
        reduced(act("c")),
        reduced(parallel(act("b"), act("c"), act("d"))),
        reduced(parallel(act("a"), act("d"))),
    ],
    ids=["a mate", "two mates", "all but one", "the first", "one that was regrouped"],
)
def test_what_ran_side_by_side_does_so_again(new: Tree) -> None:
    found = put_back(new)
    assert [node.ordinal for node in found.nodes] == list(range(len(OLD.nodes)))
    for node in OLD.nodes:
        same = found.by_path[node.path] if node.path else found.nodes[0]
        assert (same.kind, same.key, same.own_job) == (node.kind, node.key, node.own_job)
        assert same.end - same.ordinal == node.end - node.ordinal
        assert found.nodes[same.unit].path == OLD.nodes[node.unit].path
        assert same.parent == -1 or found.nodes[same.parent].path == OLD.nodes[node.parent].path
        assert isinstance(same.definition, Gone) == (node.path not in new.by_path and bool(node.path))
    mates = layout(found).mates
    kept = [found.by_path[node.path] for node in new.nodes[1:] if node.path in ("q.s.b", "q.s.c", "q.s.d")]
    groups = [sorted(found.nodes[mate].path for mate in mates.get(node.ordinal, ())) for node in kept]
    assert all({"q.s.b", "q.s.c", "q.s.d"} <= set(group) for group in groups)


def test_a_tree_comes_out_as_it_was() -> None:
    found = put_back(reduced(parallel(act("b"), act("d"))))
    inner = [node for node in OLD.nodes if not node.path.startswith("p")]
    assert [shape(found, found.by_path[n.path] if n.path else found.nodes[0]) for n in inner] == [
        shape(OLD, n) for n in inner
    ]
