"""Which state a node reads, whoever looks and however often the worker died."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests.unit.plan.scene import Scene, act, flow, flows, stage
from tests.unit.plan.trees import workflows
from workflow import parallel
from workflow.plan.layout import needed, visible


def reads(unit, scene, path):
    return unit.running[scene.at(path)].state


def test_a_parallel_member_reads_its_group_s_start_and_its_own_branch_alone():
    left, right = stage("left", act("l1"), act("l2")), stage("right", act("r1"), act("r2"))
    scene = Scene(flow(stage("first"), parallel(left, right), stage("last")), {"n": 0})
    unit = scene.take()
    scene.done(unit, "w.first.a", {"n": 1})
    assert reads(unit, scene, "w.left.l1") == reads(unit, scene, "w.right.r1") == {"n": 1}
    scene.done(unit, "w.left.l1", {"n": 2, "l": True})
    scene.done(unit, "w.right.r1", {"n": 3})
    assert reads(unit, scene, "w.left.l2") == {"n": 2, "l": True}
    assert reads(unit, scene, "w.right.r2") == {"n": 3}
    scene.done(unit, "w.left.l2")
    scene.done(unit, "w.right.r2")
    assert reads(unit, scene, "w.last.a") == scene.state == {"n": 3, "l": True}


def test_the_last_to_complete_wins_a_key_whatever_the_order_of_the_members():
    scene = Scene(flow(stage("s", parallel(act("a"), act("b")), act("c"))))
    unit = scene.take()
    scene.done(unit, "w.s.b", {"k": "b"})
    scene.done(unit, "w.s.a", {"k": "a"})
    assert reads(unit, scene, "w.s.c") == {"k": "a"}


@pytest.mark.parametrize("members", [(act("a"), act("b")), (act("a"), act("b", via="queue"))])
def test_a_member_that_starts_over_reads_what_earlier_pipelines_have_added(members):
    scene = Scene(flows([stage("s")], [stage("t", parallel(*members))]), {"z": 0})
    scene.done(scene.take(), "p0.s.a", {"k": 1})
    unit = scene.take("p1")
    if len(unit.running) == 2:
        scene.done(unit, "p1.t.b", {"b": 1})
    else:
        scene.done(scene.take("p1.t.b"), "p1.t.b", {"b": 1})
    scene.lose(unit)
    assert reads(scene.take("p1"), scene, "p1.t.a") == {"z": 0, "k": 1}


def test_a_queued_stage_that_comes_back_to_a_group_reads_what_came_before_it():
    scene = Scene(flow(stage("s"), stage("t", parallel(act("a"), act("b")), via="queue")))
    scene.done(scene.take(), "w.s.a", {"k": 1})
    unit = scene.take("w.t")
    scene.done(unit, "w.t.a", {"a": 1})
    scene.lose(unit)
    assert reads(scene.take("w.t"), scene, "w.t.b") == {"k": 1}


def test_what_a_child_adds_between_the_reading_of_the_run_and_of_its_nodes_is_not_missed():
    scene = Scene(flow(stage("s", parallel(act("a", via="queue"), act("b"))), stage("t")))
    parent = scene.take()
    child = scene.take("w.s.a")
    scene.fail(parent, "w.s.b", delay=1.0)
    scene.wait(2)
    (job,) = scene.db.due()
    parent = scene.workers.claim(job)
    scene.done(child, "w.s.a", {"a": 1})
    scene.workers.begin(parent)
    scene.workers.settle(parent)
    scene.done(parent, "w.s.b", {"b": 1})
    assert reads(parent, scene, "w.t.a") == scene.state == {"a": 1, "b": 1}


def test_a_unit_reads_no_more_rows_than_it_needs():
    queued = [act(f"a{n}", via="queue") for n in range(3)]
    tree = flows([stage("s")], [stage("t", parallel(*queued)), stage("u", parallel(act("a"), act("b")))]).tree
    place = {path: node.ordinal for path, node in tree.by_path.items()}
    assert needed(tree, 0) == [(1, len(tree.nodes) - 1)]
    assert needed(tree, place["p0"]) == [(place["p1"],) * 2, (1, 3)]
    assert needed(tree, place["p1.t.a1"]) == [(1, place["p1.t"]), (place["p1.t.a1"],) * 2]
    assert needed(tree, place["p1"]) == [(1, len(tree.nodes) - 1)]  # for u's inline members


@given(workflows())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_node_may_read_all_before_it_but_what_runs_beside_it(workflow):
    tree = workflow.tree
    for node in tree.nodes[1:]:
        seen = {n for low, high in visible(tree, node.ordinal) for n in range(low, high + 1)}
        assert seen == {other.ordinal for other in tree.nodes[1 : node.end] if not beside(tree, node, other)}


def beside(tree, one, other):
    """Whether two nodes lie in two members of one parallel group."""
    up = [one.ordinal]
    while up[-1]:
        up.append(tree.nodes[up[-1]].parent)
    place, below = other.ordinal, None
    while place not in up:
        place, below = tree.nodes[place].parent, place
    if below is None or place == one.ordinal:
        return False
    mine = up[up.index(place) - 1]
    return any(mine in group and below in group for group in tree.nodes[place].groups)
