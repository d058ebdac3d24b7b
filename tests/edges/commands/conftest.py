"""The commands called in this process, and runs for them to look at."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from django.core.management import ManagementUtility, call_command
from django.db.models.functions import Now
from pydantic import BaseModel

from workflow import Stage, WaitFor, Workflow, action, states, workflows
from workflow.models import Node, Run

NOBODY = uuid.UUID("01997a5e-6c00-7d41-9b1e-4a5c2f300000")


class TeaInput(BaseModel):
    tea: str
    grams: int = 100
    api_token: str | None = None


@action(input=TeaInput)
def weigh(order: TeaInput) -> dict[str, Any]:
    return {"weighed": order.grams}


@action
def pack(state: dict[str, Any]) -> dict[str, Any]:
    return {"packed": True}


TEA = Workflow(
    "commands-tea",
    input=TeaInput,
    on_failure="halt",
    stages=[
        Stage("weigh", actions=[weigh]),
        Stage("paid", wait_for=WaitFor("tea.paid", correlate="tea")),
        Stage("pack", actions=[pack]),
    ],
)
FREE = Workflow("commands-free", stages=[Stage("pack", actions=[pack])])


@pytest.fixture(autouse=True)
def _registered() -> None:
    workflows.register(TEA)
    workflows.register(FREE)


def call(*arguments: Any, **options: Any) -> str:
    """`call_command`, and what it printed."""
    out = io.StringIO()
    call_command(*arguments, stdout=out, **options)
    return out.getvalue()


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def manage(transactional_db: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`manage("workflow:list")`: what `manage.py workflow:list` does, in this process."""

    def run(*arguments: str) -> Result:
        code = 0
        try:
            ManagementUtility(["manage.py", *arguments]).execute()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def tea(db: None) -> uuid.UUID:
    return workflows.dispatch("commands-tea", {"tea": "sencha"}).run_id


def end(run_id: uuid.UUID, status: str, **values: Any) -> None:
    """Ends a run by hand: what a worker would have done is no matter here."""
    Node.objects.filter(run=run_id).update(status=states.FAILED, finished_at=Now())
    run = Run.objects.filter(id=run_id)
    run.update(status=states.RUNNING, started_at=Now())
    run.update(status=status, finished_at=Now(), **values)


def park(run_id: uuid.UUID) -> None:
    """Parks a run of TEA on its wait by hand."""
    Run.objects.filter(id=run_id).update(status=states.RUNNING)
    Run.objects.filter(id=run_id).update(status=states.WAITING)
    Node.objects.filter(run=run_id, path="commands-tea").update(status=states.RUNNING)
    Node.objects.filter(run=run_id, path="commands-tea.paid").update(
        status=states.WAITING, wait_event="tea.paid", wait_correlation="sencha"
    )
    Run.objects.get(id=run_id).jobs.all().delete()
