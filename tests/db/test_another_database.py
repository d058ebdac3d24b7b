"""`WORKFLOW["DATABASE"]` and a router: all that the engine does goes over that alias, and nothing over another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings

from tests.support.crash import launcher, workers
from tests.support.workers import Launcher
from workflow import Action, RunNotFound, Stage, WaitFor, Workflow, parallel, states, workflows
from workflow.models import Run
from workflow.testing import advance, drain

__all__ = ["launcher", "workers"]


class Router:
    """As docs/reference/settings.md has it."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "flows" if model._meta.app_label == "workflow" else None

    db_for_write = db_for_read


@pytest.fixture
def flows(workers: Launcher) -> Iterator[None]:
    """The engine's tables are reached through `flows` alone; through `default` nobody may touch them."""

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        assert "workflow_" not in sql, sql
        return execute(sql, params, many, context)

    connections.databases["flows"] = {**connections.databases["default"]}
    router = f"{__name__}.Router"
    try:
        with (
            override_settings(DATABASE_ROUTERS=[router], WORKFLOW={"DATABASE": "flows"}),
            connections["default"].execute_wrapper(refuse),
        ):
            yield
    finally:
        connections["flows"].close()
        del connections["flows"], connections.databases["flows"]


def counts(state: dict[str, Any]) -> int:
    return Run.objects.count()


def naps(state: dict[str, Any], ctx: Any) -> None:
    ctx.step.sleep("nap", 10)


EVERYTHING = Workflow(
    "everything",
    stages=[
        Stage("act", actions=[parallel(Action("a", counts), Action("b", counts, via="queue"))]),
        Stage("more", actions=[Action("c", counts, atomic=True), Action("d", naps)]),
        Stage("wait", wait_for=WaitFor("go", correlate="key")),
    ],
)


@pytest.mark.crash
def test_runs_live_in_the_database_that_the_settings_name(flows: None) -> None:
    workflows.register(EVERYTHING)
    with transaction.atomic(using="flows"):
        gone = workflows.dispatch("everything", {"key": "0"})
        transaction.set_rollback(True, using="flows")
    with pytest.raises(RunNotFound):
        gone.status()
    with transaction.atomic():  # of another database: it undoes nothing here
        kept = workflows.dispatch("everything", {"key": "1"})
        transaction.set_rollback(True)
    drain()
    advance(10)
    drain()
    assert kept.status().run.status == states.WAITING
    workflows.publish("go", 1, correlation="1")
    drain()
    assert kept.status().run.status == states.COMPLETED
    assert [run.id for run in workflows.list(status="completed").items] == [kept.run_id]
    assert workflows.prune(0) == 1
