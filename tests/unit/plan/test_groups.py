"""Groups: what starts together, what waits for what, and how a failed member lets the rest settle."""

from tests.unit.plan.scene import Scene, act, flow, flows, stage
from workflow import Stage, parallel


def test_actions_of_a_list_run_one_after_another():
    scene = Scene(flow(stage("s", act("a"), act("b"))))
    unit = scene.take()
    assert list(unit.running) == [scene.at("w.s.a")]
    move = scene.done(unit, "w.s.a", {"a": 1})
    assert [(start.ordinal, start.state) for start in move.starts] == [(scene.at("w.s.b"), {"a": 1})]


def test_the_end_of_an_action_its_stage_and_the_start_of_the_next_are_one_boundary():
    scene = Scene(flow(stage("s"), stage("t")))
    move = scene.done(scene.take(), "w.s.a", {"n": 1})
    assert [entry.name for entry in move.boundary.history] == [
        "action.completed",
        "stage.completed",
        "action.started",
    ]
    assert [(c.ordinal, c.source, c.target) for c in move.boundary.changes] == [
        (scene.at("w.s.a"), "running", "completed"),
        (scene.at("w.s"), "running", "completed"),
        (scene.at("w.t"), "pending", "running"),
        (scene.at("w.t.a"), "pending", "running"),
    ]
    assert move.boundary.patch == '{"n": 1}'


def test_the_next_group_starts_when_every_member_is_over_and_not_before():
    scene = Scene(flow(stage("s", parallel(act("a"), act("b"), act("c")), act("d"))))
    unit = scene.take()
    assert len(unit.running) == 3
    scene.done(unit, "w.s.c")
    assert not scene.done(unit, "w.s.a").starts
    assert scene.status("w.s.d") == ["pending"]
    assert [start.ordinal for start in scene.done(unit, "w.s.b").starts] == [scene.at("w.s.d")]


def test_a_failed_member_lets_its_group_settle_before_the_run_turns():
    scene = Scene(flow(stage("s", parallel(act("a"), act("b"), act("c")), act("d")), on_failure="halt"))
    unit = scene.take()
    scene.fail(unit, "w.s.a", final=True)
    assert (scene.db.status, scene.status("w.s.b", "w.s.c")) == ("running", ["running", "running"])
    move = scene.fail(unit, "w.s.b", delay=5)  # it still has its attempts
    assert [timer.ordinal for timer in move.timers] == [scene.at("w.s.b")]
    scene.done(unit, "w.s.c", {"c": 1})
    scene.wait(5)
    unit = scene.take()
    scene.done(unit, "w.s.b", {"b": 1})
    assert (scene.db.status, scene.state) == ("failed", {"b": 1, "c": 1})
    assert scene.status("w.s.a", "w.s.b", "w.s.c", "w.s.d") == [
        "failed",
        "completed",
        "completed",
        "cancelled",
    ]


def test_two_outcomes_at_once_make_one_boundary():
    scene = Scene(flow(stage("s", parallel(act("a"), act("b")), act("c"))))
    unit = scene.take()
    move = scene.tell(
        unit, scene.completed("w.s.b", {"k": "b", "b": 1}), scene.completed("w.s.a", {"k": "a"})
    )
    assert [start.state for start in move.starts] == [{"k": "a", "b": 1}]
    assert scene.state == {"k": "a", "b": 1}


def test_parallel_stages_go_their_own_ways_and_meet_at_the_end():
    left, right = stage("left", act("a"), act("b")), stage("right", act("a"))
    scene = Scene(flow(parallel(left, right), stage("last")))
    unit = scene.take()
    scene.done(unit, "w.right.a")
    assert scene.status("w.right", "w.left") == ["completed", "running"]
    scene.done(unit, "w.left.a")
    assert [start.ordinal for start in scene.done(unit, "w.left.b").starts] == [scene.at("w.last.a")]


def test_pipelines_follow_each_other_each_as_a_unit_of_its_own():
    scene = Scene(flows([stage("s")], [stage("t")], [stage("u")]))
    scene.done(scene.take(), "p0.s.a", {"a": 1})
    assert (scene.jobs(), scene.status("p0", "p1", "p2")) == (["p1"], ["completed", "pending", "pending"])
    unit = scene.take()
    assert unit.running[scene.at("p1.t.a")].state == {"a": 1}
    scene.done(unit, "p1.t.a")
    scene.done(scene.take(), "p2.u.a")
    assert (scene.db.status, scene.jobs()) == ("completed", [])
    assert [name for name in scene.story() if "." not in name] == ["started", "completed"]


def test_a_failed_pipeline_is_the_last():
    scene = Scene(flows([stage("s")], [stage("t")], on_failure="halt"))
    scene.fail(scene.take(), "p0.s.a", final=True)
    assert scene.status("p0", "p1", "p1.t", "p1.t.a") == ["failed", "cancelled", "cancelled", "cancelled"]
    assert scene.jobs() == []


def test_outputs_of_every_kind_merge_as_the_contract_says():
    implicit = Stage("made", run=lambda state: None)
    scene = Scene(flow(stage("s", act("obj"), act("num"), act("items"), act("none")), implicit))
    unit = scene.take()
    scene.done(unit, "w.s.obj", {"k": 1})
    scene.done(unit, "w.s.num", 4200)
    scene.done(unit, "w.s.items", ["x"])
    scene.done(unit, "w.s.none", None)
    scene.done(unit, "w.made.made#run", False)
    assert scene.state == {"k": 1, "num": 4200, "items": ["x"], "made": False}
    assert (scene.row("w.s.none").output, scene.row("w.s.num").output) == (None, "4200")


def test_an_input_that_is_no_object_stands_under_its_own_key():
    scene = Scene(flow(stage("s")), [1, 2])
    assert scene.take().running[scene.at("w.s.a")].state == {"input": [1, 2]}
