"""Nodes with a job of their own: who starts them, who wakes whom, and what a late job does."""

from tests.unit.plan.scene import Scene, act, flow, flows, stage
from tests.unit.plan.simulator import JobRow
from workflow import Stage, WaitFor, parallel


def test_a_job_that_was_added_again_after_its_action_completed_does_nothing():
    scene = Scene(flow(stage("s", parallel(act("a", via="queue"), act("b"), act("c", via="queue")))))
    parent = scene.take()
    scene.fail(parent, "w.s.b", delay=5.0)
    scene.wait(6)
    (job,) = [job for job in scene.db.due() if job.ordinal == scene.at("w")]
    parent = scene.workers.claim(job)
    scene.workers.begin(parent)  # it has seen a and c pending ...
    scene.done(scene.take("w.s.a"), "w.s.a", {"a": 1})  # ... and settles after a is over
    scene.workers.settle(parent)
    assert scene.jobs() == ["w", "w.s.a", "w.s.c"]
    ghost = scene.take("w.s.a")
    assert ghost not in scene.workers.actors
    assert scene.jobs() == ["w", "w.s.c"]
    assert scene.story("w.s.a") == ["action.started", "action.completed"]


def test_a_queued_action_runs_in_a_job_of_its_own_and_its_parent_lets_go():
    scene = Scene(flow(stage("s", act("a", via="queue"), act("b"))))
    scene.take()
    assert (scene.jobs(), scene.workers.actors) == (["w.s.a"], [])
    assert scene.status("w.s", "w.s.a") == ["running", "pending"]
    unit = scene.take()
    scene.done(unit, "w.s.a", {"a": 1})
    assert scene.jobs() == ["w"]
    assert scene.take().running[scene.at("w.s.b")].state == {"a": 1}


def test_the_last_of_the_queued_members_to_settle_wakes_the_parent_and_no_other():
    scene = Scene(
        flow(stage("s", parallel(act("a", via="queue"), act("b", via="queue"), act("c", via="queue"))))
    )
    scene.take()
    a, b, c = (scene.take(f"w.s.{name}") for name in "abc")
    scene.done(b, "w.s.b")
    assert "w" not in scene.jobs()
    scene.fail(c, "w.s.c", final=True)
    assert "w" not in scene.jobs()
    scene.done(a, "w.s.a")
    assert scene.jobs() == ["w"]


def test_a_parent_that_is_at_work_when_the_last_child_settles_finds_out_when_it_lets_go():
    scene = Scene(flow(stage("s", parallel(act("a", via="queue"), act("b")), act("c"))))
    parent = scene.take()
    scene.done(scene.take("w.s.a"), "w.s.a", {"a": 1})
    move = scene.done(parent, "w.s.b", {"b": 1})
    assert move.boundary.awaited == [(scene.at("w.s.a"),)]
    assert scene.take("w").running[scene.at("w.s.c")].state == {"a": 1, "b": 1}


def test_a_parent_in_its_backoff_is_woken_early_and_goes_back_to_wait():
    scene = Scene(flow(stage("s", parallel(act("a", via="queue"), act("b")), act("c"))))
    parent = scene.take()
    scene.fail(parent, "w.s.b", delay=60)
    scene.wait(10)
    scene.done(scene.take("w.s.a"), "w.s.a")
    scene.take("w")
    assert not scene.db.due()
    assert scene.db.jobs[1].available_at == 60
    scene.wait(50)
    assert scene.take("w").running[scene.at("w.s.b")].attempt == 2


def test_a_queued_stage_drives_what_is_inline_beneath_it():
    scene = Scene(flow(stage("s", act("a"), act("b"), via="queue"), stage("t")))
    scene.take()
    unit = scene.take("w.s")
    scene.done(unit, "w.s.a", {"a": 1})
    scene.done(unit, "w.s.b")
    assert (scene.status("w.s"), scene.jobs()) == (["completed"], ["w"])
    assert scene.take().running[scene.at("w.t.a")].state == {"a": 1}


def test_a_queued_action_in_a_queued_stage_wakes_that_stage():
    scene = Scene(flow(stage("s", act("a", via="queue"), via="queue")))
    scene.take("w")
    scene.take("w.s")
    scene.done(scene.take("w.s.a"), "w.s.a")
    assert scene.jobs() == ["w.s"]
    scene.take("w.s")
    scene.take("w")
    assert scene.db.status == "completed"


def test_inline_stages_in_parallel_each_await_their_own_queued_actions():
    members = [stage(name, act("a", via="queue"), act("b")) for name in ("left", "right")]
    scene = Scene(flow(parallel(*members)))
    scene.take()
    assert scene.jobs() == ["w.left.a", "w.right.a"]
    scene.done(scene.take("w.right.a"), "w.right.a", {"r": 1})
    unit = scene.take("w")
    assert list(unit.running) == [scene.at("w.right.b")]
    scene.done(scene.take("w.left.a"), "w.left.a", {"l": 1})
    scene.done(unit, "w.right.b")
    unit = scene.take("w")
    assert unit.running[scene.at("w.left.b")].state == {"l": 1}


def test_an_exhausted_queued_action_fails_its_stage_through_its_parent():
    scene = Scene(flow(stage("s", act("a", via="queue", attempts=1)), on_failure="halt"))
    scene.take()
    scene.fail(scene.take("w.s.a"), "w.s.a")
    assert (scene.status("w.s.a", "w.s"), scene.db.status) == (["failed", "running"], "running")
    scene.take("w")
    assert (scene.failure("w.s"), scene.db.status) == (scene.failure("w.s.a"), "failed")


def test_a_worker_that_stops_gives_its_unit_back_and_spends_no_attempt():
    scene = Scene(flow(stage("s", parallel(act("a"), act("b")))))
    unit = scene.take()
    scene.done(unit, "w.s.b", {"b": 1})
    scene.workers.shutdown(unit)
    assert (scene.status("w.s.a", "w.s.b"), scene.row("w.s.a").attempt) == (["pending", "completed"], 0)
    assert scene.db.jobs[1].attempt == 0
    assert scene.db.history[-1].data["reason"] == "shutdown"
    unit = scene.take()
    start = unit.running[scene.at("w.s.a")]
    assert (start.attempt, start.state) == (1, {})


def test_a_unit_that_is_given_back_forgets_nothing_of_what_it_awaits():
    scene = Scene(flow(stage("s", parallel(act("a", via="queue"), act("b")))))
    unit = scene.take()
    scene.done(scene.take("w.s.a"), "w.s.a")
    scene.workers.shutdown(unit)
    scene.done(scene.take("w"), "w.s.b")
    assert scene.db.status == "completed"


def test_a_job_of_a_pipeline_that_is_over_changes_nothing():
    scene = Scene(flows([stage("s")], [stage("t")]))
    scene.done(scene.take(), "p0.s.a")
    later = scene.take("p1")
    scene.db.jobs[1] = JobRow("unit", 1, scene.db.now)
    scene.take("p0")
    assert (scene.jobs(), scene.db.status) == (["p1"], "running")
    scene.done(later, "p1.t.a")
    assert scene.db.status == "completed"


def test_what_comes_late_leaves_a_run_waiting_of_which_only_parked_waits_are_left():
    scene = Scene(flows([stage("s")], [Stage("wait", wait_for=WaitFor("t"))]))
    scene.done(scene.take(), "p0.s.a")
    scene.db.jobs[1] = JobRow("unit", 1, scene.db.now)  # the first pipeline's job once more
    late = scene.workers.claim(scene.db.jobs[1])
    scene.workers.begin(late)
    scene.take("p1")
    assert (scene.status("p1.wait"), scene.db.status) == (["waiting"], "running")
    scene.workers.settle(late)
    assert (scene.jobs(), scene.db.status, scene.story()[-1]) == ([], "waiting", "waiting")
