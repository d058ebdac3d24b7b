"""A walk back that is given back just as its atomic compensation has settled itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from tests.support.moving import Worked
from tests.support.workers import eventually
from workflow import Action, Fatal, Stage, Workflow, states, workflows
from workflow.executor import Execution
from workflow.models import Job, Node
from workflow.registry import registry
from workflow.testing import drain
from workflow.worker.process import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with registry.isolated():
        registry.clear()
        yield


def is_undone(path: str) -> bool:
    try:
        return Node.objects.get(path=path).status == states.COMPENSATED
    finally:
        connection.close()  # the thread of the loop that asks has it to itself


@pytest.mark.parametrize("is_last", [False, True])
def test_what_is_left_keeps_its_attempts(monkeypatch: pytest.MonkeyPatch, is_last: bool) -> None:
    attempts: list[tuple[str, int]] = []
    leave: list[Any] = []

    def undo_a(state: dict[str, Any], ctx: Any) -> None:
        attempts.append(("a", ctx.attempt))
        raise ValueError("no")

    def undo_b(state: dict[str, Any], ctx: Any) -> None:
        attempts.append(("b", ctx.attempt))
        leave.pop()()
        ctx.signal.wait(60)

    def fail(state: dict[str, Any]) -> None:
        raise Fatal("no")

    def on_start(process: WorkerProcess) -> None:
        loop = asyncio.get_running_loop()
        leave.append(lambda: loop.call_soon_threadsafe(process.hurry))

    release = Execution._release

    async def late(self: Execution) -> None:
        await asyncio.to_thread(eventually, lambda: is_undone("w.s.b"))
        await release(self)

    monkeypatch.setattr(Execution, "_release", late)
    a = Action("a", lambda state: None, compensate=undo_a, compensate_attempts=2, backoff=0)
    b = Action("b", lambda state: None, compensate=undo_b, atomic=True)
    first = Stage("s", actions=[b] if is_last else [a, b])
    handle = workflows.dispatch(Workflow("w", stages=[first, Stage("z", run=fail)]), {})
    Worked(on_start)
    assert list(Job.objects.values_list("lease_token", "attempt", "last_error")) == [(None, 0, "")]
    drain(handle.run_id)
    assert handle.status().run.status == states.COMPENSATED
    assert attempts == ([("b", 1)] if is_last else [("b", 1), ("a", 1), ("a", 2)])
