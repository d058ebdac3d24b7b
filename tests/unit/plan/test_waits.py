"""Stages that wait for an event: parked, woken, timed out."""

from tests.unit.plan.scene import Scene, flow, stage
from workflow import Stage, WaitFor, parallel


def wait(name, **options):
    wait_options = {key: options.pop(key) for key in ("pick", "correlate", "timeout") if key in options}
    return Stage(name, wait_for=WaitFor("happened", **wait_options), **options)


def test_a_run_waits_once_the_last_that_was_at_work_beside_the_wait_is_over():
    scene = Scene(flow(parallel(wait("w", via="queue"), stage("s", via="queue"))))
    scene.take()
    scene.take("w.w")
    child = scene.take("w.s")
    assert scene.db.status == "running"
    scene.done(child, "w.s.a")
    assert scene.db.status == "waiting"
    assert scene.story("w.w") == ["waiting"]
