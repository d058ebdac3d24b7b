"""Runs under newer code: they go on by path, or wait for their own version, or end in one clear error."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils.timezone import now

from tests.support.runs import node
from workflow import Action, Pipeline, Retry, Stage, WaitFor, Workflow, parallel, workflows
from workflow.executor import ghosts
from workflow.models import Job, Node, Run
from workflow.registry import registry
from workflow.results import RunStatus
from workflow.testing import advance, drain

called: list[str] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    called.clear()


def act(name: str, **options: Any) -> Action:
    def run(state: dict[str, Any]) -> str:
        called.append(name)
        return name

    return Action(name, run, compensate=lambda state: called.append(f"undo {name}"), **options)


WAIT = Stage("wait", wait_for=WaitFor("go"))


def release(version: int, *stages: Stage, compatible: tuple[int, ...] = ()) -> Workflow:
    """This code serves another version from now on."""
    registry.clear()
    return registry.register(
        Workflow("w", version=version, stages=list(stages), compatible_versions=compatible)
    )


def parked(*stages: Stage) -> Any:
    """A run of version 1 that waits in its middle."""
    handle = workflows.dispatch(release(1, *stages), {})
    drain(handle.run_id)
    assert handle.status().run.status == "waiting"
    return handle


def gone_on(handle: Any) -> RunStatus:
    workflows.publish("go")
    drain(handle.run_id)
    return workflows.status(handle.run_id)


def test_a_run_stays_with_its_version_and_waits_for_it() -> None:
    handle = parked(Stage("a", actions=[act("a1")]), WAIT, Stage("b", actions=[act("b1")]))
    release(2, Stage("a", actions=[act("a1")]), WAIT, Stage("b", actions=[act("b1")]))
    before = ghosts["version"]
    status = gone_on(handle)
    assert (status.run.status, ghosts["version"] - before) == ("running", 1)
    (job,) = Job.objects.filter(run_id=handle.run_id)
    assert (job.attempt, job.lease_token) == (0, None)
    assert job.last_error.startswith("version: no worker here serves w version 1")
    release(1, Stage("a", actions=[act("a1")]), WAIT, Stage("b", actions=[act("b1")]))
    advance(10)
    drain(handle.run_id)
    assert workflows.status(handle.run_id).run.status == "completed"


def test_compatible_code_takes_over_and_finds_nodes_by_path_wherever_they_moved() -> None:
    old = [Stage("a", actions=[act("a1")]), WAIT, Stage("b", actions=[act("b1"), act("b2")])]
    handle = parked(*old)
    release(
        2,
        Stage("a", actions=[act("a1")]),
        WAIT,
        Stage("b", actions=[parallel(act("b2"), act("b1"))]),
        compatible=(1,),
    )
    status = gone_on(handle)
    assert (status.run.status, status.run.version) == ("completed", 1)
    assert sorted(called) == ["a1", "b1", "b2"]
    assert status.run.state == {"a1": "a1", "b1": "b1", "b2": "b2"}


def test_what_is_done_may_be_gone_from_the_newer_code() -> None:
    handle = parked(Stage("a", actions=[act("a1"), act("a2")]), WAIT, Stage("b", actions=[act("b1")]))
    release(2, Stage("a", actions=[act("a1")]), WAIT, Stage("b", actions=[act("b1")]), compatible=(1,))
    assert gone_on(handle).run.status == "completed"
    assert called == ["a1", "a2", "b1"]


@pytest.mark.parametrize(
    ("stages", "named"),
    [
        ([Stage("a", actions=[act("a1")]), WAIT], "w.b"),
        (
            [
                Stage("a", actions=[act("a1")]),
                Stage("new", actions=[act("n1")]),
                WAIT,
                Stage("b", actions=[act("b1")]),
            ],
            "w.new",
        ),
        ([Stage("a", actions=[act("a1")]), WAIT, Stage("b", actions=[act("other")])], "w.b.other"),
    ],
    ids=["what is left is gone", "there is more", "another name"],
)
def test_a_tree_that_does_not_fit_ends_in_one_clear_error_and_calls_nobody(
    stages: list[Stage], named: str
) -> None:
    handle = parked(Stage("a", actions=[act("a1")]), WAIT, Stage("b", actions=[act("b1")]))
    release(2, *stages, compatible=(1,))
    status = gone_on(handle)
    assert (status.run.status, status.run.error["code"]) == ("failed", "WORKFLOW_VERSION_CONFLICT")
    assert named in status.run.error["message"]
    assert called == ["a1"]
    assert node(status, "w.b.b1").status == "cancelled"
    assert not Job.objects.filter(run_id=handle.run_id).exists()


def test_a_compensation_goes_on_under_compatible_code() -> None:
    handle = parked(Stage("a", actions=[act("a1"), act("a2")]), WAIT)
    workflows.cancel(handle.run_id, compensate=True)
    release(3, Stage("a", actions=[act("a1"), act("a2")]), WAIT, compatible=(1, 2))
    drain(handle.run_id)
    assert workflows.status(handle.run_id).run.status == "compensated"
    assert called == ["a1", "a2", "undo a2", "undo a1"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_compensation_waits_for_code_that_fits(version: int, caplog: pytest.LogCaptureFixture) -> None:
    handle = parked(Stage("a", actions=[act("a1")]), WAIT)
    workflows.cancel(handle.run_id, compensate=True)
    more = Stage("more", actions=[act("m1")])
    release(version, Stage("a", actions=[act("a1")]), WAIT, more, compatible=(1,) if version == 2 else ())
    for seconds in (5, 10, 20):
        drain(handle.run_id)
        advance(seconds)
    status = handle.status()
    assert (status.run.status, called) == ("compensating", ["a1"])
    job = Job.objects.get(run_id=handle.run_id)
    assert job.attempt == 0
    assert job.last_error.startswith("version 3: ")
    assert job.last_error.endswith("the definition has 'w.more', the run has not")
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1
    assert told[0].startswith(f"run {handle.run_id} waits for code that can compensate it, ")
    release(1, Stage("a", actions=[act("a1")]), WAIT)
    drain(handle.run_id)
    assert handle.status().run.status == "compensated"
    assert called == ["a1", "undo a1"]


@pytest.mark.parametrize("served", [True, False], ids=["another tree", "another version"])
def test_what_is_left_to_others_keeps_how_its_attempt_was_lost(
    served: bool, caplog: pytest.LogCaptureFixture
) -> None:
    handle = parked(Stage("a", actions=[act("a1")]), WAIT)
    workflows.cancel(handle.run_id, compensate=True)
    Job.objects.update(last_error="LEASE_ABSOLUTE_CAP: claimed for longer than the absolute cap")
    release(2, Stage("b", actions=[act("b1")]), compatible=(1,) if served else ())
    drain(handle.run_id)
    advance(5)
    drain(handle.run_id)
    lost, *left = Job.objects.get(run_id=handle.run_id).last_error.split("; version ")
    assert lost == "LEASE_ABSOLUTE_CAP: claimed for longer than the absolute cap"
    assert [why[:3] for why in left] == (["2: "] if served else [])
    told = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == served  # once, however often it comes back


def test_the_same_version_with_another_tree_is_matched_by_path_too() -> None:
    """Somebody forgot to raise the version: no handler is called for the wrong node."""
    handle = parked(Stage("a", actions=[act("a1")]), WAIT, Stage("b", actions=[act("b1")]))
    release(1, WAIT, Stage("b", actions=[act("b1")]))
    assert gone_on(handle).run.status == "completed"
    assert called == ["a1", "b1"]
    assert Run.objects.get(pk=handle.run_id).version == 1


def test_the_same_version_with_a_tree_that_does_not_fit_says_that_it_has_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handle = parked(Stage("a", actions=[act("a1")]), WAIT)
    release(1, Stage("a", actions=[act("a1")]), WAIT, Stage("more", actions=[act("m1")]))
    status = gone_on(handle)
    assert (status.run.status, called) == ("failed", ["a1"])
    assert status.run.error is not None
    assert status.run.error["message"] == (
        "the tree of version 1 has changed since the run was dispatched: the definition has 'w.more', the run has not"
    )
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert told == [
        f"run {handle.run_id} of w fails: WORKFLOW_VERSION_CONFLICT: {status.run.error['message']}"
    ]


# --- another placement --------------------------------------------------------------------------


def nap(state: dict[str, Any], ctx: Any) -> None:
    called.append("nap")
    ctx.step.sleep("a while", 60)


def once_more(state: dict[str, Any], ctx: Any) -> dict[str, int]:
    called.append(f"attempt {ctx.attempt}")
    if ctx.attempt == 1:
        raise Retry(60)
    return {"n": ctx.attempt}


def placed(handler: Any, stage_via: Any, via: Any) -> list[Stage]:
    return [
        Stage("s", via=stage_via, actions=[Action("a", handler, via=via)]),
        Stage("t", actions=[act("t1")]),
    ]


PLACEMENTS = [("inline", "inline"), ("inline", "queue"), ("queue", "inline"), ("queue", "queue")]


@pytest.mark.parametrize("after", PLACEMENTS)
@pytest.mark.parametrize("before", PLACEMENTS)
@pytest.mark.parametrize(
    ("handler", "calls"), [(nap, ["nap", "nap"]), (once_more, ["attempt 1", "attempt 2"])]
)
def test_a_run_keeps_its_placement_under_newer_code(
    handler: Any, calls: list[str], before: tuple[str, str], after: tuple[str, str]
) -> None:
    handle = workflows.dispatch(release(1, *placed(handler, *before)), {})
    drain(handle.run_id)
    assert called == calls[:1]
    release(2, *placed(handler, *after), compatible=(1,))
    advance(120)
    drain(handle.run_id, timeout=5)
    status = workflows.status(handle.run_id)
    assert (status.run.status, called) == ("completed", [*calls, "t1"])
    assert not Job.objects.filter(run_id=handle.run_id).exists()


@pytest.mark.parametrize(("before", "after"), [("inline", "queue"), ("queue", "inline")])
def test_a_parked_wait_goes_on_where_it_was_placed(before: Any, after: Any) -> None:
    handle = parked(Stage("s", wait_for=WaitFor("go"), via=before), Stage("t", actions=[act("t1")]))
    wait = Stage("s", wait_for=WaitFor("go"), via=after)
    release(2, wait, Stage("t", actions=[act("t1")]), compatible=(1,))
    assert (gone_on(handle).run.status, called) == ("completed", ["t1"])


@pytest.mark.parametrize(("before", "after"), [("inline", "queue"), ("queue", "inline")])
def test_an_attempt_that_was_lost_is_done_again_where_it_was_placed(before: Any, after: Any) -> None:
    handle = workflows.dispatch(release(1, *placed(nap, "inline", before)), {})
    drain(handle.run_id)
    Node.objects.filter(run_id=handle.run_id, path="w.s.a").update(status="running", due_at=None)
    release(2, *placed(once_more, "inline", after), compatible=(1,))
    advance(120)
    drain(handle.run_id, timeout=5)
    assert (workflows.status(handle.run_id).run.status, called) == ("completed", ["nap", "attempt 2", "t1"])


def piped(version: int, *pipelines: Pipeline, compatible: tuple[int, ...] = ()) -> Workflow:
    registry.clear()
    return registry.register(
        Workflow("w", version=version, pipelines=list(pipelines), compatible_versions=compatible)
    )


LAST = Pipeline("q", [Stage("u", actions=[act("u1")])])


@pytest.mark.parametrize(
    ("gone", "pipelines", "left"),
    [
        (
            "p.s.a",
            [Pipeline("p", [Stage("s", actions=[act("b")]), Stage("t", actions=[act("c")])]), LAST],
            "bc",
        ),
        ("p.s", [Pipeline("p", [Stage("t", actions=[act("c")])]), LAST], "c"),
        ("p", [LAST], ""),
    ],
)
def test_the_job_of_what_is_over_and_gone_from_the_newer_code_wakes_what_comes_next(
    gone: str, pipelines: list[Pipeline], left: str
) -> None:
    """An atomic action's worker may die between the action's commit and the waking of its parent."""
    first = Stage("s", actions=[Action("a", once_more, via="queue"), act("b")])
    handle = workflows.dispatch(piped(1, Pipeline("p", [first, Stage("t", actions=[act("c")])]), LAST), {})
    drain(handle.run_id)
    rows = Node.objects.filter(run_id=handle.run_id, path__startswith=gone)
    rows.filter(status="pending").update(status="running", due_at=None)
    rows.update(status="completed", finished_at=now(), completed_seq=1)
    piped(2, *pipelines, compatible=(1,))
    advance(120)
    drain(handle.run_id, timeout=5)
    status = workflows.status(handle.run_id)
    assert (status.run.status, status.run.error) == ("completed", None)
    assert called == ["attempt 1", *left, "u1"]
    assert not Job.objects.filter(run_id=handle.run_id).exists()
