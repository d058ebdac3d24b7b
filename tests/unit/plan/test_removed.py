"""Where nodes stood that a run has and its definition has no more."""

from __future__ import annotations

from typing import Any

import pytest

from workflow import Action, Pipeline, Stage, WaitFor, Workflow, parallel, states
from workflow.definitions import Gone, Tree, TreeNode, placed
from workflow.plan.layout import layout
from workflow.plan.removed import Entry, removed

BEGUN, OVER, FAILED = states.EVENT_ACTION_STARTED, states.EVENT_ACTION_COMPLETED, states.EVENT_ACTION_FAILED


def act(name: str, **options: Any) -> Action:
    return Action(name, lambda state: None, **options)


def history(*entries: tuple[str, str]) -> list[Entry]:
    """A retry is an entry without a path."""
    return [Entry(seq, name, path or None) for seq, (name, path) in enumerate(entries, 1)]


KEPT = Workflow("w", stages=[Stage("s", actions=[act("b"), parallel(act("d"), act("e"))])]).tree
RUN = {
    path: n for n, path in enumerate(["w", "w.s", "w.s.a", "w.s.b", "w.s.c", "w.s.d", "w.s.e", "w.s.f"], 1)
}


def gone(*entries: tuple[str, str], run: dict[str, int] = RUN) -> list[tuple[str, str | None, str | None]]:
    found = removed(KEPT, run, dict.fromkeys(run, False), history(*entries))
    return [(node.path, node.beside, node.before) for node in found]


def test_they_come_between_their_siblings_as_in_the_tree_of_the_run() -> None:
    one_after_another = [(name, f"w.s.{path}") for path in "abcdef" for name in (BEGUN, OVER)]
    assert gone(*one_after_another) == [
        ("w.s.a", None, "w.s.b"),
        ("w.s.c", None, "w.s.d"),
        ("w.s.f", None, None),
    ]


def test_one_that_was_at_work_while_a_sibling_was_ran_beside_it() -> None:
    started = [(BEGUN, "w.s.d"), (BEGUN, "w.s.c")]
    assert ("w.s.c", "w.s.d", "w.s.d") in gone(*started, (OVER, "w.s.c"))
    assert ("w.s.c", "w.s.d", "w.s.d") in gone(*started, (OVER, "w.s.d"), (OVER, "w.s.c"))
    assert ("w.s.c", "w.s.d", "w.s.d") in gone(*reversed(started), (OVER, "w.s.c"), (OVER, "w.s.d"))


def test_what_was_so_before_a_retry_that_did_it_again_tells_nothing() -> None:
    before = [(BEGUN, "w.s.c"), (OVER, "w.s.c"), (BEGUN, "w.s.d"), (FAILED, "w.s.d")]
    again = [("resumed", ""), *before[:2], (BEGUN, "w.s.d")]
    assert ("w.s.c", None, "w.s.d") in gone(*before, *again)
    assert ("w.s.c", "w.s.d", "w.s.d") in gone((BEGUN, "w.s.d"), *before, ("resumed", ""))


def test_a_sibling_whose_name_begins_alike_is_another() -> None:
    run = {"w": 1, "w.s": 2, "w.s.b-1": 3, "w.s.b": 4, "w.s.d": 5, "w.s.e": 6}
    found = gone((BEGUN, "w.s.b-1"), (BEGUN, "w.s.b"), (OVER, "w.s.b-1"), run=run)
    assert found == [("w.s.b-1", "w.s.b", "w.s.b")]


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


def put_back(new: Tree, past: list[Entry]) -> Tree:
    ordinals = {node.path: node.ordinal for node in OLD.nodes[1:]}
    own_jobs = {node.path: node.own_job for node in OLD.nodes[1:]}
    kept = tuple(node.ordinal > 0 and own_jobs[node.path] for node in new.nodes)
    return placed(new, kept, removed(new, ordinals, own_jobs, past))


def shape(tree: Tree, node: TreeNode) -> list[list[str]]:
    return [sorted(tree.nodes[child].path for child in group) for group in node.groups]


PAST = history(
    (BEGUN, "q.s.a"),
    (OVER, "q.s.a"),
    *((BEGUN, f"q.s.{name}") for name in "bcd"),
    *((OVER, f"q.s.{name}") for name in "bcd"),
)


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
    found = put_back(new, PAST)
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
    found = put_back(reduced(parallel(act("b"), act("d"))), PAST)
    inner = [node for node in OLD.nodes if not node.path.startswith("p")]
    assert [shape(found, found.by_path[n.path] if n.path else found.nodes[0]) for n in inner] == [
        shape(OLD, n) for n in inner
    ]
