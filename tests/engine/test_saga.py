"""The saga going back: order, attempts, failures and what the run looks like afterwards."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command

from tests.support.runs import history, node, run_through, statuses
from workflow import Action, Fatal, Pipeline, Retry, Stage, WaitFor, Workflow, action, parallel, workflows
from workflow.models import Job, RunEvent
from workflow.testing import advance, drain

log: list[str] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    log.clear()


def undoable(name: str, output: Any = None, **options: Any) -> Action:
    def run(state: dict[str, Any]) -> Any:
        log.append(f"do {name}")
        return output

    def undo(state: dict[str, Any]) -> None:
        log.append(f"undo {name}")

    return Action(name, run, compensate=undo, **options)


def bad(state: dict[str, Any]) -> None:
    raise Fatal("the trigger")


BAD = Action("bad", bad, compensate=lambda state: log.append("undo bad"))


def test_completed_actions_are_undone_newest_first_and_the_failed_one_is_not() -> None:
    definition = Workflow(
        "w",
        stages=[
            Stage("a", actions=[undoable("a1"), Action("plain", lambda state: None), undoable("a2")]),
            Stage("b", actions=[undoable("b1"), BAD]),
            Stage("c", actions=[undoable("c1")]),
        ],
    )
    status = run_through(definition)
    assert log == ["do a1", "do a2", "do b1", "undo b1", "undo a2", "undo a1"]
    assert status.run.status == "compensated"
    assert status.run.error is not None
    assert (status.run.error["message"], status.run.error["node"]) == ("the trigger", "w.b.bad")
    assert statuses(status) == {
        "w": "failed",
        "w.a": "completed",
        "w.a.a1": "compensated",
        "w.a.plain": "completed",
        "w.a.a2": "compensated",
        "w.b": "failed",
        "w.b.b1": "compensated",
        "w.b.bad": "failed",
        "w.c": "cancelled",
        "w.c.c1": "cancelled",
    }
    assert history(status)[-5:] == [
        ("compensating", None),
        ("action.compensated", "w.b.b1"),
        ("action.compensated", "w.a.a2"),
        ("action.compensated", "w.a.a1"),
        ("compensated", None),
    ]


def test_a_saga_that_fails_in_its_first_action_ends_compensated_too() -> None:
    status = run_through(Workflow("w", stages=[Stage("a", actions=[BAD])]))
    assert status.run.status == "compensated"
    assert log == []


def test_parallel_members_are_undone_by_the_order_in_which_they_completed() -> None:
    group = parallel(undoable("c1"), undoable("c2", via="queue"), undoable("c3"))
    definition = Workflow("w", stages=[Stage("a", actions=[undoable("a"), group, BAD])])
    status = run_through(definition)
    done = [entry for entry in log if entry.startswith("do ")]
    undone = [entry for entry in log if entry.startswith("undo ")]
    order = [
        f"do {(e.node or '').rsplit('.', 1)[1]}"
        for e in RunEvent.objects.filter(run_id=status.run.id, name="action.completed").order_by("seq")
    ]
    assert sorted(done) == sorted(order)
    assert undone == [entry.replace("do ", "undo ") for entry in reversed(order)]


def test_compensations_get_the_merged_state_and_a_context_of_their_own() -> None:
    seen: list[Any] = []

    @action(input=dict[str, int])
    def charge(given: dict[str, int], ctx: Any) -> dict[str, int]:
        seen.append(ctx.idempotency_key)
        return {"payment": 7}

    @charge.compensate
    def refund(state: dict[str, Any], ctx: Any) -> None:
        seen.append((state, ctx.attempt, ctx.path))
        seen.append(ctx.idempotency_key)
        ctx.log("refunded")

    status = run_through(Workflow("w", stages=[Stage("a", actions=[charge, BAD])]), {"n": 1})
    run_key, (state, attempt, path), undo_key = seen
    assert state == {"n": 1, "payment": 7}
    assert (attempt, path) == (1, "w.a.charge")
    assert run_key != undo_key
    assert ("log", "w.a.charge") in history(status)


def test_async_compensations_are_awaited() -> None:
    async def undo(state: dict[str, Any]) -> None:
        log.append("undo async")

    run_through(
        Workflow("w", stages=[Stage("a", actions=[Action("x", lambda s: None, compensate=undo), BAD])])
    )
    assert log == ["undo async"]


def test_a_compensation_that_fails_for_good_is_recorded_and_never_stops_the_walk() -> None:
    def never(state: dict[str, Any], ctx: Any) -> None:
        log.append(f"try {ctx.attempt}")
        raise RuntimeError("cannot undo")

    broken = Action("broken", lambda state: None, compensate=never, compensate_attempts=3, backoff=1)
    definition = Workflow("w", stages=[Stage("a", actions=[undoable("a"), broken, undoable("c"), BAD])])
    handle = workflows.dispatch(definition, {})
    drain(handle.run_id)
    assert log == ["do a", "do c", "undo c", "try 1"]
    assert handle.status().run.status == "compensating"
    assert "cannot undo" in Job.objects.get().last_error
    for _ in range(3):
        advance(3)
        drain(handle.run_id)
    status = handle.status()
    assert log == ["do a", "do c", "undo c", "try 1", "try 2", "try 3", "undo a"]
    assert status.run.status == "compensated"
    assert status.run.error is not None
    assert status.run.error["message"] == "the trigger"
    assert status.run.error["compensation_failures"] == ["w.a.broken"]
    failed = node(status, "w.a.broken")
    assert failed.status == "completed"
    assert failed.error is not None
    assert (failed.error["code"], failed.error["message"]) == ("COMPENSATION_FAILED", "cannot undo")
    assert ("action.compensation_failed", "w.a.broken") in history(status)


@pytest.mark.parametrize(
    ("count", "message"),
    [(1, "w.a.one could not be undone"), (2, "w.a.two could not be undone, nor could 1 more")],
)
def test_a_cancelled_run_has_an_error_that_names_the_first_compensation_that_failed(
    count: int, message: str
) -> None:
    def never(state: dict[str, Any]) -> None:
        raise Fatal("cannot undo")

    members = [Action(name, lambda state: None, compensate=never) for name in ("one", "two")]
    stages = [Stage("a", actions=[undoable("fine"), *members[:count]]), Stage("b", wait_for=WaitFor("never"))]
    handle = workflows.dispatch(Workflow("w", stages=stages), {})
    drain(handle.run_id)
    workflows.cancel(handle.run_id, compensate=True)
    drain(handle.run_id)
    found = handle.status().run
    assert found.status == "compensated"
    failures = ["w.a.two", "w.a.one"][-count:]
    assert found.error == {
        "code": "COMPENSATION_FAILED",
        "message": message,
        "node": failures[0],
        "type": None,
        "traceback": None,
        "compensation_failures": failures,
    }
    said = io.StringIO()
    call_command("workflow:status", str(handle.run_id), stdout=said)
    assert f"COMPENSATION_FAILED: {message}" in said.getvalue()


def test_a_compensation_may_give_up_or_name_its_delay() -> None:
    def give_up(state: dict[str, Any]) -> None:
        log.append("gave up")
        raise Fatal("no use")

    act = Action("x", lambda state: None, compensate=give_up, compensate_attempts=9)
    status = run_through(Workflow("w", stages=[Stage("a", actions=[act, BAD])]))
    assert log == ["gave up"]
    assert status.run.error is not None
    assert status.run.error["compensation_failures"] == ["w.a.x"]


def test_a_loss_that_was_dealt_with_is_off_the_job_before_the_next_compensation_begins() -> None:
    """Else the job says it still when it comes back without a reason: then the next one would be failed for it."""

    def late(state: dict[str, Any]) -> None:
        raise Retry(60)

    said: list[str] = []

    def look(state: dict[str, Any], ctx: Any) -> None:
        said.append(Job.objects.get(run_id=ctx.run_id).last_error)

    actions = [
        Action("a", lambda state: None, compensate=look),
        Action("b", lambda state: None, compensate=late, compensate_attempts=5),
        BAD,
    ]
    handle = workflows.dispatch(Workflow("w", stages=[Stage("s", actions=actions)]), {})
    drain(handle.run_id)
    assert Job.objects.filter(run_id=handle.run_id).update(last_error="LEASE_ABSOLUTE_CAP: its worker") == 1
    advance(60)
    drain(handle.run_id)
    status = workflows.status(handle.run_id)
    assert (node(status, "w.s.b").status, node(status, "w.s.a").status) == ("completed", "compensated")
    assert said == [""]


def test_an_atomic_actions_plain_compensation_commits_with_its_mark() -> None:
    def make(state: dict[str, Any]) -> None:
        Group.objects.create(name="made")

    def unmake(state: dict[str, Any], ctx: Any) -> None:
        Group.objects.filter(name="made").delete()
        if ctx.attempt == 1:
            raise RuntimeError("after the write")

    act = Action("make", make, compensate=unmake, atomic=True, backoff=1)
    handle = workflows.dispatch(Workflow("w", stages=[Stage("a", actions=[act, BAD])]), {})
    drain(handle.run_id)
    assert Group.objects.filter(name="made").exists()
    advance(1)
    drain(handle.run_id)
    assert not Group.objects.filter(name="made").exists()
    assert handle.status().run.status == "compensated"


def test_a_stages_own_compensation_undoes_its_implicit_action() -> None:
    stage = Stage(
        "ship",
        run=lambda state: {"parcel": 1},
        compensate=lambda state: log.append(f"recall {state['parcel']}"),
    )
    status = run_through(Workflow("w", stages=[stage, Stage("b", actions=[BAD])]))
    assert log == ["recall 1"]
    assert statuses(status)["w.ship.ship#run"] == "compensated"


def test_all_pipelines_of_a_run_are_undone() -> None:
    definition = Workflow(
        "w",
        pipelines=[
            Pipeline("p", stages=[Stage("a", actions=[undoable("x")])]),
            Pipeline("q", stages=[Stage("a", actions=[undoable("y"), BAD])]),
            Pipeline("r", stages=[Stage("a", actions=[undoable("z")])]),
        ],
    )
    status = run_through(definition)
    assert log == ["do x", "do y", "undo y", "undo x"]
    assert statuses(status)["r"] == "cancelled"


def test_a_retry_of_a_halted_run_goes_on_from_its_failure() -> None:
    fail = [True]

    def sometimes(state: dict[str, Any]) -> dict[str, int]:
        log.append("try")
        if fail[0]:
            raise Fatal("down")
        return {"ok": 1}

    definition = Workflow(
        "w",
        stages=[
            Stage("a", actions=[undoable("one", {"one": 1})]),
            Stage("b", actions=[Action("sometimes", sometimes), undoable("two")]),
            Stage("c", actions=[undoable("three")]),
        ],
        on_failure="halt",
    )
    handle = workflows.dispatch(definition, {})
    drain(handle.run_id)
    assert handle.status().run.status == "failed"
    fail[0] = False
    workflows.retry(handle.run_id)
    status = handle.status()
    assert (status.run.status, status.run.error) == ("running", None)
    drain(handle.run_id)
    status = handle.status()
    assert status.run.status == "completed"
    assert log == ["do one", "try", "try", "do two", "do three"]
    assert status.run.state == {"one": 1, "ok": 1}
    assert set(statuses(status).values()) == {"completed"}


def test_a_retry_from_a_path_does_that_and_all_that_follows_again() -> None:
    definition = Workflow(
        "w",
        stages=[
            Stage("a", actions=[undoable("one", {"one": 1})]),
            Stage("b", actions=[undoable("two", {"two": 2})]),
            Stage("c", actions=[Action("bad", bad)]),
        ],
        on_failure="halt",
    )
    handle = workflows.dispatch(definition, {})
    drain(handle.run_id)
    log.clear()
    workflows.retry(handle.run_id, from_node="w.b")
    assert handle.status().run.state == {"one": 1}
    drain(handle.run_id)
    assert log == ["do two"]
    assert handle.status().run.status == "failed"
    assert handle.status().run.state == {"one": 1, "two": 2}
