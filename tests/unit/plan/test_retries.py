"""Attempts: how many, when the next one starts, and what each leaves behind."""

import pytest

from tests.unit.plan.scene import Scene, act, flow, stage
from workflow import parallel


def test_a_delay_of_0_starts_the_next_attempt_in_the_same_boundary():
    scene = Scene(flow(stage("s", act("a", attempts=3))))
    unit = scene.take()
    move = scene.fail(unit, "w.s.a", delay=0)
    assert [entry.name for entry in move.boundary.history] == ["action.retrying", "action.started"]
    assert [(start.attempt, start.state) for start in move.starts] == [(2, {})]
    assert scene.status("w.s.a") == ["running"]
    assert scene.failure("w.s.a")["code"] == "ACTION_FAILED"


def test_a_retry_that_is_due_later_holds_no_lease():
    scene = Scene(flow(stage("s", act("a"))))
    unit = scene.take()
    move = scene.fail(unit, "w.s.a", delay=7.5)
    assert (move.done, move.boundary.job, move.boundary.delay) == (True, "release", 7.5)
    entry = scene.db.history[-1]
    assert (entry.name, entry.data["due_at"], entry.data["attempt"]) == ("action.retrying", 7.5, 1)
    scene.wait(7.5)
    unit = scene.take()
    assert unit.running[scene.at("w.s.a")].attempt == 2
    scene.done(unit, "w.s.a")
    assert scene.db.status == "completed"
    assert scene.row("w.s.a").error is None


def test_the_last_attempt_s_error_is_the_node_s_and_there_is_no_further_attempt():
    scene = Scene(flow(stage("s", act("a", attempts=2)), on_failure="halt"))
    unit = scene.take()
    scene.fail(unit, "w.s.a")
    scene.fail(unit, "w.s.a")
    assert scene.story("w.s.a") == ["action.started", "action.retrying", "action.started", "action.failed"]
    assert (scene.db.status, scene.row("w.s.a").attempt) == ("failed", 2)


def test_a_fatal_failure_leaves_no_further_attempt():
    scene = Scene(flow(stage("s", act("a", attempts=5)), on_failure="halt"))
    scene.fail(scene.take(), "w.s.a", final=True)
    assert (scene.db.status, scene.row("w.s.a").attempt) == ("failed", 1)


def test_a_retry_is_not_put_off_by_a_mate_that_was_at_work_meanwhile():
    scene = Scene(flow(stage("s", parallel(act("a"), act("b")))))
    unit = scene.take()
    move = scene.fail(unit, "w.s.a", delay=60)
    assert [(timer.ordinal, timer.delay) for timer in move.timers] == [(scene.at("w.s.a"), 60)]
    scene.wait(50)
    scene.done(unit, "w.s.b")
    scene.take()  # looks at once: 10 s are left, and only the database knows
    scene.wait(9)
    assert not scene.db.due()
    scene.wait(1)
    assert scene.take().running


@pytest.mark.parametrize(("via", "claims"), [("queue", 3), ("inline", 3)])
def test_each_attempt_that_waits_for_its_turn_is_one_of_its_job(via, claims):
    scene = Scene(flow(stage("s", act("a", via=via))))
    path = "w.s.a" if via == "queue" else "w"
    scene.take("w")
    for attempt in range(1, claims):
        unit = scene.take(path) if via == "queue" or attempt > 1 else scene.workers.actors[0]
        scene.fail(unit, "w.s.a", delay=1)
        scene.wait(1)
        assert scene.db.jobs[scene.at(path)].attempt == attempt


def test_suspensions_spend_no_attempt_of_the_job():
    scene = Scene(flow(stage("s")))
    for _ in range(5):
        scene.suspend(scene.take(), "w.s.a", 1)
        assert scene.db.jobs[1].attempt == 0
        scene.wait(1)
