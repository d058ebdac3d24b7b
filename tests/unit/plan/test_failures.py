"""How a failure travels: through its group, its stage and its pipeline to the run."""

from tests.unit.plan.scene import Scene, act, flow, stage
from workflow import parallel


def test_the_first_of_two_failed_queued_actions_is_the_error_of_all_above_them():
    scene = Scene(flow(stage("s", parallel(act("a", via="queue"), act("b", via="queue"))), on_failure="halt"))
    scene.take()
    a, b = scene.take("w.s.a"), scene.take("w.s.b")
    scene.fail(b, "w.s.b", final=True)
    scene.fail(a, "w.s.a", final=True)
    scene.take("w")
    assert scene.failure("w.s")["node"] == scene.failure("w")["node"] == scene.error["node"] == "w.s.b"


def test_the_error_of_a_pipeline_is_that_of_the_first_action_to_fail_though_its_stage_fails_last():
    left, right = stage("left", parallel(act("a"), act("b"))), stage("right")
    scene = Scene(flow(parallel(left, right), on_failure="halt"))
    unit = scene.take()
    scene.fail(unit, "w.left.a", final=True)
    scene.fail(unit, "w.right.a", final=True)
    scene.done(unit, "w.left.b")
    assert scene.failure("w.left")["node"] == "w.left.a"
    assert scene.failure("w.right")["node"] == "w.right.a"
    assert scene.failure("w")["node"] == scene.error["node"] == "w.left.a"
