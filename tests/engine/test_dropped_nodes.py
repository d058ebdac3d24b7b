"""Runs under newer code that has dropped nodes which are over: their outputs stay part of what later nodes read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from pydantic import BaseModel

from workflow import Action, Fatal, Pipeline, Stage, WaitFor, Workflow, parallel, workflows
from workflow.definitions import Parallel
from workflow.models import Job, Node
from workflow.registry import registry
from workflow.results import RunStatus
from workflow.testing import advance, drain

seen: dict[str, list[dict[str, Any]]] = {}
broken: set[str] = set()


@pytest.fixture(autouse=True)
def _clear() -> None:
    seen.clear()
    broken.clear()


def see(name: str, output: Any = None, **options: Any) -> Action:
    """Notes the state that it reads, in the order of its keys, and fails while it is `broken`."""

    def run(state: dict[str, Any]) -> Any:
        seen.setdefault(name, []).append(dict(state))
        if name in broken:
            raise Fatal("broken")
        return {name: len(seen[name])} if output is None else output

    return Action(name, run, **options)


def nap(name: str, **options: Any) -> Action:
    """The same, after a sleep of ten seconds."""

    def run(state: dict[str, Any], ctx: Any) -> Any:
        ctx.step.sleep("nap", 10)
        seen.setdefault(name, []).append(dict(state))
        return {name: len(seen[name])}

    return Action(name, run, **options)


def stage(name: str, *actions: Action | Parallel, **options: Any) -> Stage:
    return Stage(name, actions=list(actions), **options)


def release(
    version: int,
    *stages: Stage | Parallel,
    on_failure: Any = "compensate",
    pipelines: Sequence[Pipeline] | None = None,
) -> Workflow:
    """This code serves that version from now on, and runs of all before it."""
    registry.clear()
    tree: dict[str, Any] = {"stages": list(stages)} if pipelines is None else {"pipelines": list(pipelines)}
    earlier = tuple(range(1, version))
    return registry.register(
        Workflow("w", version=version, compatible_versions=earlier, on_failure=on_failure, **tree)
    )


def begun(*stages: Stage | Parallel, **options: Any) -> Any:
    handle = workflows.dispatch(release(1, *stages, **options), {"i": 1})
    drain(handle.run_id)
    return handle


def goes_on(handle: Any) -> RunStatus:
    workflows.publish("go", 1)
    drain()
    drain(handle.run_id)
    advance(10)
    drain(handle.run_id)
    status = workflows.status(handle.run_id)
    assert status.run.status == "completed", status.run.error
    return status


GO = Stage("go", wait_for=WaitFor("go", pick=lambda event: {"went": 1}))
LAST = stage("z", see("z"))


@pytest.mark.parametrize("via", ["inline", "queue"])
def test_members_of_a_group_read_what_was_dropped_before_it(via: Any) -> None:
    group = stage("p", parallel(see("c1", via=via), nap("c2", via=via)))
    handle = begun(stage("a", see("a")), stage("b", see("b")), GO, group, LAST)
    release(2, stage("a", see("a")), GO, group, LAST)
    goes_on(handle)
    before = {"a": 1, "b": 1, "i": 1, "went": 1}
    assert seen["c1"] == seen["c2"] == [before]
    assert list(seen["c2"][0]) == list(before)
    assert seen["z"] == [{**before, "c1": 1, "c2": 1}]


def test_a_key_is_that_of_whoever_wrote_it_last_dropped_or_not() -> None:
    group = stage("p", parallel(see("c1"), nap("c2")))
    kept = [stage("a", see("a", {"k": "a", "l": "a"})), stage("c", see("c", {"l": "c"}))]
    dropped = stage("b", see("b", {"k": "b", "l": "b"}))
    handle = begun(kept[0], dropped, kept[1], GO, group)
    release(2, *kept, GO, group)
    goes_on(handle)
    assert seen["c1"] == seen["c2"] == [{"i": 1, "k": "b", "l": "c", "went": 1}]


class Sum(BaseModel):
    total: int


@pytest.mark.parametrize(
    ("dropped", "adds"),
    [
        (Stage("b", wait_for=WaitFor("first")), {"b": 5}),
        (stage("b", see("x", {"total": 3, "x": 1}), output=Sum), {"total": 3, "x": 1}),
        (Stage("b", run=lambda state: 7), {"b": 7}),
    ],
    ids=["a wait", "a stage with an output", "an implicit action"],
)
def test_what_a_dropped_stage_gave_is_read_as_it_was(dropped: Stage, adds: dict[str, Any]) -> None:
    group = stage("p", parallel(see("c1"), nap("c2")))
    handle = begun(dropped, GO, group)
    workflows.publish("first", 5)
    drain()
    drain(handle.run_id)
    release(2, GO, group)
    goes_on(handle)
    assert seen["c1"] == seen["c2"] == [{"i": 1, "went": 1, **adds}]


@pytest.mark.parametrize("via", ["inline", "queue"])
@pytest.mark.parametrize("mates", [1, 2])
def test_members_of_a_group_do_not_read_a_mate_that_was_dropped(mates: int, via: Any) -> None:
    left = [nap(f"c{n}", via=via) for n in range(1, mates + 1)]
    handle = begun(stage("a", see("a")), stage("p", parallel(see("b", via=via), *left)), LAST)
    release(2, stage("a", see("a")), stage("p", parallel(*left) if mates > 1 else left[0]), LAST)
    goes_on(handle)
    others = {f"c{n}": 1 for n in range(1, mates + 1)}
    assert [seen[name] for name in others] == [[{"a": 1, "i": 1}]] * mates
    assert seen["z"] == [{"a": 1, "b": 1, "i": 1, **others}]


def test_a_mate_that_was_over_before_the_other_began_was_one_all_the_same() -> None:
    def pause(state: dict[str, Any]) -> None:
        workflows.pause_queue("default")

    left = nap("c", via="queue")
    group = stage("p", parallel(see("b", via="queue"), left))
    handle = begun(stage("a", see("a"), Action("pause", pause)), group, LAST)
    mine = Job.objects.filter(node_id=Node.objects.get(path="w.p.c").id)
    assert mine.update(available_at=F("available_at") + timedelta(hours=1)) == 1
    workflows.resume_queue("default")
    drain(handle.run_id)
    assert "c" not in seen
    mine.update(available_at=F("available_at") - timedelta(hours=1))
    drain(handle.run_id)
    release(2, stage("a", see("a")), stage("p", left), LAST)
    goes_on(handle)
    assert (seen["c"], seen["z"]) == ([{"a": 1, "i": 1}], [{"a": 1, "b": 1, "c": 1, "i": 1}])


@pytest.mark.parametrize("via", ["inline", "queue"])
def test_what_was_dropped_beneath_a_member_is_read_in_its_own_branch_alone(via: Any) -> None:
    mine = [see("x1"), see("x2"), nap("x3")]
    yours = stage("y", see("y1"), nap("y2"), via=via)
    handle = begun(parallel(stage("x", *mine, via=via), yours), LAST)
    release(2, parallel(stage("x", *mine[1:], via=via), yours), LAST)
    goes_on(handle)
    assert (seen["x3"], seen["y2"]) == ([{"i": 1, "x1": 1, "x2": 1}], [{"i": 1, "y1": 1}])
    assert seen["z"] == [{"i": 1, "x1": 1, "x2": 1, "x3": 1, "y1": 1, "y2": 1}]


def test_a_whole_pipeline_that_was_dropped_is_read_on() -> None:
    last = Pipeline("q", [stage("p", parallel(see("c1"), nap("c2")))])
    handle = begun(pipelines=[Pipeline("p", [stage("a", see("a"))]), last])
    release(2, pipelines=[last])
    goes_on(handle)
    assert seen["c1"] == seen["c2"] == [{"a": 1, "i": 1}]


def test_the_output_of_a_stage_has_what_its_dropped_actions_gave() -> None:
    actions = [see("a", {"total": 1}), see("b", {"total": 2}), nap("c")]
    handle = begun(stage("s", *actions, output=Sum))
    release(2, stage("s", actions[0], actions[2], output=Sum))
    assert goes_on(handle).run.state == {"c": 1, "i": 1, "total": 2}


def undoing(undone: list[Any]) -> Callable[[dict[str, Any], Any], Any]:
    def run(state: dict[str, Any], ctx: Any) -> None:
        state_then = dict(state)
        ctx.step.run("book", lambda: 1, compensate=lambda: undone.append(state_then))
        ctx.step.sleep("nap", 10)
        raise Fatal("turn back")

    return run


def test_a_step_is_undone_in_the_state_that_its_handler_read() -> None:
    undone: list[Any] = []
    books = stage("s", Action("books", undoing(undone)))
    handle = begun(stage("a", see("a")), stage("b", see("b")), books)
    release(2, stage("a", see("a")), books)
    advance(10)
    drain(handle.run_id)
    assert workflows.status(handle.run_id).run.status == "compensated"
    assert undone == [{"a": 1, "b": 1, "i": 1}]


@pytest.mark.parametrize("from_node", [None, "w.p.c1", "w.a"])
def test_a_retry_leaves_what_was_dropped_where_it_was(from_node: str | None) -> None:
    """A mate that was dropped stays one, and what was done again before the group is read anew."""
    broken.add("c1")
    left = [see("c1"), see("c2")]
    first, halt = stage("a", see("a")), {"on_failure": "halt"}
    handle = begun(
        first, stage("b", see("b")), stage("p", parallel(see("d"), *left)), LAST, on_failure="halt"
    )
    assert workflows.status(handle.run_id).run.status == "failed"
    broken.clear()
    release(2, first, stage("p", parallel(*left)), LAST, **halt)
    workflows.retry(handle.run_id, from_node=from_node)
    a = 2 if from_node == "w.a" else 1
    status = goes_on(handle)
    assert seen["c1"][-1] == {"a": a, "b": 1, "i": 1}
    assert seen["c2"][-1] == {"a": a, "b": 1, "i": 1}
    c2 = len(seen["c2"])
    assert seen["z"] == [{"a": a, "b": 1, "c1": 2, "c2": c2, "d": 1, "i": 1}]
    assert status.run.state == {**seen["z"][0], "z": 1}


def test_a_member_that_failed_and_was_dropped_fails_its_group() -> None:
    broken.add("b")
    handle = begun(stage("p", parallel(see("b"), nap("c"))), LAST)
    release(2, stage("p", nap("c")), LAST)
    advance(10)
    drain(handle.run_id)
    status = workflows.status(handle.run_id)
    assert (status.run.status, status.run.error["node"]) == ("compensated", "w.p.b")
    assert "z" not in seen
