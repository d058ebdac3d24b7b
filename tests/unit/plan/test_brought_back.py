"""Runs that failed, and that `retry` sends on their way again."""

from typing import Annotated, Any

from pydantic import AfterValidator

from tests.unit.plan.scene import Scene, act, flow, flows, nothing, stage
from workflow import parallel


def halting(*stages):
    return Scene(flow(*stages, on_failure="halt"))


def test_a_retried_run_goes_on_from_its_failure_with_fresh_attempts():
    scene = halting(stage("s", act("a"), act("b", attempts=2)), stage("t"))
    unit = scene.take()
    scene.done(unit, "w.s.a", {"a": 1})
    scene.fail(unit, "w.s.b")
    scene.fail(unit, "w.s.b")
    assert (scene.db.status, scene.row("w.s.b").attempt) == ("failed", 2)
    scene.db.retry()
    unit = scene.take()
    start = unit.running[scene.at("w.s.b")]
    assert (start.attempt, start.state) == (1, {"a": 1})
    scene.done(unit, "w.s.b")
    scene.done(unit, "w.t.a")
    assert scene.db.status == "completed"
    assert scene.story("w.s.a") == ["action.started", "action.completed"]


def test_a_retried_run_leaves_earlier_pipelines_alone():
    scene = Scene(flows([stage("s")], [stage("t")], on_failure="halt"))
    scene.done(scene.take(), "p0.s.a", {"a": 1})
    scene.fail(scene.take(), "p1.t.a", final=True)
    scene.db.retry()
    scene.done(scene.take("p1"), "p1.t.a", {"b": 2})
    assert (scene.db.status, scene.state) == ("completed", {"a": 1, "b": 2})


def test_members_of_a_failed_group_that_completed_are_not_run_again():
    scene = halting(stage("s", parallel(act("a"), act("b"), act("c", via="queue"))), stage("t"))
    unit = scene.take()
    scene.done(scene.take("w.s.c"), "w.s.c", {"c": 1})
    scene.done(unit, "w.s.a", {"a": 1})
    scene.fail(unit, "w.s.b", final=True)
    scene.take()
    assert scene.db.status == "failed"
    scene.db.retry()
    unit = scene.take()
    assert [start.ordinal for start in unit.running.values()] == [scene.at("w.s.b")]
    assert unit.running[scene.at("w.s.b")].state == {}
    scene.done(unit, "w.s.b", {"b": 1})
    assert unit.running[scene.at("w.t.a")].state == {"a": 1, "b": 1, "c": 1}


def test_a_queued_stage_that_is_done_in_part_has_what_earlier_pipelines_gave_also_where_jobs_move_on():
    group = stage("q", parallel(act("a"), act("b")), via="queue")
    scene = Scene(flows([stage("s")], [group], on_failure="halt"), {"i": 1})
    scene.done(scene.take(), "p0.s.a", {"first": 1})
    scene.take("p1")
    unit = scene.take("p1.q")
    scene.done(unit, "p1.q.a", {"a": 1})
    scene.fail(unit, "p1.q.b", final=True)
    scene.take("p1")
    scene.db.retry()
    scene.workers.moves = 99
    scene.take("p1")
    unit = scene.take("p1.q")
    assert unit.running[scene.at("p1.q.b")].state == {"i": 1, "first": 1}
    scene.done(unit, "p1.q.b", {"b": 1})
    scene.take("p1")
    assert (scene.db.status, scene.state) == ("completed", {"i": 1, "first": 1, "a": 1, "b": 1})


def test_queued_members_that_failed_get_their_jobs_again():
    scene = halting(stage("s", parallel(act("a", via="queue"), act("b", via="queue"))))
    scene.take()
    scene.done(scene.take("w.s.a"), "w.s.a")
    scene.fail(scene.take("w.s.b"), "w.s.b", final=True)
    scene.take()
    scene.db.retry()
    scene.take("w")
    assert scene.jobs() == ["w.s.b"]
    scene.done(scene.take(), "w.s.b")
    scene.take("w")
    assert scene.db.status == "completed"


def test_a_failed_output_is_checked_again_over_actions_that_all_completed():
    wrong = True

    def check(merged: dict[str, Any]) -> dict[str, Any]:
        if wrong:
            raise ValueError("not yet")
        return {**merged, "checked": True}

    output = Annotated[dict[str, Any], AfterValidator(check)]
    scene = halting(stage("s", parallel(act("a"), act("b", via="queue")), output=output), stage("t"))
    unit = scene.take()
    scene.done(scene.take("w.s.b"), "w.s.b", {"b": 1})
    scene.done(unit, "w.s.a", {"a": 1})
    scene.take()
    assert (scene.error["code"], scene.status("w.s.a", "w.s.b")) == (
        "OUTPUT_INVALID",
        ["completed", "completed"],
    )
    scene.db.retry()
    scene.take()
    assert (scene.db.status, scene.error["code"]) == ("failed", "OUTPUT_INVALID")
    wrong = False
    scene.db.retry()
    unit = scene.take()
    assert unit.running[scene.at("w.t.a")].state == {"a": 1, "b": 1, "checked": True}
    assert scene.story("w.s.a") == ["action.started", "action.completed"]


def test_a_stage_that_has_something_done_goes_on_without_being_asked_again():
    scene = halting(stage("s", act("a"), act("b"), when=nothing, precheck=nothing))
    unit = scene.take()
    scene.answer(unit, "w.s")
    scene.done(unit, "w.s.a", {"charged": True})
    scene.fail(unit, "w.s.b", final=True)
    scene.db.retry()
    unit = scene.take()
    assert not unit.asked
    assert list(unit.running) == [scene.at("w.s.b")]


def test_a_stage_that_was_skipped_is_asked_again_when_a_retry_is_from_inside_it():
    scene = halting(stage("s", act("a"), act("b"), when=nothing), stage("t"))
    unit = scene.take()
    scene.answer(unit, "w.s", go=False)
    scene.fail(unit, "w.t.a", final=True)
    scene.db.retry("w.s.b")
    unit = scene.take()
    assert scene.asked(unit, "w.s").state == {}
    scene.answer(unit, "w.s", go=False)
    assert scene.status("w.s", "w.s.a", "w.s.b") == ["skipped"] * 3
    assert list(unit.running) == [scene.at("w.t.a")]


def test_a_stage_of_which_nothing_was_done_but_skipped_is_asked_again_and_goes_on():
    scene = halting(stage("s", act("a", when=nothing), act("b"), when=nothing))
    unit = scene.take()
    scene.answer(unit, "w.s")
    scene.answer(unit, "w.s.a", go=False)
    scene.fail(unit, "w.s.b", final=True)
    scene.db.retry()
    unit = scene.take()
    scene.answer(unit, "w.s")
    assert (scene.status("w.s.a"), list(unit.running)) == (["skipped"], [scene.at("w.s.b")])


def test_a_stage_whose_gate_refused_is_asked_again():
    scene = halting(stage("s", precheck=nothing))
    scene.refuse(scene.take(), "w.s")
    scene.db.retry()
    assert scene.asked(scene.take(), "w.s").state == {}


def test_a_retry_from_a_node_does_it_and_all_that_comes_after_it_again():
    scene = halting(stage("s", act("a"), act("b")), stage("t", act("c"), act("d")), stage("u"))
    unit = scene.take()
    for path in ("w.s.a", "w.s.b", "w.t.c", "w.t.d"):
        scene.done(unit, path, {path[-1]: 1, "last": path})
    scene.fail(unit, "w.u.a", final=True)
    scene.db.retry("w.s.b")
    assert scene.state == {"a": 1, "last": "w.s.a"}
    unit = scene.take()
    assert unit.running[scene.at("w.s.b")].state == {"a": 1, "last": "w.s.a"}
    for path in ("w.s.b", "w.t.c", "w.t.d", "w.u.a"):
        scene.done(unit, path)
    assert scene.db.status == "completed"
    assert scene.story("w.s.a") == ["action.started", "action.completed"]
    assert scene.story("w.t.c") == ["action.started", "action.completed"] * 2


def test_a_member_that_is_done_again_reads_nothing_of_its_mates_before_a_crash_or_after_it():
    left = stage("left", output=Annotated[dict[str, Any], AfterValidator(lambda merged: 1 / 0)])
    scene = halting(stage("first"), parallel(left, stage("right")))
    unit = scene.take()
    scene.done(unit, "w.first.a", {"first": 1})
    scene.done(unit, "w.left.a", {"left": 1})
    scene.done(unit, "w.right.a", {"right": 1})
    scene.db.retry("w.right.a")
    unit = scene.take()
    assert unit.running[scene.at("w.right.a")].state == {"first": 1}
    scene.lose(unit)
    assert scene.take().running[scene.at("w.right.a")].state == {"first": 1}
