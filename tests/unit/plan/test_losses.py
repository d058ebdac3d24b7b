"""Workers that die: what is counted, what is tried again, and what ends."""

import pytest

from tests.unit.plan.scene import Scene, act, flow, nothing, stage
from workflow import Stage, WaitFor, parallel
from workflow.plan.losses import MAX_CLAIMS


def test_an_action_that_is_lost_with_its_worker_on_every_attempt_ends_with_that_code():
    scene = Scene(flow(stage("s", act("a", attempts=3)), on_failure="halt"))
    for attempt in (1, 2, 3):
        unit = scene.take()
        assert unit.running[scene.at("w.s.a")].attempt == attempt
        scene.lose(unit)
    scene.take()
    assert (scene.db.status, scene.error["code"], scene.error["node"]) == (
        "failed",
        "LEASE_HEARTBEAT_LOST",
        "w.s.a",
    )
    assert scene.error["message"] == "attempt 3 was lost with its worker (worker 3)"
    assert scene.story("w.s.a") == [
        *["action.started", "action.retrying"] * 2,
        "action.started",
        "action.failed",
    ]


def test_a_lost_attempt_is_followed_by_the_next_in_the_same_boundary():
    scene = Scene(flow(stage("s")))
    scene.lose(scene.take())
    unit = scene.take()
    assert unit.running[scene.at("w.s.a")].attempt == 2
    assert scene.failure("w.s.a")["code"] == "LEASE_HEARTBEAT_LOST"


def test_all_members_that_were_at_work_are_lost_together():
    scene = Scene(flow(stage("s", parallel(act("a"), act("b", attempts=1), act("c")))))
    unit = scene.take()
    scene.done(unit, "w.s.c")
    scene.lose(unit)
    unit = scene.take()
    assert list(unit.running) == [scene.at("w.s.a")]
    assert scene.status("w.s.a", "w.s.b", "w.s.c") == ["running", "failed", "completed"]


def test_the_absolute_cap_leaves_no_further_attempt():
    scene = Scene(flow(stage("s", act("a", attempts=3)), on_failure="halt"))
    scene.lose(scene.take(), "LEASE_ABSOLUTE_CAP")
    scene.take()
    assert (scene.db.status, scene.error["code"], scene.row("w.s.a").attempt) == (
        "failed",
        "LEASE_ABSOLUTE_CAP",
        1,
    )


def test_the_absolute_cap_makes_a_saga_compensate():
    scene = Scene(flow(stage("s", act("a", compensate=nothing), act("b"))))
    unit = scene.take()
    scene.done(unit, "w.s.a")
    scene.lose(unit, "LEASE_ABSOLUTE_CAP")
    scene.take()
    assert scene.db.status == "compensating"


def test_the_absolute_cap_with_nothing_at_work_fails_the_unit_itself():
    scene = Scene(flow(stage("s", when=nothing), stage("t"), on_failure="halt"))
    unit = scene.take()
    scene.lose(unit, "LEASE_ABSOLUTE_CAP")
    scene.take()
    assert (scene.db.status, scene.error["code"], scene.error["node"]) == (
        "failed",
        "LEASE_ABSOLUTE_CAP",
        "w",
    )
    assert set(scene.status("w.s", "w.s.a", "w.t", "w.t.a")) == {"cancelled"}


def test_the_absolute_cap_before_the_first_boundary_fails_a_run_that_had_not_started():
    scene = Scene(flow(stage("s")))
    scene.lose(scene.workers.claim(scene.db.due()[0]), "LEASE_ABSOLUTE_CAP")
    scene.take()
    assert (scene.db.status, scene.story()) == ("compensating", ["started", "compensating"])


def test_the_absolute_cap_of_a_queued_unit_fails_its_node_and_wakes_the_parent():
    scene = Scene(flow(stage("s", act("a"), act("b"), via="queue", when=nothing), on_failure="halt"))
    scene.take()
    scene.lose(scene.take("w.s"), "LEASE_ABSOLUTE_CAP")
    scene.take("w.s")
    assert scene.status("w.s", "w.s.a", "w.s.b") == ["failed", "cancelled", "cancelled"]
    scene.take("w")
    assert (scene.db.status, scene.error["code"], scene.error["node"]) == (
        "failed",
        "LEASE_ABSOLUTE_CAP",
        "w.s",
    )


def test_the_absolute_cap_leaves_queued_children_their_end():
    members = parallel(act("a", via="queue"), act("b", when=nothing))
    scene = Scene(flow(stage("s", members, via="queue"), on_failure="halt"))
    scene.take()
    stuck = scene.take("w.s")
    child = scene.take("w.s.a")
    scene.lose(stuck, "LEASE_ABSOLUTE_CAP")
    scene.take("w.s")
    assert scene.status("w.s", "w.s.a", "w.s.b") == ["running", "running", "failed"]
    scene.done(child, "w.s.a")
    scene.take("w.s")
    scene.take("w")
    assert (scene.db.status, scene.error["code"], scene.error["node"]) == (
        "failed",
        "LEASE_ABSOLUTE_CAP",
        "w.s.b",
    )


def test_a_failure_before_the_cap_stays_the_one_that_counts():
    members = parallel(stage("s"), stage("t", when=nothing))
    scene = Scene(flow(members, on_failure="halt"))
    unit = scene.take()
    scene.fail(unit, "w.s.a", final=True)
    scene.lose(unit, "LEASE_ABSOLUTE_CAP")
    scene.take()
    assert (scene.failure("w")["code"], scene.error["node"]) == ("ACTION_FAILED", "w.s.a")


def test_a_cap_that_was_dealt_with_is_not_held_against_what_begins_after_it():
    members = parallel(act("a"), act("b"))
    scene = Scene(flow(stage("s", members), on_failure="halt"))
    unit = scene.take()
    scene.fail(unit, "w.s.b", delay=10)
    scene.lose(unit, "LEASE_ABSOLUTE_CAP")
    unit = scene.take()  # a has failed by the cap, and b is at work
    assert scene.status("w.s.a", "w.s.b") == ["failed", "running"]
    scene.disconnect(unit)
    unit = scene.take()
    assert (scene.row("w.s.b").attempt, scene.failure("w.s.b")["code"]) == (3, "LEASE_HEARTBEAT_LOST")
    scene.done(unit, "w.s.b")
    assert scene.status("w.s.a", "w.s.b") == ["failed", "completed"]


def test_a_cap_is_held_against_the_unit_until_what_follows_from_it_is_settled():
    scene = Scene(flow(stage("s", act("a"), act("b")), on_failure="halt"))
    scene.lose(scene.take(), "LEASE_ABSOLUTE_CAP")
    unit = scene.workers.claim(scene.db.jobs[1])
    scene.workers.begin(unit)
    scene.disconnect(unit)
    scene.take()
    assert scene.failure("w.s.a")["code"] == "LEASE_ABSOLUTE_CAP"


def test_a_cap_that_was_dealt_with_is_not_held_against_the_unit_again():
    members = parallel(act("a", attempts=1), act("b"))
    scene = Scene(flow(stage("s", members), stage("t"), on_failure="halt"))
    unit = scene.take()
    scene.fail(unit, "w.s.b", delay=10_000)
    scene.lose(unit, "LEASE_ABSOLUTE_CAP")
    scene.take()  # a has failed by the cap, and b waits for its turn
    assert scene.db.jobs[1].last_error == ""
    scene.wait(10_000)
    scene.done(scene.take(), "w.s.b")
    assert scene.status("w.s.a", "w.s.b") == ["failed", "completed"]


def test_a_cap_is_forgotten_although_what_the_unit_awaits_has_settled_already():
    members = parallel(act("a", attempts=1), act("b", via="queue"), act("c", via="queue"))
    scene = Scene(flow(stage("s", members), stage("t"), on_failure="halt"))
    unit = scene.take()
    b, c = scene.take("w.s.b"), scene.take("w.s.c")
    scene.lose(unit, "LEASE_ABSOLUTE_CAP")
    (job,) = scene.db.due()
    unit = scene.workers.claim(job)
    scene.workers.begin(unit)  # it has read b and c at work ...
    scene.done(b, "w.s.b")
    scene.done(c, "w.s.c")
    scene.workers.settle(unit)  # ... and lets go to await them
    scene.take()
    assert scene.error["node"] == "w.s.a"
    assert scene.db.status == "failed"


def lose_often(scene, times, path=None):
    for _ in range(times):
        scene.lose(scene.take(path))


@pytest.mark.parametrize("gated", [{"when": nothing}, {"precheck": nothing}])
def test_a_gate_that_takes_its_worker_every_time_fails_its_node(gated):
    scene = Scene(flow(stage("s", act("a", **gated)), on_failure="halt"))
    lose_often(scene, MAX_CLAIMS)
    assert scene.db.status == "running"
    scene.take()
    assert (scene.db.status, scene.error["code"], scene.error["node"]) == (
        "failed",
        "LEASE_HEARTBEAT_LOST",
        "w.s.a",
    )


def test_a_gate_that_takes_its_worker_now_and_then_fails_nothing():
    scene = Scene(flow(stage("s", act("a", when=nothing))))
    lose_often(scene, MAX_CLAIMS - 1)
    unit = scene.take()
    assert scene.asked(unit, "w.s.a")
    scene.answer(unit, "w.s.a")
    scene.done(unit, "w.s.a")
    assert scene.db.status == "completed"


def test_a_pick_that_takes_its_worker_every_time_fails_its_stage():
    scene = Scene(flow(Stage("s", wait_for=WaitFor("happened", pick=nothing)), on_failure="halt"))
    scene.take()
    outcome = {"event": {"id": "1", "type": "happened", "payload": 1, "correlation": None, "at": "..."}}
    scene.db.resolve(scene.at("w.s"), outcome)
    lose_often(scene, MAX_CLAIMS)
    scene.take()
    assert (scene.db.status, scene.error["code"], scene.error["node"]) == (
        "failed",
        "LEASE_HEARTBEAT_LOST",
        "w.s",
    )


def test_a_validator_that_takes_its_worker_every_time_fails_its_stage():
    scene = Scene(flow(stage("s", act("a", via="queue"), output=dict[str, int]), on_failure="halt"))
    scene.take()
    scene.done(scene.take("w.s.a"), "w.s.a")
    for _ in range(MAX_CLAIMS + 1):  # the queued child may have cost a claim, too
        scene.lose(scene.workers.claim(scene.db.due()[0]))  # it dies while the first move is made
    scene.take()
    assert (scene.db.status, scene.error["code"], scene.error["node"]) == (
        "failed",
        "LEASE_HEARTBEAT_LOST",
        "w.s",
    )


def test_only_what_is_asked_fails_and_the_rest_of_the_group_settles():
    scene = Scene(flow(stage("s", parallel(act("a", when=nothing), act("b"))), on_failure="halt"))
    unit = scene.take()
    scene.done(unit, "w.s.b")
    scene.lose(unit)
    lose_often(scene, MAX_CLAIMS - 1)
    scene.take()
    assert scene.status("w.s.a", "w.s.b") == ["failed", "completed"]


def test_retries_and_polls_are_not_taken_for_losses():
    scene = Scene(flow(stage("s", act("a", attempts=30), act("b", when=nothing))))
    for _ in range(20):
        scene.fail(scene.take(), "w.s.a", delay=1)
        scene.wait()
    for _ in range(20):
        scene.suspend(scene.take(), "w.s.a", 1)
        scene.wait()
    unit = scene.take()
    scene.done(unit, "w.s.a")
    scene.lose(unit)
    unit = scene.take()
    assert scene.db.jobs[1].attempt > MAX_CLAIMS
    assert scene.asked(unit, "w.s.b")


def test_what_is_written_on_the_job_for_another_reason_is_no_loss():
    scene = Scene(flow(stage("s", act("a", when=nothing))))
    scene.db.jobs[1].last_error = "version: no worker here serves w version 1"
    scene.db.jobs[1].attempt = 100
    assert scene.asked(scene.take(), "w.s.a")


def test_an_attempt_that_outlived_its_unit_says_so():
    scene = Scene(flow(stage("s", act("a", attempts=1)), on_failure="halt"))
    scene.lose(scene.take(), "UNIT_TIMEOUT")
    scene.take()
    assert scene.error["code"] == "UNIT_TIMEOUT"
