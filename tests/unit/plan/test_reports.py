"""What handlers report goes into the boundary of their outcome, before the entry that tells the outcome."""

import pytest

from tests.unit.plan.scene import Scene, act, flow, stage
from workflow import parallel
from workflow.plan import Completed, Due, Failed, HistoryEntry, Notes, StepWrite, Suspended, fault

PATH = "w.s.a"


def notes(progress=None):
    return Notes(progress, [HistoryEntry("log", PATH, '{"message":"hm"}')])


@pytest.fixture
def scene():
    return Scene(flow(stage("s", act("a", attempts=2)), stage("t"), on_failure="halt"))


def test_of_a_completed_attempt(scene):
    unit = scene.take()
    scene.tell(unit, Completed(scene.at(PATH), {"n": 1}, '{"n": 1}', notes=notes(75.0)))
    assert scene.story(PATH) == ["action.started", "log", "action.completed"]
    assert scene.row(PATH).progress == 75.0
    assert scene.db.history[scene.row(PATH).completed_seq - 1].name == "action.completed"


def test_of_a_failed_attempt(scene):
    unit = scene.take()
    error = fault("ACTION_FAILED", "no", PATH)
    scene.tell(unit, Failed(scene.at(PATH), error, 5.0, notes=notes(10.0)))
    assert scene.story(PATH) == ["action.started", "log", "action.retrying"]
    scene.wait(5)
    scene.tell(scene.take(), Failed(scene.at(PATH), error, notes=notes()))
    assert scene.story(PATH)[3:] == ["action.started", "log", "action.failed"]
    assert scene.row(PATH).progress == 10.0


def test_of_an_attempt_that_is_followed_by_the_next_at_once(scene):
    unit = scene.take()
    scene.tell(unit, Failed(scene.at(PATH), fault("ACTION_FAILED", "no", PATH), 0.0, notes=notes(10.0)))
    assert scene.story(PATH) == ["action.started", "log", "action.retrying", "action.started"]
    assert (scene.status(PATH), scene.row(PATH).attempt, scene.row(PATH).progress) == (["running"], 2, 10.0)


def test_of_a_handler_that_suspends_itself(scene):
    unit = scene.take()
    step = StepWrite(scene.at(PATH), "run", "k", "sleep", "waiting", poll=60.0)
    move = scene.tell(unit, Suspended(scene.at(PATH), 60.0, notes(), [step]))
    assert move.boundary.steps == [step]
    assert scene.story(PATH) == ["action.started", "log", "waiting"]


def test_a_suspended_member_goes_on_by_its_timer_while_its_mate_is_at_work():
    scene = Scene(flow(stage("s", parallel(act("a"), act("b")))))
    unit = scene.take()
    move = scene.suspend(unit, PATH, 5)
    assert [(timer.ordinal, timer.delay) for timer in move.timers] == [(scene.at(PATH), 5)]
    scene.wait(5)
    scene.tell(unit, Due(scene.at(PATH)))
    assert unit.running[scene.at(PATH)].attempt == 1
    assert scene.story(PATH) == ["action.started", "waiting", "resumed"]


def test_a_retry_goes_on_by_its_timer_while_its_mate_is_at_work():
    scene = Scene(flow(stage("s", parallel(act("a"), act("b")))))
    unit = scene.take()
    scene.fail(unit, PATH, delay=5)
    scene.wait(5)
    scene.tell(unit, Due(scene.at(PATH)))
    assert unit.running[scene.at(PATH)].attempt == 2
    assert scene.tell(unit, Due(scene.at(PATH))).boundary.empty  # it rings once


def test_numbers_of_the_entries_that_complete_a_node_count_those_before_them():
    scene = Scene(flow(stage("s", parallel(act("a"), act("b")), output=dict[str, int]), stage("t")))
    unit = scene.take()
    scene.tell(
        unit,
        Completed(scene.at("w.s.a"), {"a": 1}, '{"a":1}', notes=notes()),
        Completed(scene.at("w.s.b"), {"b": 1}, '{"b":1}', notes=notes()),
    )
    completed = [scene.db.history[scene.row(path).completed_seq - 1] for path in ("w.s.a", "w.s.b", "w.s")]
    assert [(entry.name, entry.node) for entry in completed] == [
        ("action.completed", "w.s.a"),
        ("action.completed", "w.s.b"),
        ("stage.completed", "w.s"),
    ]
