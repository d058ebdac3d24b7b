"""Handlers that a durable step has suspended: they hold nothing while they wait, and spend nothing."""

from tests.unit.plan.scene import Scene, act, flow, nothing, stage


def test_a_suspended_handler_goes_on_in_the_same_attempt():
    scene = Scene(flow(stage("s", act("a", attempts=1))))
    unit = scene.take()
    scene.suspend(unit, "w.s.a", 60)
    assert scene.status("w.s.a", "w.s", "w") == ["waiting", "running", "running"]
    assert scene.db.status == "running"
    assert not scene.db.due()
    scene.wait(60)
    scene.done(scene.take(), "w.s.a")
    assert (scene.db.status, scene.row("w.s.a").attempt) == ("completed", 1)
    assert scene.story("w.s.a") == ["action.started", "waiting", "resumed", "action.completed"]


def test_a_worker_that_stops_while_a_handler_is_replayed_leaves_it_suspended():
    scene = Scene(flow(stage("s", act("a", when=nothing))))
    unit = scene.take()
    scene.answer(unit, "w.s.a")
    scene.suspend(unit, "w.s.a", 60)
    scene.wait(60)
    scene.workers.shutdown(scene.take())
    assert scene.status("w.s.a") == ["waiting"]
    unit = scene.take()
    assert not unit.asked  # it has long started: its gate is not asked again
    assert scene.row("w.s.a").attempt == 1


def test_a_handler_that_is_lost_while_it_is_replayed_has_spent_its_attempt():
    scene = Scene(flow(stage("s", act("a", attempts=1)), on_failure="halt"))
    scene.suspend(scene.take(), "w.s.a", 60)
    scene.wait(60)
    scene.lose(scene.take())
    scene.take()
    assert scene.error["code"] == "LEASE_HEARTBEAT_LOST"
