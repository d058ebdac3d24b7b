"""What the database refuses of one member of a unit costs that member alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from tests.support.moving import Worked, clean
from workflow import Action, Retry, Stage, Workflow, parallel, workflows
from workflow.executor import execution
from workflow.models import Job, Node, RunEvent
from workflow.results import RunHandle
from workflow.testing import advance

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["clean"]


@contextmanager
def constraint(table: str, check: str) -> Iterator[None]:
    """A project's own, on one of the engine's tables."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT ours CHECK ({check}) NOT VALID")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT ours")


def no_output(key: str) -> Any:
    return constraint("workflow_node", f"NOT coalesce(output, '{{}}'::jsonb) ? '{key}'")


class Meeting:
    """Handlers that end in one tick of the loop, so that one boundary is made of what they return."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.all_there: asyncio.Event | None = None

    async def __call__(self) -> None:
        if self.all_there is None:
            self.all_there = asyncio.Event()
        self.size -= 1
        if self.size <= 0:
            self.all_there.set()
        await self.all_there.wait()


def member(name: str, meeting: Meeting, output: dict[str, Any]) -> Action:
    async def handler(state: dict[str, Any]) -> dict[str, Any]:
        await meeting()
        return output

    return Action(name, handler)


def statuses(run: RunHandle) -> dict[str, str]:
    return {node.path.rpartition(".")[2]: node.status for node in run.status().nodes}


@pytest.mark.parametrize("bad", [("b",), ("a", "c"), ("a", "b", "c", "d", "e")])
def test_only_the_members_whose_output_is_refused_fail(bad: tuple[str, ...]) -> None:
    meeting = Meeting(5)
    group = [member(name, meeting, {"bad" if name in bad else name: 1}) for name in "abcde"]
    workflows.register(Workflow("w", on_failure="halt", stages=[Stage("s", actions=[parallel(*group)])]))
    run = workflows.dispatch("w", {})
    with no_output("bad"):
        Worked(concurrency=5)
    found = statuses(run)
    assert {name: found[name] for name in "abcde"} == {
        name: "failed" if name in bad else "completed" for name in "abcde"
    }
    assert run.status().run.status == "failed"
    failed = Node.objects.filter(run_id=run.run_id, kind="action", status="failed")
    assert all("the database refused the outcome" in node.error["message"] for node in failed)
    assert run.status().run.state == {name: 1 for name in "abcde" if name not in bad}


def test_what_is_refused_together_and_not_alone_is_stored() -> None:
    meeting = Meeting(2)
    group = [member(name, meeting, {name: 1}) for name in "ab"]
    workflows.register(Workflow("w", stages=[Stage("s", actions=[parallel(*group)])]))
    run = workflows.dispatch("w", {})
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION ours() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF (SELECT count(*) FROM changed WHERE output IS NOT NULL) > 1 THEN RAISE 'one by one'; END IF;"
            " RETURN NULL; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER ours AFTER UPDATE ON workflow_node REFERENCING NEW TABLE AS changed"
            " FOR EACH STATEMENT EXECUTE FUNCTION ours()"
        )
    try:
        Worked(concurrency=2)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER ours ON workflow_node")
            cursor.execute("DROP FUNCTION ours()")
    assert (run.status().run.status, run.status().run.state) == ("completed", {"a": 1, "b": 1})


def test_a_retry_whose_start_is_refused_is_put_off_while_its_mate_is_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution, "LONGEST_PAUSE", 0.2)
    calls: list[int] = []

    async def again(state: dict[str, Any], ctx: Any) -> None:
        calls.append(ctx.attempt)
        if ctx.attempt == 1:
            raise Retry(0.1)

    async def mate(state: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(2)
        return {"mate": 1}

    group = parallel(Action("again", again), Action("mate", mate, attempts=1))
    workflows.register(Workflow("w", on_failure="halt", stages=[Stage("s", actions=[group])]))
    run = workflows.dispatch("w", {})
    check = "kind <> 'action' OR status <> 'running' OR attempt < 2"
    with constraint("workflow_node", check):
        Worked(concurrency=2)
    found = statuses(run)
    assert (found["mate"], found["again"], calls) == ("completed", "pending", [1])
    advance(60)
    Worked(concurrency=2)
    assert (run.status().run.status, calls) == ("completed", [1, 2])


def test_a_gate_that_lets_go_on_what_cannot_start_does_not_fail_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "LONGEST_PAUSE", 0.2)
    asked: list[float] = []

    def when(state: dict[str, Any]) -> bool:
        asked.append(time.monotonic())
        return True

    async def mate(state: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(1.5)
        return {"mate": 1}

    async def gated(state: dict[str, Any]) -> dict[str, Any]:
        return {"gated": 1}

    group = parallel(Action("gated", gated, when=when), Action("mate", mate, attempts=1))
    workflows.register(Workflow("w", on_failure="halt", stages=[Stage("s", actions=[group])]))
    run = workflows.dispatch("w", {})
    with constraint("workflow_node", "path <> 'w.s.gated' OR status <> 'running'"):
        Worked(concurrency=2)
    found = statuses(run)
    assert (found["mate"], found["gated"]) == ("completed", "pending")
    assert len(asked) > 1
    advance(60)
    Worked(concurrency=2)
    assert run.status().run.state == {"mate": 1, "gated": 1}


def test_a_unit_that_can_store_nothing_goes_back_to_the_queue() -> None:
    async def handler(state: dict[str, Any]) -> dict[str, Any]:
        return {"n": 1}

    workflows.register(Workflow("w", stages=[Stage("s", actions=[Action("a", handler)])]))
    run = workflows.dispatch("w", {})
    with constraint("workflow_node", "finished_at IS NULL"):
        Worked()
    assert statuses(run)["a"] == "running"
    assert Job.objects.get(run_id=run.run_id).last_error.startswith("ENGINE_FAILED 1:")
    assert not RunEvent.objects.filter(run_id=run.run_id, name="action.failed").exists()
