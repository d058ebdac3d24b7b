"""When a unit may tell the store that nobody else settles boundaries of its run meanwhile."""

from tests.unit.plan.scene import Scene, act, flow, stage
from workflow import parallel


def test_a_pipeline_that_starts_its_only_handler_has_the_run_to_itself():
    scene = Scene(flow(stage("s", act("a"), act("b"))))
    (job,) = scene.db.due()
    unit = scene.workers.claim(job)
    assert scene.workers.begin(unit).boundary.alone
    scene.workers.settle(unit)
    assert scene.done(unit, "w.s.a").boundary.alone


def test_a_handler_that_is_at_work_may_settle_something_itself():
    scene = Scene(flow(stage("s", parallel(act("a", atomic=True), act("b")))))
    unit = scene.take()
    assert not scene.done(unit, "w.s.b").boundary.alone


def test_a_queued_child_settles_for_itself():
    scene = Scene(flow(stage("s", parallel(act("a", via="queue"), act("b")))))
    unit = scene.take()
    assert not scene.fail(unit, "w.s.b").boundary.alone
    assert not scene.fail(scene.take("w.s.a"), "w.s.a").boundary.alone
