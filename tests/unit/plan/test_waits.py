"""Stages that wait for an event: parked, woken, timed out."""

import pytest
from pydantic import BaseModel

from tests.unit.plan.scene import Scene, flow, nothing, stage
from workflow import Stage, WaitFor, parallel


class Paid(BaseModel):
    amount: int


def event(payload):
    return {"event": {"id": "1", "type": "happened", "payload": payload, "correlation": None, "at": "..."}}


def wait(name, **options):
    wait_options = {key: options.pop(key) for key in ("pick", "correlate", "timeout") if key in options}
    return Stage(name, wait_for=WaitFor("happened", **wait_options), **options)


def resolve(scene, path, outcome):
    scene.db.resolve(scene.at(path), outcome)


def test_a_wait_parks_the_run_and_holds_no_job():
    scene = Scene(flow(wait("w", timeout=60), stage("t")))
    scene.take()
    assert (scene.db.status, scene.status("w.w", "w")) == ("waiting", ["waiting", "running"])
    assert scene.story() == ["started", "waiting"]
    assert not scene.db.jobs
    assert (scene.row("w.w").wait_event, scene.row("w.w").wait_until) == ("happened", 60)


def test_the_event_s_payload_is_the_output_and_the_run_goes_on():
    scene = Scene(flow(wait("w"), stage("t")))
    scene.take()
    resolve(scene, "w.w", event({"paid": 5}))
    unit = scene.take()
    assert unit.running[scene.at("w.t.a")].state == {"paid": 5}
    scene.done(unit, "w.t.a")
    assert scene.story() == [
        *("started", "waiting", "resumed", "stage.completed"),
        *("action.started", "action.completed", "stage.completed", "completed"),
    ]


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (event(None), {}),
        ({"payload": None}, {}),
        (event(5), {"w": 5}),
        ({"payload": [1]}, {"w": [1]}),
        ({"payload": {"a": 1}}, {"a": 1}),
    ],
)
def test_an_outcome_becomes_the_output_as_any_other_does(outcome, state):
    scene = Scene(flow(wait("w")))
    scene.take()
    resolve(scene, "w.w", outcome)
    scene.take()
    assert (scene.db.status, scene.state) == ("completed", state)


def test_a_wait_whose_time_is_up_fails_its_stage_and_the_run():
    scene = Scene(flow(wait("w", timeout=60), stage("t"), on_failure="halt"))
    scene.take()
    resolve(scene, "w.w", {"timeout": True})
    scene.take()
    assert (scene.error["code"], scene.error["node"]) == ("WAIT_TIMEOUT", "w.w")
    assert "60 s" in scene.error["message"]
    assert (scene.db.status, scene.status("w.w", "w.t", "w.t.a")) == (
        "failed",
        ["failed", "cancelled", "cancelled"],
    )
    assert scene.story() == ["started", "waiting", "stage.failed", "failed"]


def test_a_wait_whose_time_is_up_makes_a_saga_compensate():
    scene = Scene(flow(wait("w")))
    scene.take()
    resolve(scene, "w.w", {"timeout": True})
    scene.take()
    assert scene.db.status == "compensating"
    scene.take()
    assert scene.db.status == "compensated"


def test_pick_is_asked_with_the_event_and_its_answer_is_the_output():
    scene = Scene(flow(wait("w", pick=nothing)))
    scene.take()
    outcome = event({"paid": 5})
    resolve(scene, "w.w", outcome)
    unit = scene.take()
    assert scene.asked(unit, "w.w").event == outcome["event"]
    scene.done(unit, "w.w", {"picked": 5})
    assert (scene.db.status, scene.state) == ("completed", {"picked": 5})


def test_pick_is_asked_again_when_its_worker_died():
    scene = Scene(flow(wait("w", pick=nothing)))
    scene.take()
    resolve(scene, "w.w", event(1))
    scene.lose(scene.take())
    assert scene.asked(scene.take(), "w.w").event["payload"] == 1


def test_pick_is_not_asked_about_a_payload_that_somebody_resumed_with():
    scene = Scene(flow(wait("w", pick=nothing)))
    scene.take()
    resolve(scene, "w.w", {"payload": {"by": "hand"}})
    scene.take()
    assert (scene.db.status, scene.state) == ("completed", {"by": "hand"})


def test_a_pick_that_raises_fails_its_stage():
    scene = Scene(flow(wait("w", pick=nothing), on_failure="halt"))
    scene.take()
    resolve(scene, "w.w", event(1))
    scene.refuse(scene.take(), "w.w", "ACTION_FAILED")
    assert (scene.db.status, scene.failure("w.w")["code"]) == ("failed", "ACTION_FAILED")


def test_output_of_a_wait_checks_what_came():
    scene = Scene(flow(wait("w", output=Paid), on_failure="halt"))
    scene.take()
    resolve(scene, "w.w", event({"amount": "7", "more": True}))
    scene.take()
    assert (scene.db.status, scene.state) == ("completed", {"amount": 7})


@pytest.mark.parametrize("pick", [None, nothing])
def test_output_of_a_wait_refuses_what_does_not_fit(pick):
    scene = Scene(flow(wait("w", output=Paid, pick=pick), on_failure="halt"))
    scene.take()
    resolve(scene, "w.w", event({"amount": "much"}))
    unit = scene.take()
    if pick:
        scene.done(unit, "w.w", None)
    assert (scene.db.status, scene.failure("w.w")["code"]) == ("failed", "OUTPUT_INVALID")
    assert scene.state == {}


@pytest.mark.parametrize(
    ("value", "correlation"), [("o-1", "o-1"), (17, "17"), (True, "true"), (1.5, "1.5"), ("é", "é")]
)
def test_a_wait_correlates_by_a_key_of_the_state(value, correlation):
    scene = Scene(flow(wait("w", correlate="order")), {"order": value})
    scene.take()
    assert scene.row("w.w").wait_correlation == correlation


@pytest.mark.parametrize("state", [{}, {"order": None}, {"order": {}}, {"order": []}, {"order": ""}])
def test_a_wait_that_has_nothing_to_correlate_by_fails(state):
    scene = Scene(flow(wait("w", correlate="order"), on_failure="halt"), state)
    scene.take()
    assert (scene.db.status, scene.failure("w.w")["code"]) == ("failed", "ACTION_FAILED")


def test_a_correlate_function_is_asked_before_the_wait_parks():
    scene = Scene(flow(wait("w", correlate=nothing)), {"order": 1})
    unit = scene.take()
    assert scene.asked(unit, "w.w").state == {"order": 1}
    scene.answer(unit, "w.w", correlation="o-1")
    assert (scene.row("w.w").wait_correlation, scene.db.status) == ("o-1", "waiting")


def test_a_run_waits_once_the_last_that_was_at_work_beside_the_wait_is_over():
    scene = Scene(flow(parallel(wait("w", via="queue"), stage("s", via="queue"))))
    scene.take()
    scene.take("w.w")
    child = scene.take("w.s")
    assert scene.db.status == "running"
    scene.done(child, "w.s.a")
    assert scene.db.status == "waiting"
    assert scene.story("w.w") == ["waiting"]


def test_a_run_does_not_wait_while_a_retry_is_still_to_come():
    scene = Scene(flow(parallel(wait("w"), stage("s"))))
    unit = scene.take()
    scene.fail(unit, "w.s.a", delay=5)
    assert scene.db.status == "running"
    scene.wait(5)
    scene.done(scene.take(), "w.s.a")
    assert scene.db.status == "waiting"


def test_an_event_that_comes_while_the_unit_is_at_work_beside_the_wait_is_not_missed():
    scene = Scene(flow(parallel(wait("w"), stage("s")), stage("t")))
    unit = scene.take()
    resolve(scene, "w.w", event({"paid": 1}))
    scene.done(unit, "w.s.a")
    assert scene.db.status == "running"
    assert scene.take().running[scene.at("w.t.a")].state == {"paid": 1}


def test_a_queued_wait_is_a_unit_that_wakes_its_parent():
    scene = Scene(flow(wait("w", via="queue"), stage("t")))
    scene.take()
    scene.take("w.w")
    resolve(scene, "w.w", event({"paid": 1}))
    assert scene.jobs() == ["w.w"]
    scene.take("w.w")
    assert scene.take("w").running[scene.at("w.t.a")].state == {"paid": 1}


def test_two_waits_in_a_group_are_each_taken_up_as_they_come():
    scene = Scene(flow(parallel(wait("v"), wait("w")), stage("t")))
    scene.take()
    resolve(scene, "w.w", event({"w": 1}))
    scene.take()
    assert (scene.status("w.v", "w.w"), scene.db.status) == (["waiting", "completed"], "waiting")
    resolve(scene, "w.v", event({"v": 1}))
    assert scene.take().running[scene.at("w.t.a")].state == {"v": 1, "w": 1}


def test_a_failed_stage_leaves_the_wait_beside_it_its_time():
    scene = Scene(flow(parallel(wait("w"), stage("s")), on_failure="halt"))
    scene.fail(scene.take(), "w.s.a", final=True)
    assert (scene.db.status, scene.status("w.w")) == ("waiting", ["waiting"])
    resolve(scene, "w.w", event({"w": 1}))
    scene.take()
    assert (scene.db.status, scene.status("w.w", "w.s"), scene.state) == (
        "failed",
        ["completed", "failed"],
        {"w": 1},
    )
