"""A plan that is made anew while its handlers are at work, because the database refused a boundary."""

from tests.unit.plan.scene import Scene, act, flow, nothing, stage
from workflow import parallel
from workflow.plan import Answered, Completed, Due


def test_handlers_that_are_at_work_are_neither_lost_nor_started_again():
    scene = Scene(flow(stage("s", parallel(act("a"), act("b")))))
    unit = scene.take()
    move = scene.workers.anew(unit)
    assert (move.starts, move.boundary.empty, move.done) == ([], True, False)
    scene.workers.settle(unit)
    scene.done(unit, "w.s.a")
    scene.done(unit, "w.s.b")
    assert scene.db.status == "completed"
    assert [scene.row(path).attempt for path in ("w.s.a", "w.s.b")] == [1, 1]


def test_a_replay_that_is_given_back_after_that_spends_no_attempt_and_gains_none():
    scene = Scene(flow(stage("s")))
    scene.suspend(scene.take(), "w.s.a")
    scene.wait()
    unit = scene.take()
    scene.workers.anew(unit)
    scene.workers.settle(unit)
    scene.workers.shutdown(unit)
    assert scene.status("w.s.a") == ["waiting"]
    assert scene.row("w.s.a").attempt == 1


def test_the_second_of_two_answers_to_one_question_is_not_heard():
    scene = Scene(flow(stage("s", act("a", when=nothing))))
    unit = scene.take()
    scene.workers.anew(unit)
    scene.workers.settle(unit)
    assert len(unit.asked) == 2
    scene.answer(unit, "w.s.a")
    move = scene.tell(unit, Answered(scene.at("w.s.a"), go=False))
    assert move.boundary.empty
    scene.done(unit, "w.s.a")
    assert scene.story("w.s.a") == ["action.started", "action.completed"]


def test_an_action_that_was_settled_meanwhile_is_not_settled_twice():
    scene = Scene(flow(stage("s", parallel(act("a", atomic=True), act("b")))))
    unit = scene.take()
    scene.workers.commit(unit, scene.at("w.s.a"), {"n": 1})
    scene.workers.anew(unit)
    scene.workers.settle(unit)
    scene.tell(unit, Completed(scene.at("w.s.a"), {"n": 1}, None, settled=True))
    assert scene.db.status == "running"
    scene.done(unit, "w.s.b")
    assert (scene.db.status, scene.state) == ("completed", {"n": 1})


def test_a_timer_of_the_plan_before_takes_nothing_from_an_attempt_that_is_at_work():
    scene = Scene(flow(stage("s", parallel(act("a"), act("b")), act("c"))))
    unit = scene.take()
    scene.fail(unit, "w.s.a", delay=5)
    scene.wait(5)
    scene.workers.anew(unit)
    scene.workers.settle(unit)
    assert sorted(unit.running) == [scene.at("w.s.a"), scene.at("w.s.b")]
    scene.tell(unit, Due(scene.at("w.s.a")), scene.completed("w.s.b"))
    scene.done(unit, "w.s.a")
    assert list(unit.running) == [scene.at("w.s.c")]


def test_an_answer_to_an_old_question_does_not_pass_for_work_at_hand():
    scene = Scene(flow(stage("s", act("a"), when=nothing)))
    unit = scene.take()
    scene.workers.anew(unit)
    scene.workers.settle(unit)
    scene.answer(unit, "w.s")
    scene.workers.post(unit, Answered(scene.at("w.s"), go=True))  # the other answer, and then a refusal
    scene.workers.anew(unit)
    scene.workers.settle(unit)
    scene.tell(unit, scene.completed("w.s.a"))
    assert scene.db.status == "completed"


def test_a_compensation_that_is_at_work_is_not_begun_again():
    scene = Scene(flow(stage("s", act("a", compensate=nothing), act("b"))))
    unit = scene.take()
    scene.done(unit, "w.s.a")
    scene.fail(unit, "w.s.b", final=True)
    unit = scene.take()
    move = scene.workers.anew(unit)
    assert (move.starts, move.boundary.empty, move.done) == ([], True, False)
    scene.workers.settle(unit)
    scene.done(unit, "w.s.a")
    assert (scene.db.status, scene.row("w.s.a").compensate_attempt) == ("compensated", 1)


def test_an_atomic_action_that_is_adopted_may_have_been_settled_before_its_mates():
    scene = Scene(flow(stage("s", parallel(act("a", atomic=True), act("b")), act("c"))))
    unit = scene.take()
    scene.workers.anew(unit)
    scene.workers.settle(unit)
    scene.workers.commit(unit, scene.at("w.s.a"), {"k": "a"})
    scene.done(unit, "w.s.b", {"k": "b"})
    scene.tell(unit, Completed(scene.at("w.s.a"), {"k": "a"}, None, settled=True))
    assert scene.take().running[scene.at("w.s.c")].state == scene.state == {"k": "b"}


def test_a_compensation_that_settled_itself_is_not_settled_twice():
    scene = Scene(
        flow(stage("s", act("a", compensate=nothing), act("b", compensate=nothing, atomic=True), act("c")))
    )
    unit = scene.take()
    scene.done(unit, "w.s.a")
    scene.tell(unit, scene.completed("w.s.b"))
    scene.fail(unit, "w.s.c", final=True)
    unit = scene.take()
    scene.workers.commit(unit, scene.at("w.s.b"), None)
    scene.workers.anew(unit)
    scene.workers.settle(unit)
    move = scene.tell(unit, Completed(scene.at("w.s.b"), None, None, settled=True))
    assert [start.ordinal for start in move.starts] == [scene.at("w.s.a")]
    assert scene.story("w.s.b").count("action.compensated") == 1
