"""A unit's job moves on to another node of its run, where otherwise a job would be added and claimed."""

import pytest

from tests.unit.plan.scene import Scene, act, flow, flows, nothing, stage
from tests.unit.plan.simulator import JobRow
from workflow import Stage, WaitFor, Workflow, parallel
from workflow.plan import Completed, Due, Unit
from workflow.plan.boundary import AWAIT, DELETE, KEEP
from workflow.plan.losses import MAX_CLAIMS


def moving(workflow: Workflow, times: int = 99) -> Scene:
    """A run whose jobs may move on so many times in each boundary."""
    scene = Scene(workflow)
    scene.workers.moves = times
    return scene


def queued(name: str, *actions: object, **options: object) -> Stage:
    return stage(name, *actions, via="queue", **options)


def test_a_queued_child_that_is_alone_is_begun_in_the_boundary_that_comes_to_it():
    scene = moving(flow(queued("s"), stage("t")))
    unit = scene.take()
    assert (scene.jobs(), scene.status("w", "w.s", "w.s.a")) == (["w.s"], ["running"] * 3)
    assert unit.running[scene.at("w.s.a")].attempt == 1
    assert len({entry.seq for entry in scene.db.history}) == scene.db.seq == 2
    assert scene.db.jobs[scene.at("w.s")].attempt == 1


def test_its_parent_and_the_next_child_follow_in_the_boundary_in_which_it_is_over():
    scene = moving(flow(queued("s"), queued("t")))
    unit = scene.take()
    move = scene.done(unit, "w.s.a", {"n": 1})
    assert move.boundary.moves == (scene.at("w"), scene.at("w.t"))
    assert (scene.jobs(), move.boundary.job) == (["w.t"], KEEP)
    assert unit.running[scene.at("w.t.a")].state == {"n": 1}
    move = scene.done(unit, "w.t.a")
    assert (move.boundary.moves, move.boundary.job, scene.jobs()) == ((scene.at("w"),), DELETE, [])
    assert scene.db.status == "completed"


def test_a_job_goes_down_and_up_through_every_unit_in_between():
    scene = moving(flow(queued("s", act("a", via="queue"), act("b")), stage("t")))
    unit = scene.take()
    assert scene.jobs() == ["w.s.a"]
    scene.done(unit, "w.s.a")
    assert scene.jobs() == ["w.s"]
    scene.done(unit, "w.s.b")
    assert (scene.jobs(), list(unit.running)) == (["w"], [scene.at("w.t.a")])


def test_a_job_goes_on_to_the_next_pipeline():
    scene = moving(flows([queued("s")], [queued("t")]))
    unit = scene.take()
    move = scene.done(unit, "p0.s.a", {"n": 1})
    assert move.boundary.moves == (scene.at("p0"), scene.at("p1"), scene.at("p1.t"))
    assert scene.status("p0", "p1", "p1.t") == ["completed", "running", "running"]
    assert unit.running[scene.at("p1.t.a")].state == {"n": 1}


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_job_moves_on_no_more_often_than_it_may(times: int):
    scene = moving(flow(queued("s"), queued("t")), times)
    scene.take()
    if times == 0:
        assert (scene.jobs(), scene.workers.actors) == (["w.s"], [])
        return
    (unit,) = scene.workers.actors
    move = scene.done(unit, "w.s.a")
    assert len(move.boundary.moves) == times
    assert scene.jobs() == ["w.t"]
    assert scene.workers.actors == [unit] * (
        times - 1
    )  # else it has let go, and the child has a job to be claimed


def test_a_child_that_fails_fails_its_parent_and_turns_the_run_back_in_one_boundary():
    scene = moving(flow(queued("s", act("a", compensate=nothing)), queued("t")))
    unit = scene.take()
    scene.done(unit, "w.s.a")
    scene.fail(unit, "w.t.a", final=True)
    assert (scene.status("w.t", "w"), scene.db.status) == (["failed", "failed"], "compensating")
    assert scene.jobs() == ["compensate"]
    scene.done(unit, "w.s.a")
    assert scene.db.status == "compensated"


def saga(*stages: Stage) -> Scene:
    """A run whose first action has completed, under a job that moves."""
    scene = moving(flow(*stages))
    scene.done(scene.take(), "w.s.a", {"n": 1})
    return scene


def test_what_has_completed_last_is_being_undone_in_the_boundary_in_which_the_run_fails():
    scene = saga(stage("s", act("a", compensate=nothing), act("b", compensate=nothing), act("c")))
    (unit,) = scene.workers.actors
    scene.done(unit, "w.s.b")
    move = scene.fail(unit, "w.s.c", final=True)
    assert (move.boundary.moves, move.boundary.job, move.boundary.new_jobs) == ((0,), KEEP, [])
    assert (scene.db.status, scene.jobs()) == ("compensating", ["compensate"])
    assert unit.running[scene.at("w.s.b")].state == {"n": 1}
    scene.done(unit, "w.s.b")
    scene.done(unit, "w.s.a")
    assert (scene.db.status, scene.jobs()) == ("compensated", [])
    assert scene.status("w.s.a", "w.s.b", "w.s.c") == ["compensated", "compensated", "failed"]


def test_a_walk_back_without_a_claim_keeps_the_error_and_names_what_cannot_be_undone():
    scene = saga(stage("s", act("a", compensate=nothing, compensate_attempts=1), act("b")))
    (unit,) = scene.workers.actors
    scene.fail(unit, "w.s.b", final=True)
    error = scene.error
    scene.fail(unit, "w.s.a")
    assert scene.error == {**error, "compensation_failures": ["w.s.a"]}


@pytest.mark.parametrize(
    "why", ["it was claimed again", "steps were left", "nothing is to be undone", "it halts"]
)
def test_a_run_turns_back_through_the_queue_where_its_story_is_not_known_or_over(why: str):
    undo = None if why == "nothing is to be undone" else nothing
    scene = moving(
        flow(
            stage("s", act("a", compensate=undo), act("b")),
            on_failure="halt" if why == "it halts" else "compensate",
        )
    )
    unit = scene.take()
    scene.done(unit, "w.s.a")
    if why == "it was claimed again":
        scene.workers.shutdown(unit)
        unit = scene.take()
    elif why == "steps were left":
        assert isinstance(unit.plan, Unit)
        unit.plan.has_steps = True
    move = scene.fail(unit, "w.s.b", final=True)
    assert (move.boundary.moves, move.back, scene.workers.actors) == ((), None, [])
    assert scene.jobs() == ([] if why == "it halts" else ["compensate"])


def test_an_action_that_completes_as_its_mate_fails_is_not_changed_twice_in_one_boundary():
    scene = moving(flow(stage("s", parallel(act("a", compensate=nothing), act("b")))))
    unit = scene.take()
    scene.tell(unit, scene.completed("w.s.a"), scene.failed("w.s.b", final=True))
    assert (scene.db.status, scene.jobs()) == ("compensating", ["compensate"])
    scene.done(scene.take(), "w.s.a")
    assert scene.db.status == "compensated"


def test_an_atomic_action_beside_others_may_have_completed_before_them():
    scene = moving(
        flow(
            stage(
                "s",
                parallel(act("a", compensate=nothing, atomic=True), act("b", compensate=nothing)),
                act("c"),
            )
        )
    )
    unit = scene.take()
    scene.workers.commit(unit, scene.at("w.s.a"), None)
    scene.done(unit, "w.s.b")
    scene.tell(unit, Completed(scene.at("w.s.a"), None, None, settled=True))
    scene.fail(unit, "w.s.c", final=True)
    assert list(scene.take().running) == [scene.at("w.s.b")]


def test_what_comes_late_from_the_way_forward_is_not_taken_for_the_end_of_a_compensation():
    scene = saga(stage("s", act("a", compensate=nothing), act("b")))
    (unit,) = scene.workers.actors
    scene.fail(unit, "w.s.b", final=True)
    move = scene.tell(unit, Due(scene.at("w.s.a")))
    assert (move.boundary.empty, list(unit.running)) == (True, [scene.at("w.s.a")])


def test_a_child_that_is_skipped_is_passed_without_a_claim():
    scene = moving(flow(queued("s", when=nothing), queued("t")))
    unit = scene.take()
    assert (scene.jobs(), scene.status("w.s")) == (["w.s"], ["pending"])
    scene.answer(unit, "w.s", go=False)
    assert (scene.status("w.s"), scene.jobs()) == (["skipped"], ["w.t"])


@pytest.mark.parametrize(
    "workflow",
    [
        flow(parallel(queued("s"), queued("t"))),
        flow(parallel(queued("s"), stage("t"))),
        flow(parallel(stage("s", act("a", via="queue")), stage("t"))),
        flow(stage("s", parallel(act("a", via="queue"), act("b")))),
    ],
)
def test_where_others_may_be_at_work_children_go_through_the_queue(workflow: Workflow):
    scene = moving(workflow)
    scene.take()
    assert scene.jobs()[-1] != "w"
    assert "w.s" in scene.jobs() or "w.s.a" in scene.jobs()
    assert scene.status("w.s.a") == ["pending"]


def test_a_parallel_group_comes_after_a_job_that_has_moved_up():
    scene = moving(flow(queued("s"), parallel(queued("t"), queued("u")), queued("v")))
    unit = scene.take()
    move = scene.done(unit, "w.s.a")
    assert (move.boundary.moves, move.boundary.job) == ((scene.at("w"),), AWAIT)
    assert scene.jobs() == ["w.t", "w.u"]
    scene.done(scene.take("w.t"), "w.t.a")
    scene.done(scene.take("w.u"), "w.u.a")
    scene.done(scene.take("w"), "w.v.a")
    assert scene.db.status == "completed"


def test_a_child_that_waits_for_its_turn_is_left_to_the_queue():
    scene = moving(flow(stage("s", act("a", via="queue"))))
    unit = scene.take()
    scene.fail(unit, "w.s.a", delay=60.0)
    assert (scene.jobs(), scene.db.jobs[scene.at("w.s.a")].available_at) == (["w.s.a"], 60)
    scene.db.jobs[1] = JobRow("unit", 1, scene.db.now)  # the parent's job once more
    scene.take("w")
    assert scene.jobs() == ["w.s.a"]
    assert scene.db.jobs[scene.at("w.s.a")].available_at == 60


@pytest.mark.parametrize("end", ["backs off", "is suspended", "stops", "dies"])
def test_what_lets_go_of_the_job_does_so_as_the_node_that_it_is_then(end: str):
    scene = moving(flow(queued("s"), queued("t"), queued("u")))
    unit = scene.take()
    scene.done(unit, "w.s.a")
    if end == "backs off":
        scene.fail(unit, "w.t.a", delay=5.0)
    elif end == "is suspended":
        scene.suspend(unit, "w.t.a", delay=5.0)
    elif end == "stops":
        scene.workers.shutdown(unit)
    else:
        scene.lose(unit)
    (job,) = scene.db.jobs.values()
    assert (scene.jobs(), job.token) == (["w.t"], None)
    assert job.attempt == {"backs off": 1, "is suspended": 0, "stops": 0, "dies": 1}[end]
    assert job.last_error.startswith(
        {"backs off": "ACTION_FAILED", "dies": "LEASE_HEARTBEAT_LOST"}.get(end, "")
    )
    scene.wait()
    unit = scene.take("w.t")
    assert scene.row("w.t.a").attempt == {"backs off": 2, "dies": 2}.get(end, 1)
    scene.done(unit, "w.t.a")
    assert scene.jobs() == ["w"]  # whoever has claimed the child has no parent in memory: it wakes it
    scene.done(scene.take("w"), "w.u.a")
    assert scene.db.status == "completed"


def test_what_failed_before_the_job_moved_on_spends_nothing_of_the_next_nodes():
    scene = moving(flow(stage("r", parallel(act("a"), act("b"))), queued("s")))
    unit = scene.take()
    scene.fail(unit, "w.r.a", delay=1.0)
    scene.wait(1)
    scene.tell(unit, Due(scene.at("w.r.a")))
    scene.done(unit, "w.r.a")
    scene.done(unit, "w.r.b")
    scene.suspend(unit, "w.s.a")
    job = scene.db.jobs[scene.at("w.s")]
    assert (job.attempt, job.last_error) == (0, "")


def test_a_queued_wait_is_parked_under_its_own_job():
    wait = Stage("s", wait_for=WaitFor("t"), via="queue")
    scene = moving(flow(queued("r"), wait, queued("t")))
    unit = scene.take()
    scene.done(unit, "w.r.a")
    assert (scene.jobs(), scene.status("w.s"), scene.db.status) == ([], ["waiting"], "waiting")
    scene.db.resolve(scene.at("w.s"), {"payload": {"n": 1}})
    assert scene.jobs() == ["w.s"]
    scene.take("w.s")
    scene.done(scene.take("w"), "w.t.a")
    assert (scene.db.status, scene.state) == ("completed", {"n": 1})


def test_what_a_unit_has_lost_is_not_held_against_a_child_that_it_comes_to():
    scene = moving(flow(queued("s", when=nothing)))
    scene.take()
    scene.db.jobs = {1: JobRow("unit", 1, scene.db.now)}
    for _ in range(MAX_CLAIMS + 1):
        scene.workers.begin(unit := scene.workers.claim(scene.db.jobs[1]))
        scene.lose(unit)
    scene.take("w")
    assert (scene.jobs(), scene.status("w.s")) == (["w", "w.s"], ["pending"])  # to be claimed, and asked then
    scene.answer(scene.take("w.s"), "w.s")
    assert scene.status("w.s") == ["running"]


def test_a_loss_is_dealt_with_once_the_job_has_moved_on():
    scene = moving(flow(Stage("s", wait_for=WaitFor("t"), via="queue")))
    scene.workers.begin(unit := scene.workers.claim(scene.db.jobs[1]))
    scene.lose(unit)
    scene.take()
    assert (scene.jobs(), scene.db.status) == ([], "waiting")


# --- refused ------------------------------------------------------------------------------------


def test_a_refused_move_is_planned_again_without_it_and_spends_nothing():
    scene = moving(flow(queued("s"), queued("t")))
    unit = scene.take()
    scene.db.paused = True
    move = scene.done(unit, "w.s.a", {"n": 1})
    assert move.boundary.moves
    assert scene.status("w.s.a", "w.s") == ["running", "running"]  # nothing of it was settled
    scene.workers.settle(unit)
    scene.workers.advance(unit)
    scene.workers.settle(unit)
    assert (scene.status("w.s.a", "w.s"), scene.jobs()) == (["completed", "completed"], ["w"])
    assert (scene.row("w.s.a").attempt, scene.state) == (1, {"n": 1})


def test_a_refused_first_boundary_is_planned_again_too():
    scene = moving(flow(queued("s")))
    scene.db.paused = True
    scene.workers.begin(unit := scene.workers.claim(scene.db.jobs[1]))
    scene.workers.settle(unit)
    scene.workers.settle(unit)
    assert (scene.status("w", "w.s"), scene.jobs()) == (["running", "pending"], ["w.s"])
    assert scene.story() == ["started"]


def test_what_was_answered_is_not_asked_again_when_a_move_is_refused():
    scene = moving(flow(queued("s", when=nothing), queued("t")))
    unit = scene.take()
    scene.db.paused = True
    scene.answer(unit, "w.s", go=False)
    scene.workers.settle(unit)
    assert not unit.asked
    scene.workers.advance(unit)
    scene.workers.settle(unit)
    assert (scene.status("w.s"), scene.jobs()) == (["skipped"], ["w"])


def test_an_atomic_action_that_has_settled_itself_stays_settled_when_a_move_is_refused():
    scene = moving(flow(stage("s", act("a", via="queue", atomic=True)), queued("t")))
    unit = scene.take()
    scene.workers.commit(unit, scene.at("w.s.a"), {"n": 1})
    scene.db.paused = True
    scene.tell(unit, Completed(scene.at("w.s.a"), {"n": 1}, None, settled=True))
    scene.workers.settle(unit)
    assert (scene.jobs(), scene.workers.actors) == (["w"], [])
    assert scene.story("w.s.a") == ["action.started", "action.completed"]


def test_a_child_that_its_own_job_has_completed_meanwhile_is_not_begun_again():
    scene = moving(flow(stage("s", act("a", via="queue"), precheck=nothing), stage("t")), times=0)
    scene.workers.crash(scene.take())
    scene.db.now += 60
    scene.answer(scene.take("w"), "w.s")
    assert scene.jobs() == ["w", "w.s.a"]  # after a loss the parent's job stays beside the child's
    child, parent = (scene.workers.claim(scene.db.jobs[scene.at(path)]) for path in ("w.s.a", "w"))
    scene.workers.begin(child)
    scene.workers.moves = 99
    assert scene.workers.begin(parent).boundary.moves == (scene.at("w.s.a"),)
    scene.workers.settle(child)
    scene.done(child, "w.s.a", {"n": 1})
    assert (scene.jobs(), scene.status("w.s.a")) == (["w"], ["completed"])
    scene.workers.settle(parent)  # refused
    scene.workers.settle(parent)
    assert (scene.status("w.s", "w.t.a"), scene.row("w.s.a").attempt) == (["completed", "running"], 1)
    assert scene.story("w.s.a") == ["action.started", "action.completed"]
    scene.done(parent, "w.t.a")
    assert (scene.db.status, scene.state, scene.jobs()) == ("completed", {"n": 1}, [])


def test_another_job_of_the_run_keeps_a_job_from_moving():
    scene = moving(flow(queued("s"), stage("t")))
    unit = scene.take()
    scene.db.jobs[1] = JobRow("unit", 1, scene.db.now)
    scene.done(unit, "w.s.a")
    scene.workers.settle(unit)
    scene.workers.advance(unit)
    scene.workers.settle(unit)
    assert (scene.status("w.s"), scene.jobs()) == (["completed"], ["w"])
    scene.done(scene.take("w"), "w.t.a")
    assert scene.db.status == "completed"


def test_a_child_that_waits_already_is_not_come_to_by_a_parent_that_has_read_it_before():
    """A gate is asked first, so the boundary that comes to it begins nothing: it guards its status all the same."""
    scene = moving(flow(stage("s"), Stage("wait", wait_for=WaitFor("t"), via="queue", when=nothing)), 0)
    scene.done(scene.take(), "w.s.a")
    child = scene.take("w.wait")
    scene.db.jobs[1] = JobRow("unit", 1, scene.db.now)  # the parent's job once more
    scene.workers.moves = 99
    parent = scene.workers.claim(scene.db.jobs[1])
    assert scene.workers.begin(parent).boundary.moves == (scene.at("w.wait"),)
    scene.answer(child, "w.wait")
    assert (scene.status("w.wait"), scene.jobs()) == (["waiting"], ["w"])
    scene.workers.settle(parent)
    scene.workers.settle(parent)
    assert (scene.status("w.wait"), scene.db.status) == (["waiting"], "waiting")
    assert not parent.asked
