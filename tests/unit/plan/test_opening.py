"""The boundary that begins a run: the same for all runs of a definition, where there is one at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.unit.plan.scene import Scene, act, flow, nothing, stage
from tests.unit.plan.test_every_run import inputs, thorough
from tests.unit.plan.trees import workflows
from workflow import Stage, WaitFor, Workflow, parallel
from workflow.plan import NodeSnapshot, RunSnapshot, Unit, opening, seed
from workflow.plan.opening import LONGEST


@thorough
@given(workflows(), inputs)
def test_it_is_what_the_first_unit_of_any_run_settles_first(workflow: Workflow, value: Any) -> None:
    tree = workflow.tree
    run = RunSnapshot("pending", value, seed(value), [NodeSnapshot()] * len(tree.nodes), seq=0, job_attempt=1)
    move = Unit(tree, 1, run).begin()
    found = opening(tree)
    if found is None:
        # A wait is parked, or an empty stage is over at once.
        others = [change for change in move.boundary.changes if change.target != "running"]
        assert move.asks or move.done or not move.starts or move.boundary.new_jobs or others
    else:
        assert found == move.boundary
        assert move.starts
        assert not move.asks
        assert not move.timers


def test_it_starts_the_first_group_of_actions() -> None:
    found = opening(flow(stage("s", parallel(act("a"), act("b")), act("c"))).tree)
    assert found is not None
    assert [(c.ordinal, c.source, c.target, c.attempt) for c in found.changes] == [
        (1, "pending", "running", None),
        (2, "pending", "running", None),
        (3, "pending", "running", 1),
        (4, "pending", "running", 1),
    ]
    assert [entry.name for entry in found.history] == ["started", "action.started", "action.started"]


@pytest.mark.parametrize(
    "first",
    [
        stage("s", act("a", when=nothing)),
        stage("s", act("a", precheck=nothing)),
        stage("s", when=nothing),
        stage("s", act("a", via="queue")),
        stage("s", via="queue"),
        stage("s", parallel(act("a"), act("b", via="queue"))),
        Stage("s", wait_for=WaitFor("t")),
        stage("s", parallel(*[act(f"a{n}") for n in range(LONGEST)])),
    ],
    ids=[
        "gate",
        "precheck",
        "gate of a stage",
        "queued",
        "queued stage",
        "one of them queued",
        "wait",
        "long",
    ],
)
def test_there_is_none_where_runs_differ_or_where_it_is_long(first: Stage) -> None:
    assert opening(flow(first, stage("t")).tree) is None


def test_attempts_that_have_not_begun_are_begun_as_they_are() -> None:
    scene = Scene(flow(stage("s", parallel(act("a", attempts=1), act("b")))))
    scene.give_back_unbegun(scene.take())
    told = scene.story()
    unit = scene.take()
    assert {n: start.attempt for n, start in unit.running.items()} == {
        scene.at("w.s.a"): 1,
        scene.at("w.s.b"): 1,
    }
    assert scene.story() == told
    scene.done(unit, "w.s.a")
    scene.done(unit, "w.s.b")
    assert scene.db.status == "completed"


def test_one_that_has_begun_at_last_and_is_lost_counts() -> None:
    scene = Scene(flow(stage("s", act("a", attempts=2))))
    scene.give_back_unbegun(scene.take())
    scene.lose(scene.take())
    unit = scene.take()
    assert unit.running[scene.at("w.s.a")].attempt == 2
    assert scene.failure("w.s.a")["code"] == "LEASE_HEARTBEAT_LOST"
