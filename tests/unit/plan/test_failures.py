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
