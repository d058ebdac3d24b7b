"""Nodes with a job of their own: who starts them, who wakes whom, and what a late job does."""

from tests.unit.plan.scene import Scene, act, flow, stage
from workflow import parallel


def test_a_job_that_was_added_again_after_its_action_completed_does_nothing():
    scene = Scene(flow(stage("s", parallel(act("a", via="queue"), act("b"), act("c", via="queue")))))
    parent = scene.take()
    scene.fail(parent, "w.s.b", delay=5.0)
    scene.wait(6)
    (job,) = [job for job in scene.db.due() if job.ordinal == scene.at("w")]
    parent = scene.workers.claim(job)
    scene.workers.begin(parent)  # it has seen a and c pending ...
    scene.done(scene.take("w.s.a"), "w.s.a", {"a": 1})  # ... and settles after a is over
    scene.workers.settle(parent)
    assert scene.jobs() == ["w", "w.s.a", "w.s.c"]
    ghost = scene.take("w.s.a")
    assert ghost not in scene.workers.actors
    assert scene.jobs() == ["w", "w.s.c"]
    assert scene.story("w.s.a") == ["action.started", "action.completed"]
