"""A stage whose `output=` runs code of the user's: it is asked after the boundary that has ended its last action."""

from typing import Any

from pydantic import BaseModel, field_validator

from tests.unit.plan.scene import Scene, act, flow, stage
from workflow import parallel
from workflow.plan import Checked, fault


class Doubled(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def double(cls, n: int) -> int:
        return 2 * n


def asked(scene: Scene) -> tuple[Any, Any]:
    scene.checks = False
    unit = scene.take()
    return unit, scene.done(unit, "w.s.a", {"n": 1})


def checked(scene: Scene, n: int = 2) -> Checked:
    return Checked(scene.at("w.s"), {"n": n}, f'{{"n":{n}}}')


def test_what_it_makes_of_the_outputs_is_the_output_of_the_stage():
    scene = Scene(flow(stage("s", output=Doubled), stage("t")))
    unit, move = asked(scene)
    assert [(ask.ordinal, ask.checks, ask.value) for ask in move.asks] == [(scene.at("w.s"), True, {"n": 1})]
    assert (scene.status("w.s.a"), scene.status("w.s")) == (["completed"], ["running"])
    move = scene.tell(unit, checked(scene))
    assert [start.state for start in move.starts] == [{"n": 2}]
    assert (scene.state, scene.row("w.s").output) == ({"n": 2}, '{"n": 2}')


def test_one_that_does_not_fit_fails_the_stage():
    scene = Scene(flow(stage("s", output=Doubled), on_failure="halt"))
    unit, _ = asked(scene)
    scene.tell(unit, Checked(scene.at("w.s"), error=fault("OUTPUT_INVALID", "no", "w.s")))
    assert (scene.status("w.s"), scene.db.status) == (["failed"], "failed")


def test_it_is_asked_again_after_the_unit_was_given_back():
    scene = Scene(flow(stage("s", output=Doubled)))
    unit, _ = asked(scene)
    scene.workers.shutdown(unit)
    assert (scene.status("w.s"), scene.status("w.s.a")) == (["running"], ["completed"])
    unit = scene.take()
    assert [ask.checks for ask in unit.asked] == [True]
    scene.tell(unit, checked(scene))
    assert scene.db.status == "completed"


def test_it_is_asked_once_more_by_a_plan_made_anew_and_the_first_answer_is_heard():
    scene = Scene(flow(stage("s", output=Doubled), stage("t")))
    unit, _ = asked(scene)
    scene.workers.anew(unit)
    scene.workers.settle(unit)
    assert len(unit.asked) == 2
    scene.tell(unit, checked(scene))
    assert scene.tell(unit, checked(scene, 3)).boundary.empty
    assert scene.state == {"n": 2}


def test_others_go_on_while_it_is_asked():
    scene = Scene(flow(parallel(stage("s", output=Doubled), stage("p", act("x"), act("y"))), stage("t")))
    unit, _ = asked(scene)
    move = scene.done(unit, "w.p.x", {"x": 1})
    assert [start.ordinal for start in move.starts] == [scene.at("w.p.y")]
    scene.done(unit, "w.p.y", {"y": 1})
    move = scene.tell(unit, checked(scene))
    assert [start.state for start in move.starts] == [{"n": 2, "x": 1, "y": 1}]
