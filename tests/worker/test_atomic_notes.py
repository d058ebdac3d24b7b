"""What an atomic action reports last arrives, however its checkpoint and the worker's own writing fall together. And
what any action reports does, after something that could not be written."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.moving import Worked, clean
from tests.support.workers import eventually
from workflow import Action, Stage, Workflow, failpoints, workflows
from workflow.models import Node, RunEvent
from workflow.store.committer import Committer
from workflow.store.settle import Settlement

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["clean"]


@pytest.fixture
def _slow_notes() -> Any:
    failpoints.arm("settle.before:running-running=sleep:0.5")
    yield
    failpoints.arm("")


@pytest.mark.usefixtures("_slow_notes")
def test_the_last_progress_and_log_of_an_atomic_action_arrive_once() -> None:
    def act(state: dict[str, Any], ctx: Any) -> None:
        ctx.progress(90, "nearly")
        ctx.log("its last word")
        eventually(lambda: failpoints._hits, what="they are not on their way")

    action = Action("act", act, atomic=True)
    handle = workflows.dispatch(Workflow("noted", stages=[Stage("s", actions=[action])]), {})
    Worked(concurrency=4)
    assert handle.status().run.status == "completed"
    assert Node.objects.get(run_id=handle.run_id, kind="action").progress == 90
    told = RunEvent.objects.filter(run_id=handle.run_id).order_by("seq").values_list("name", flat=True)
    assert list(told) == [
        "started",
        "action.started",
        "action.progress",
        "log",
        "action.completed",
        "stage.completed",
        "completed",
    ]


def test_after_notes_that_could_not_be_written_the_next_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Settlement] = []

    def act(state: dict[str, Any], ctx: Any) -> None:
        ctx.progress(10)
        eventually(lambda: failed, what="they are not on their way")
        ctx.progress(20)
        eventually(lambda: Node.objects.get(pk=ctx.node_id).progress == 20)

    async def settle(self: Committer, settlement: Settlement) -> Settlement:
        if not failed and any(change.progress == 10 for change in settlement.boundary.changes):
            failed.append(settlement)
            raise RuntimeError("a bug")
        return await real(self, settlement)

    real = Committer.settle
    monkeypatch.setattr(Committer, "settle", settle)
    action = Action("act", act, attempts=1, timeout=20)
    handle = workflows.dispatch(Workflow("noted", stages=[Stage("s", actions=[action])]), {})
    Worked(concurrency=4)
    assert handle.status().run.status == "completed"
