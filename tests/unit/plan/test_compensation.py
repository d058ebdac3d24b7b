"""The walk back: newest first, each with attempts of its own, and nothing stops it."""

import pytest

from tests.unit.plan.scene import Scene, act, flow, flows, nothing, stage
from workflow import parallel
from workflow.plan import (
    Completed,
    Failed,
    HistoryEntry,
    NodeSnapshot,
    Notes,
    RunSnapshot,
    StepWrite,
    Suspended,
    Undo,
    fault,
)


def undo(name, **options):
    return act(name, compensate=nothing, **options)


def failed_after(*actions, done, **options):
    """A run whose actions completed in the order of `done`, and whose last stage failed; it compensates."""
    scene = Scene(flow(stage("s", *actions), stage("z", act("boom", attempts=1)), **options))
    unit = scene.take()
    for name in done:
        scene.done(unit, f"w.s.{name}", {name: True})
    scene.fail(unit, "w.z.boom")
    return scene


def hand(unit, scene):
    """The path of the compensation in hand."""
    (ordinal,) = unit.running
    return scene.db.tree.nodes[ordinal].path


def test_completed_actions_are_undone_one_by_one_the_newest_first():
    scene = failed_after(undo("a"), undo("b"), undo("c"), done="abc")
    assert (scene.db.status, scene.jobs()) == ("compensating", ["compensate"])
    unit = scene.take()
    seen = []
    while unit.running:
        seen.append(hand(unit, scene))
        scene.done(unit, seen[-1])
    assert seen == ["w.s.c", "w.s.b", "w.s.a"]
    assert (scene.db.status, scene.jobs()) == ("compensated", [])
    assert scene.error["node"] == "w.z.boom"
    assert "compensation_failures" not in scene.error
    assert scene.story()[-5:] == ["compensating", *["action.compensated"] * 3, "compensated"]


def test_the_order_is_that_of_completion_not_of_the_tree():
    scene = failed_after(parallel(undo("a"), undo("b"), undo("c")), done="bca")
    unit = scene.take()
    seen = []
    while unit.running:
        seen.append(hand(unit, scene))
        scene.done(unit, seen[-1])
    assert seen == ["w.s.a", "w.s.c", "w.s.b"]


def test_what_completed_after_the_failure_is_undone_too():
    scene = Scene(flow(stage("s", parallel(undo("a"), act("boom")))))
    unit = scene.take()
    scene.fail(unit, "w.s.boom", final=True)
    assert scene.db.status == "running"
    scene.done(unit, "w.s.a")
    assert scene.db.status == "compensating"
    assert hand(scene.take(), scene) == "w.s.a"


def test_a_run_that_fails_in_its_first_action_ends_compensated_too():
    scene = Scene(flow(stage("s", undo("a"))))
    scene.fail(scene.take(), "w.s.a", final=True)
    assert scene.db.status == "compensating"
    unit = scene.take()
    assert unit not in scene.workers.actors
    assert scene.db.status == "compensated"
    assert scene.status("w", "w.s", "w.s.a") == ["failed", "failed", "failed"]
    assert scene.story()[-2:] == ["compensating", "compensated"]


def test_halt_leaves_everything_standing():
    scene = failed_after(undo("a"), done="a", on_failure="halt")
    assert (scene.db.status, scene.jobs(), scene.status("w.s.a")) == ("failed", [], ["completed"])


def test_actions_without_a_compensation_keep_their_status():
    scene = failed_after(act("a"), undo("b"), act("c"), done="abc")
    scene.done(scene.take(), "w.s.b")
    assert scene.status("w.s.a", "w.s.b", "w.s.c") == ["completed", "compensated", "completed"]


def test_earlier_pipelines_are_undone_as_well():
    scene = Scene(flows([stage("s", undo("a"))], [stage("t", act("boom"))]))
    scene.done(scene.take(), "p0.s.a", {"a": 1})
    scene.fail(scene.take(), "p1.t.boom", final=True)
    unit = scene.take()
    assert unit.running[scene.at("p0.s.a")].state == {"a": 1}
    scene.done(unit, "p0.s.a")
    assert (scene.db.status, scene.status("p0", "p1")) == ("compensated", ["completed", "failed"])


def test_the_undoing_of_one_is_settled_before_the_next_begins():
    scene = failed_after(undo("a"), undo("b"), done="ab")
    unit = scene.take()
    move = scene.done(unit, "w.s.b")
    assert [(change.ordinal, change.target) for change in move.boundary.changes] == [
        (scene.at("w.s.b"), "compensated"),
        (scene.at("w.s.a"), "completed"),
    ]
    assert [start.ordinal for start in move.starts] == [scene.at("w.s.a")]
    assert scene.row("w.s.a").compensate_attempt == 1


def test_a_cap_that_ended_one_compensation_is_not_held_against_the_next_one():
    scene = failed_after(undo("a", compensate_attempts=3), undo("b", compensate_attempts=3), done="ab")
    scene.lose(scene.take(), "LEASE_ABSOLUTE_CAP")
    unit = scene.take()  # b could not be undone, and a is at it
    assert (scene.failure("w.s.b")["code"], list(unit.running)) == (
        "COMPENSATION_FAILED",
        [scene.at("w.s.a")],
    )
    scene.disconnect(unit)
    unit = scene.take()
    assert unit.running[scene.at("w.s.a")].attempt == 2
    scene.done(unit, "w.s.a")
    assert scene.error["compensation_failures"] == ["w.s.b"]


def test_a_compensation_has_attempts_of_its_own_and_waits_between_them():
    scene = failed_after(undo("a", attempts=1, compensate_attempts=3), done="a")
    unit = scene.take()
    assert unit.running[scene.at("w.s.a")].attempt == 1
    move = scene.fail(unit, "w.s.a", delay=9)
    assert (move.boundary.job, move.boundary.delay, scene.db.jobs[0].last_error) == (
        "release",
        9,
        "ACTION_FAILED: w.s.a failed",
    )
    assert scene.db.history[-1].data["compensation"] is True
    scene.wait(9)
    unit = scene.take()
    assert unit.running[scene.at("w.s.a")].attempt == 2
    scene.fail(unit, "w.s.a", delay=0)  # the next one begins at once
    assert unit.running[scene.at("w.s.a")].attempt == 3
    scene.done(unit, "w.s.a")
    assert (scene.db.status, scene.status("w.s.a")) == ("compensated", ["compensated"])
    assert scene.row("w.s.a").error is None


def test_a_compensation_that_fails_for_good_is_written_on_its_node_and_passed_by():
    scene = failed_after(undo("a"), undo("b", compensate_attempts=2), undo("c"), done="abc")
    unit = scene.take()
    scene.done(unit, "w.s.c")
    scene.fail(unit, "w.s.b")
    scene.fail(unit, "w.s.b")
    scene.done(unit, "w.s.a")
    assert scene.db.status == "compensated"
    assert scene.status("w.s.a", "w.s.b", "w.s.c") == ["compensated", "completed", "compensated"]
    assert scene.failure("w.s.b")["code"] == "COMPENSATION_FAILED"
    assert scene.failure("w.s.b")["message"] == "w.s.b failed"
    assert (scene.error["code"], scene.error["node"]) == ("ACTION_FAILED", "w.z.boom")
    assert scene.error["compensation_failures"] == ["w.s.b"]
    assert scene.story("w.s.b")[-2:] == ["action.retrying", "action.compensation_failed"]


def test_a_fatal_compensation_is_not_tried_again():
    scene = failed_after(undo("a"), done="a")
    scene.fail(scene.take(), "w.s.a", final=True)
    assert (scene.db.status, scene.error["compensation_failures"]) == ("compensated", ["w.s.a"])


def test_a_worker_that_dies_on_the_walk_leaves_it_where_it_was():
    scene = failed_after(undo("a"), undo("b"), undo("c"), done="abc")
    unit = scene.take()
    scene.done(unit, "w.s.c")
    scene.lose(unit)
    unit = scene.take()
    assert (hand(unit, scene), unit.running[scene.at("w.s.b")].attempt) == ("w.s.b", 2)
    scene.done(unit, "w.s.b")
    scene.done(unit, "w.s.a")
    assert scene.story("w.s.c").count("action.compensated") == 1


def test_failures_before_a_crash_are_still_listed():
    scene = failed_after(undo("a"), undo("b", compensate_attempts=1), done="ab")
    unit = scene.take()
    scene.fail(unit, "w.s.b")
    scene.lose(unit)
    scene.done(scene.take(), "w.s.a")
    assert scene.error["compensation_failures"] == ["w.s.b"]
    assert scene.story("w.s.b").count("action.compensation_failed") == 1


def test_a_compensation_that_takes_its_worker_on_every_attempt_is_passed_by():
    scene = failed_after(undo("a"), undo("b", compensate_attempts=2), done="ab")
    for _ in range(2):
        unit = scene.take()
        assert hand(unit, scene) == "w.s.b"
        scene.lose(unit)
    unit = scene.take()
    assert hand(unit, scene) == "w.s.a"
    assert "LEASE_HEARTBEAT_LOST" in scene.failure("w.s.b")["message"]
    assert scene.failure("w.s.b")["code"] == "COMPENSATION_FAILED"


def test_a_compensation_that_outlives_the_absolute_cap_is_not_tried_again():
    scene = failed_after(undo("a"), undo("b"), done="ab")
    scene.lose(scene.take(), "LEASE_ABSOLUTE_CAP")
    unit = scene.take()
    assert hand(unit, scene) == "w.s.a"
    scene.done(unit, "w.s.a")
    assert scene.error["compensation_failures"] == ["w.s.b"]


def test_the_cap_of_a_claim_that_had_begun_nothing_is_held_against_nobody():
    scene = failed_after(undo("a"), done="a")
    scene.lose(scene.workers.claim(scene.db.due()[0]), "LEASE_ABSOLUTE_CAP")
    assert hand(scene.take(), scene) == "w.s.a"


def test_a_worker_that_stops_on_the_walk_spends_no_attempt():
    scene = failed_after(undo("a", compensate_attempts=1), done="a")
    scene.workers.shutdown(scene.take())
    assert (scene.row("w.s.a").compensate_attempt, scene.db.jobs[0].attempt) == (0, 0)
    scene.done(scene.take(), "w.s.a")
    assert scene.status("w.s.a") == ["compensated"]


@pytest.mark.parametrize("times", [1, 5])
def test_a_compensation_that_suspends_itself_spends_no_attempt(times):
    scene = failed_after(undo("a", compensate_attempts=1), done="a")
    for _ in range(times):
        unit = scene.take()
        assert unit.running[scene.at("w.s.a")].attempt == 1
        scene.suspend(unit, "w.s.a", 60)
        assert not scene.db.due()
        scene.wait(60)
    scene.done(scene.take(), "w.s.a")
    assert scene.db.status == "compensated"


def test_a_suspended_compensation_survives_a_worker_that_stops():
    scene = failed_after(undo("a", compensate_attempts=1), done="a")
    scene.suspend(scene.take(), "w.s.a", 60)
    scene.wait(60)
    scene.workers.shutdown(scene.take())
    unit = scene.take()
    assert unit.running[scene.at("w.s.a")].attempt == 1
    scene.done(unit, "w.s.a")
    assert scene.status("w.s.a") == ["compensated"]


def test_an_atomic_compensation_is_never_done_twice():
    scene = failed_after(undo("a"), undo("b", atomic=True), done="ab")
    unit = scene.take()
    assert scene.workers.commit(unit, scene.at("w.s.b"), None)
    scene.lose(unit)
    assert scene.status("w.s.b") == ["compensated"]
    unit = scene.take()
    assert hand(unit, scene) == "w.s.a"


def test_the_walk_goes_on_once_it_hears_of_an_atomic_compensation():
    scene = failed_after(undo("a"), undo("b", atomic=True), done="ab")
    unit = scene.take()
    scene.workers.commit(unit, scene.at("w.s.b"), None)
    scene.tell(unit, Completed(scene.at("w.s.b"), None, None, settled=True))
    assert hand(unit, scene) == "w.s.a"
    assert scene.story("w.s.b").count("action.compensated") == 1


def test_what_a_compensation_reports_and_writes_goes_with_its_boundary():
    scene = failed_after(undo("a"), done="a")
    unit = scene.take()
    path, ordinal = "w.s.a", scene.at("w.s.a")
    notes = Notes(entries=[HistoryEntry("log", path, '{"message":"hm"}')])
    step = StepWrite(ordinal, "compensate", "k", "sleep", "waiting")
    move = scene.tell(unit, Suspended(ordinal, 5.0, notes, [step]))
    assert move.boundary.steps == [step]
    assert scene.story(path)[-1] == "log"
    scene.wait(5)
    unit = scene.take()
    error = fault("ACTION_FAILED", "no", path)
    scene.tell(unit, Failed(ordinal, error, final=True, notes=Notes(entries=[HistoryEntry("log", path)])))
    assert scene.story(path)[-2:] == ["log", "action.compensation_failed"]


@pytest.mark.parametrize("status", ["completed", "compensated"])
def test_a_walk_is_given_back_as_it_is_after_the_compensation_in_hand_has_settled_itself(status):
    tree = flow(stage("s", undo("a", atomic=True), undo("b", atomic=True))).tree
    nodes = [NodeSnapshot() for _ in tree.nodes]
    nodes[tree.by_path["w.s.a"].ordinal] = NodeSnapshot(status, 1, completed_seq=3)
    nodes[tree.by_path["w.s.b"].ordinal] = NodeSnapshot("compensated", 1, 1, completed_seq=4)
    walk = Undo(tree, RunSnapshot("compensating", None, {}, nodes))
    walk.inflight = {tree.by_path["w.s.b"].ordinal}
    move = walk.release()
    assert (move.done, move.boundary.job, move.boundary.refund) == (True, "release", True)
    assert move.boundary.changes == []
