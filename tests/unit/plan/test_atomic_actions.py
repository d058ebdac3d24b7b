"""Actions that settle their own completion, in the transaction that their handler wrote in."""

from tests.unit.plan.scene import Scene, act, flow, stage
from workflow import parallel
from workflow.plan import Completed


def commit(scene, unit, path, output=None):
    """The handler's transaction is committed; the unit has not heard of it."""
    assert scene.workers.commit(unit, scene.at(path), output)
    return Completed(scene.at(path), output, None, settled=True)


def test_an_atomic_action_that_succeeds_at_last_keeps_no_error():
    scene = Scene(flow(stage("s", act("a", atomic=True))))
    unit = scene.take()
    scene.fail(unit, "w.s.a")
    assert scene.failure("w.s.a")["code"] == "ACTION_FAILED"
    scene.tell(unit, commit(scene, unit, "w.s.a", {"n": 1}))
    assert scene.row("w.s.a").error is None
    assert (scene.db.status, scene.state) == ("completed", {"n": 1})


def test_an_atomic_action_is_never_run_again_when_its_worker_dies_after_the_commit():
    scene = Scene(flow(stage("s", act("a", atomic=True), act("b"))))
    unit = scene.take()
    commit(scene, unit, "w.s.a", {"n": 1})
    scene.lose(unit)
    unit = scene.take()
    assert [start.ordinal for start in unit.running.values()] == [scene.at("w.s.b")]
    assert unit.running[scene.at("w.s.b")].state == {"n": 1}
    assert scene.story("w.s.a") == ["action.started", "action.completed"]


def test_the_parent_is_woken_although_the_worker_died_right_after_the_commit():
    scene = Scene(flow(stage("s", act("a", atomic=True, via="queue"), act("b"))))
    scene.take()
    child = scene.take("w.s.a")
    commit(scene, child, "w.s.a", {"n": 1})
    scene.lose(child)
    scene.take("w.s.a")
    assert scene.jobs() == ["w"]
    assert scene.take("w").running[scene.at("w.s.b")].state == {"n": 1}


def test_the_next_action_reads_the_state_as_it_was_committed_though_the_unit_heard_of_it_the_other_way_round():
    scene = Scene(flow(stage("s", parallel(act("a", atomic=True), act("b")), act("c"))))
    unit = scene.take()
    fact = commit(scene, unit, "w.s.a", {"k": "a"})  # first in the database
    scene.done(unit, "w.s.b", {"k": "b"})
    scene.tell(unit, fact)  # and last to be heard of
    assert scene.take().running[scene.at("w.s.c")].state == scene.state == {"k": "b"}


def test_a_unit_goes_on_without_looking_again_when_the_order_of_two_outputs_changes_nothing():
    scene = Scene(flow(stage("s", parallel(act("a", atomic=True), act("b")), act("c"))))
    unit = scene.take()
    fact = commit(scene, unit, "w.s.a", {"a": 1})
    scene.done(unit, "w.s.b", {"b": 1})
    scene.tell(unit, fact)
    assert unit.running[scene.at("w.s.c")].state == {"a": 1, "b": 1}


def test_what_is_committed_comes_before_what_is_only_reported_in_the_same_breath():
    scene = Scene(flow(stage("s", parallel(act("a", atomic=True), act("b")), act("c"))))
    unit = scene.take()
    fact = commit(scene, unit, "w.s.a", {"k": "a"})
    scene.tell(unit, scene.completed("w.s.b", {"k": "b"}), fact)
    assert unit.running[scene.at("w.s.c")].state == scene.state == {"k": "b"}


def test_what_two_parallel_stages_write_is_read_again_before_the_next_stage():
    left, right = stage("left", act("a", atomic=True)), stage("right", act("b"), act("c"))
    scene = Scene(flow(parallel(left, right), stage("last")))
    unit = scene.take()
    fact = commit(scene, unit, "w.left.a", {"k": "a"})
    scene.done(unit, "w.right.b", {"k": "b"})
    scene.tell(unit, fact)
    assert unit.running[scene.at("w.right.c")].state == {"k": "b"}  # its own branch is known well
    scene.done(unit, "w.right.c")
    assert scene.take().running[scene.at("w.last.a")].state == scene.state == {"k": "b"}
