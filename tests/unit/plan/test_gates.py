"""`when` and `precheck`: asked just before a node starts, and what follows from each answer."""

import pytest

from tests.unit.plan.scene import Scene, act, flow, nothing, stage
from workflow import parallel


def test_a_gate_is_asked_before_anything_of_the_node_happens():
    scene = Scene(flow(stage("s", act("a", when=nothing))), {"n": 1})
    unit = scene.take()
    assert scene.asked(unit, "w.s.a").state == {"n": 1}
    assert (scene.status("w.s", "w.s.a"), scene.story("w.s.a")) == (["running", "pending"], [])


def test_an_action_that_is_let_through_starts():
    scene = Scene(flow(stage("s", act("a", precheck=nothing))))
    unit = scene.take()
    scene.answer(unit, "w.s.a")
    assert unit.running[scene.at("w.s.a")].attempt == 1
    scene.fail(unit, "w.s.a")
    assert not unit.asked  # once, not before each attempt


def test_a_skipped_action_counts_as_done():
    scene = Scene(flow(stage("s", act("a", when=nothing), act("b"))))
    unit = scene.take()
    move = scene.answer(unit, "w.s.a", go=False)
    assert [start.ordinal for start in move.starts] == [scene.at("w.s.b")]
    assert (scene.status("w.s.a"), scene.story("w.s.a")) == (["skipped"], ["action.skipped"])


def test_everything_beneath_a_skipped_stage_is_skipped():
    inside = (parallel(act("a"), act("b", via="queue", precheck=nothing)), act("c"))
    scene = Scene(flow(stage("s", *inside, when=nothing), stage("t")))
    unit = scene.take()
    scene.answer(unit, "w.s", go=False)
    assert scene.status("w.s", "w.s.a", "w.s.b", "w.s.c") == ["skipped"] * 4
    assert scene.story("w.s") == ["stage.skipped"]
    assert list(unit.running) == [scene.at("w.t.a")]
    assert scene.jobs() == ["w"]


def test_a_run_of_which_everything_is_skipped_completes():
    scene = Scene(flow(stage("s", when=nothing)))
    scene.answer(scene.take(), "w.s", go=False)
    assert (scene.db.status, scene.status("w")) == ("completed", ["completed"])


def test_an_action_that_a_gate_refuses_fails_without_an_attempt():
    scene = Scene(flow(stage("s", act("a", precheck=nothing, attempts=5)), on_failure="halt"))
    scene.refuse(scene.take(), "w.s.a")
    assert scene.story("w.s.a") == ["action.failed"]
    assert (scene.row("w.s.a").attempt, scene.error["code"], scene.error["node"]) == (
        0,
        "PRECHECK_FAILED",
        "w.s.a",
    )


def test_a_stage_that_a_gate_refuses_takes_what_is_beneath_it_along():
    scene = Scene(flow(stage("s", act("a"), act("b")), stage("t", precheck=nothing), on_failure="halt"))
    unit = scene.take()
    scene.done(unit, "w.s.a")
    scene.done(unit, "w.s.b")
    scene.refuse(unit, "w.t")
    assert scene.status("w.s", "w.t", "w.t.a") == ["completed", "failed", "cancelled"]


def test_a_gate_that_refuses_fails_its_node_and_no_other():
    scene = Scene(flow(stage("s", parallel(act("a", when=nothing), act("b"))), on_failure="halt"))
    unit = scene.take()
    scene.refuse(unit, "w.s.a", "ACTION_FAILED")
    assert scene.status("w.s.a", "w.s.b") == ["failed", "running"]
    scene.done(unit, "w.s.b")
    assert scene.status("w.s.b", "w.s") == ["completed", "failed"]


@pytest.mark.parametrize("place", ["stage", "action"])
def test_a_queued_node_asks_its_gate_in_its_own_job(place):
    gate = {"when": nothing, "via": "queue"}
    inside = act("a", **(gate if place == "action" else {}))
    scene = Scene(flow(stage("s", inside, **(gate if place == "stage" else {})), stage("t")))
    path = "w.s" if place == "stage" else "w.s.a"
    assert not scene.take().asked
    unit = scene.take(path)
    scene.answer(unit, path, go=False)
    assert scene.take("w").running


def test_a_worker_that_stops_while_a_gate_is_asked_leaves_the_node_as_it_was():
    scene = Scene(flow(stage("s", act("a", when=nothing))))
    scene.workers.shutdown(scene.take())
    assert scene.status("w.s.a") == ["pending"]
    assert scene.asked(scene.take(), "w.s.a")
