"""The tree: order, groups, placement, gates, pipelines, and what a parallel member reads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.runs import PATIENCE, history, names, node, run_through, statuses
from workflow import Action, Pipeline, Stage, WaitFor, Workflow, parallel, workflows
from workflow.models import Job, Node, RunEvent
from workflow.testing import drain

ran: list[str] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    ran.clear()


def act(name: str, output: Any = None, **options: Any) -> Action:
    """Notes that it ran."""

    def run(state: dict[str, Any]) -> Any:
        ran.append(name)
        return output(state) if callable(output) else output

    return Action(name, run, **options)


def failing(name: str, **options: Any) -> Action:
    def run(state: dict[str, Any]) -> None:
        ran.append(name)
        raise RuntimeError(f"{name} failed")

    return Action(name, run, attempts=1, **options)


def test_pipelines_stages_and_actions_run_in_order() -> None:
    definition = Workflow(
        "w",
        pipelines=[
            Pipeline(
                "first", stages=[Stage("a", actions=[act("a1"), act("a2")]), Stage("b", actions=[act("b1")])]
            ),
            Pipeline("second", stages=[Stage("a", actions=[act("c1")])]),
        ],
    )
    status = run_through(definition)
    assert ran == ["a1", "a2", "b1", "c1"]
    assert status.run.status == "completed"
    assert [(n.path, n.kind, n.parent) for n in status.nodes] == [
        ("first", "pipeline", None),
        ("first.a", "stage", "first"),
        ("first.a.a1", "action", "first.a"),
        ("first.a.a2", "action", "first.a"),
        ("first.b", "stage", "first"),
        ("first.b.b1", "action", "first.b"),
        ("second", "pipeline", None),
        ("second.a", "stage", "second"),
        ("second.a.c1", "action", "second.a"),
    ]
    assert set(statuses(status).values()) == {"completed"}


def test_the_history_tells_every_transition_in_order_and_without_gaps() -> None:
    definition = Workflow(
        "w", stages=[Stage("a", actions=[act("x"), act("y")]), Stage("b", run=lambda state: None)]
    )
    assert history(run_through(definition)) == [
        ("started", None),
        ("action.started", "w.a.x"),
        ("action.completed", "w.a.x"),
        ("action.started", "w.a.y"),
        ("action.completed", "w.a.y"),
        ("stage.completed", "w.a"),
        ("action.started", "w.b.b#run"),
        ("action.completed", "w.b.b#run"),
        ("stage.completed", "w.b"),
        ("completed", None),
    ]


def test_a_pipeline_can_be_dispatched_on_its_own() -> None:
    handle = workflows.dispatch(Pipeline("checkout", stages=[Stage("s", actions=[act("x")])]), {})
    drain(handle.run_id)
    status = handle.status()
    assert (status.run.workflow, status.run.version, status.run.status) == ("checkout", 1, "completed")
    assert [n.path for n in status.nodes] == ["checkout", "checkout.s", "checkout.s.x"]


@pytest.mark.parametrize("via", ["inline", "queue"])
def test_a_group_ends_before_what_follows_and_its_members_read_the_state_as_it_started(via: Any) -> None:
    seen: dict[str, Any] = {}

    def member(name: str) -> Action:
        def run(state: dict[str, Any]) -> dict[str, Any]:
            seen[name] = dict(state)
            return {name: 1, "last": name}

        return Action(name, run, via=via)

    after = Action("after", lambda state: seen.update(after=dict(state)))
    definition = Workflow(
        "w", stages=[Stage("s", actions=[act("before", {"b": 0}), parallel(member("x"), member("y")), after])]
    )
    status = run_through(definition, {"i": 1})
    assert status.run.status == "completed"
    assert seen["x"] == seen["y"] == {"i": 1, "b": 0}
    assert {k: seen["after"][k] for k in "xyb"} == {"x": 1, "y": 1, "b": 0}
    assert seen["after"]["last"] == status.run.state["last"]


@pytest.mark.parametrize("via", ["inline", "queue"])
def test_a_parallel_stage_sees_its_own_branch_and_not_its_neighbours(via: Any) -> None:
    seen: dict[str, Any] = {}

    def look(name: str) -> Action:
        return Action(name, lambda state: seen.update({name: sorted(state)}))

    left = Stage("left", actions=[act("l1", {"l1": 1}), look("l2")], via=via)
    right = Stage("right", actions=[act("r1", {"r1": 1}), look("r2")], via=via)
    status = run_through(Workflow("w", stages=[parallel(left, right), Stage("end", actions=[look("end")])]))
    assert status.run.status == "completed"
    assert seen == {"l2": ["l1"], "r2": ["r1"], "end": ["l1", "r1"]}


def test_queued_children_have_jobs_of_their_own_and_the_parent_lets_go() -> None:
    jobs: list[int] = []
    spy = Action(
        "spy", lambda state: jobs.append(Job.objects.filter(lease_token__isnull=False).count()), via="queue"
    )
    status = run_through(Workflow("w", stages=[Stage("s", actions=[spy, act("after")], via="queue")]))
    assert status.run.status == "completed"
    assert jobs == [1]
    assert ran == ["after"]
    assert not Job.objects.exists()


def test_when_skips_an_action_and_skipped_counts_as_done() -> None:
    definition = Workflow(
        "w",
        stages=[
            Stage(
                "a",
                actions=[
                    act("no", when=lambda state: state["go"]),
                    act("yes", when=lambda state: not state["go"]),
                ],
            ),
        ],
    )
    status = run_through(definition, {"go": False})
    assert ran == ["yes"]
    assert statuses(status) == {
        "w": "completed",
        "w.a": "completed",
        "w.a.no": "skipped",
        "w.a.yes": "completed",
    }
    assert ("action.skipped", "w.a.no") in history(status)


def test_everything_beneath_a_skipped_stage_is_skipped() -> None:
    asked: list[str] = []
    inner = act("x", when=lambda state: asked.append("inner") or True)
    definition = Workflow(
        "w",
        stages=[
            Stage("a", actions=[inner, parallel(act("y"), act("z", via="queue"))], when=lambda state: False)
        ],
    )
    status = run_through(definition)
    assert (ran, asked) == ([], [])
    assert statuses(status) == {
        "w": "completed",
        "w.a": "skipped",
        "w.a.x": "skipped",
        "w.a.y": "skipped",
        "w.a.z": "skipped",
    }
    assert names(status) == ["started", "stage.skipped", "completed"]


def test_when_is_asked_before_precheck_just_before_the_node_starts() -> None:
    order: list[str] = []

    def gate(name: str, answer: Any) -> Any:
        return lambda state: order.append(f"{name}:{sorted(state)}") or answer

    stage = Stage(
        "s", actions=[act("x", {"x": 1}), act("y", when=gate("when", True), precheck=gate("precheck", None))]
    )
    run_through(Workflow("w", stages=[stage]))
    assert order == ["when:['x']", "precheck:['x']"]


def test_a_precheck_that_raises_fails_the_node_before_any_side_effect() -> None:
    def check(state: dict[str, Any]) -> None:
        raise ValueError("stock was not reserved")

    status = run_through(Workflow("w", stages=[Stage("a", actions=[act("x", precheck=check, attempts=5)])]))
    assert ran == []
    assert status.run.status == "compensated"
    error = node(status, "w.a.x").error
    assert error is not None
    assert (error["code"], error["message"], error["node"]) == (
        "PRECHECK_FAILED",
        "stock was not reserved",
        "w.a.x",
    )
    assert status.run.error == error


def test_a_gate_that_raises_fails_its_node_and_nobody_else() -> None:
    def when(state: dict[str, Any]) -> bool:
        raise KeyError("total")

    definition = Workflow("w", stages=[Stage("a", actions=[parallel(act("x", when=when), act("y"))])])
    status = run_through(definition)
    assert ran == ["y"]
    assert statuses(status)["w.a.y"] == "completed"
    assert status.run.error is not None
    assert (status.run.error["code"], status.run.error["type"]) == ("ACTION_FAILED", "KeyError")
    assert status.run.error["message"] == "'total'"
    assert status.run.error["traceback"].endswith("KeyError: 'total'")


def test_async_gates_are_awaited() -> None:
    async def when(state: dict[str, Any]) -> bool:
        return False

    assert (
        statuses(run_through(Workflow("w", stages=[Stage("a", actions=[act("x", when=when)])])))["w.a.x"]
        == "skipped"
    )


@pytest.mark.parametrize("via", ["inline", "queue"])
def test_a_failed_member_lets_the_rest_of_its_group_settle(via: Any) -> None:
    group = parallel(failing("bad", via=via), act("good", {"g": 1}, via=via), act("other", via=via))
    definition = Workflow(
        "w", stages=[Stage("a", actions=[group, act("never")]), Stage("b", actions=[act("never2")])]
    )
    status = run_through(definition)
    assert sorted(ran) == ["bad", "good", "other"]
    assert status.run.status == "compensated"
    assert statuses(status) == {
        "w": "failed",
        "w.a": "failed",
        "w.a.bad": "failed",
        "w.a.good": "completed",
        "w.a.other": "completed",
        "w.a.never": "cancelled",
        "w.b": "cancelled",
        "w.b.never2": "cancelled",
    }


def test_on_failure_halt_lets_side_effects_stand() -> None:
    undone: list[str] = []
    done = act("done", compensate=lambda state: undone.append("done"))
    definition = Workflow("w", stages=[Stage("a", actions=[done, failing("bad")])], on_failure="halt")
    status = run_through(definition)
    assert status.run.status == "failed"
    assert undone == []
    assert history(status)[-1] == ("failed", None)
    assert not Job.objects.exists()


def test_a_wide_and_deep_tree_settles() -> None:
    wide = parallel([act(f"a{i}", {f"k{i}": i}, via="queue" if i % 3 == 0 else "inline") for i in range(50)])
    definition = Workflow(
        "w",
        stages=[Stage("wide", actions=wide), *[Stage(f"s{i}", actions=[act(f"x{i}")]) for i in range(100)]],
    )
    status = run_through(definition)
    assert status.run.status == "completed"
    assert len(status.run.state) == 50
    assert ran[-100:] == [f"x{i}" for i in range(100)]


def test_a_wait_beside_running_work_lets_the_work_go_on() -> None:
    wait = Stage("wait", wait_for=WaitFor("go"))
    work = Stage("work", actions=[act("one"), act("two")])
    definition = Workflow("w", stages=[parallel(wait, work), Stage("end", actions=[act("end")])])
    handle = workflows.dispatch(definition, {})
    drain(handle.run_id)
    assert ran == ["one", "two"]
    assert handle.status().run.status == "waiting"
    workflows.publish("go", {"from": "outside"})
    drain(handle.run_id)
    assert ran == ["one", "two", "end"]
    assert handle.status().run.status == "completed"
    assert RunEvent.objects.filter(run_id=handle.run_id, name="stage.completed").count() == 3


def test_a_unit_whose_child_was_over_when_it_let_go_is_due_with_nothing_against_it() -> None:
    seen = []

    def waits_for_its_mate(state: dict[str, Any]) -> None:
        Job.objects.filter(lease_token__isnull=False).update(last_error="version: no worker here serves it")
        drain(timeout=PATIENCE)  # the queued mate, on its own job
        assert Node.objects.get(path="w.s.mate").status == "completed"

    def look(state: dict[str, Any]) -> None:
        seen.append(Job.objects.get().last_error)

    definition = Workflow(
        "w",
        stages=[
            Stage(
                "s",
                actions=[
                    parallel(
                        Action("inline", waits_for_its_mate),
                        Action("mate", lambda state: None, via="queue"),
                    )
                ],
            ),
            Stage("after", actions=[Action("look", look)]),
        ],
    )
    assert run_through(definition).run.status == "completed"
    assert seen == [""]
