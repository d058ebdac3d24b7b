"""`output=` of a stage: it checks the merge of the actions' outputs, and what it makes of it is the stage's."""

import json
import sys
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, BeforeValidator

from tests.unit.plan.scene import Scene, act, flow, stage
from workflow import parallel
from workflow.plan import Completed


class Total(BaseModel):
    total: int
    note: str = "none"


def check(function):
    return Annotated[dict[str, Any], AfterValidator(function)]


def test_the_checked_merge_is_the_stage_s_output_and_goes_into_the_state():
    scene = Scene(flow(stage("s", act("a"), act("b"), output=Total), stage("t")))
    unit = scene.take()
    scene.done(unit, "w.s.a", {"total": 1})
    scene.done(unit, "w.s.b", {"total": "7", "other": 0})
    assert json.loads(scene.row("w.s").output) == {"total": 7, "note": "none"}
    assert unit.running[scene.at("w.t.a")].state == scene.state == {"total": 7, "other": 0, "note": "none"}


def test_outputs_are_merged_in_the_order_of_their_completion_also_after_a_crash():
    scene = Scene(flow(stage("s", parallel(act("a"), act("b"), act("c")), output=Total)))
    unit = scene.take()
    scene.done(unit, "w.s.b", {"total": 2})
    scene.done(unit, "w.s.a", {"total": 1, "note": "a"})
    scene.lose(unit)
    scene.done(scene.take(), "w.s.c", {"x": 0})
    assert json.loads(scene.row("w.s").output) == {"total": 1, "note": "a"}


def test_the_next_stage_reads_what_stands_where_an_atomic_mate_has_settled_the_same_key():
    left, right = stage("left", act("a", atomic=True)), stage("right", act("b"), output=Total)
    scene = Scene(flow(parallel(left, right), stage("last")))
    unit = scene.take()
    assert scene.workers.commit(unit, scene.at("w.left.a"), {"note": "left"})
    scene.done(unit, "w.right.b", {"total": 1})
    assert scene.state["note"] == "none"  # the stage's own comes later; the unit hears of the other one last
    scene.tell(unit, Completed(scene.at("w.left.a"), {"note": "left"}, None, settled=True))
    assert scene.take().running[scene.at("w.last.a")].state == scene.state


def test_what_is_no_object_nests_under_the_stage_s_name():
    scene = Scene(flow(stage("s", output=Annotated[int, BeforeValidator(lambda merged: merged["n"])])))
    scene.done(scene.take(), "w.s.a", {"n": 5})
    assert scene.state == {"n": 5, "s": 5}


def test_a_merge_that_does_not_fit_fails_the_stage_and_tells_no_values():
    scene = Scene(flow(stage("s", output=Total), on_failure="halt"))
    scene.done(scene.take(), "w.s.a", {"total": "a-secret"})
    error = scene.failure("w.s")
    assert (error["code"], error["node"], error["type"]) == ("OUTPUT_INVALID", "w.s", "ValidationError")
    assert "total" in error["message"]
    assert "secret" not in json.dumps(error)
    assert scene.status("w.s.a") == ["completed"]
    assert scene.story("w.s") == ["stage.failed"]
    assert scene.error == error


def test_a_validator_that_exits_fails_its_stage_and_nobody_else():
    scene = Scene(flow(stage("s", output=check(lambda merged: sys.exit("enough"))), on_failure="halt"))
    scene.done(scene.take(), "w.s.a")
    assert (scene.db.status, scene.error["code"], scene.error["type"]) == (
        "failed",
        "OUTPUT_INVALID",
        "SystemExit",
    )


@pytest.mark.parametrize("value", [float("nan"), "\x00", b"raw", object()])
def test_what_postgresql_could_not_keep_fails_the_stage(value):
    scene = Scene(flow(stage("s", output=check(lambda merged: {"k": value})), on_failure="halt"))
    scene.done(scene.take(), "w.s.a")
    assert (scene.db.status, scene.error["code"], scene.error["node"]) == ("failed", "PAYLOAD_INVALID", "w.s")


def test_a_validator_may_change_what_it_is_given():
    def change(merged):
        merged["items"].append("mine")
        return {}

    scene = Scene(flow(stage("s", output=check(change)), stage("t")))
    unit = scene.take()
    scene.done(unit, "w.s.a", {"items": []})
    assert unit.running[scene.at("w.t.a")].state == {"items": []}
