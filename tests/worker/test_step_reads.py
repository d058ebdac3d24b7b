"""A step reads its ledger before it does anything: what keeps it from that costs time, and no attempt."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from django.db import connection, connections

from tests.support.moving import Worked, clean
from workflow import Action, Stage, Workflow, workflows
from workflow.errors import FailureCode
from workflow.models import Node
from workflow.results import RunHandle
from workflow.store.pipeline import Rows, Statement
from workflow.store.ports import Port
from workflow.worker.process import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["clean"]

AWAY = psycopg.OperationalError("server closed the connection unexpectedly")
LOCKED = psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")
MIGRATED = psycopg.errors.FeatureNotSupported("cached plan must not change result type")


class Failing:
    """The connection that steps read on; the first so many reads of a ledger fail."""

    def __init__(self, error: Exception, times: float) -> None:
        self.error = error
        self.left = times
        self.port: Port | None = None

    def start(self, process: WorkerProcess) -> None:
        self.port, process._runtime.port = process._runtime.port, self

    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        assert self.port is not None
        if self.left > 0 and len(statements) == 1 and "workflow_step" in statements[0][0]:
            self.left -= 1
            raise self.error
        return await self.port.run(statements)


def plain(state: dict[str, Any], ctx: Any) -> None:
    ctx.step.run("x", lambda: 1)


async def awaiting(state: dict[str, Any], ctx: Any) -> None:
    await ctx.step.arun("x", lambda: 1)


def dispatched(handler: Any, **options: Any) -> RunHandle:
    stage = Stage("s", actions=[Action("a", handler, attempts=1, **options)])
    return workflows.dispatch(Workflow("reading", stages=[stage]), {})


def attempt_of(handle: RunHandle) -> tuple[str, int, Any]:
    node = Node.objects.get(run_id=handle.run_id, kind="action")
    return node.status, node.attempt, node.error and node.error["code"]


@pytest.mark.parametrize("handler", [plain, awaiting])
@pytest.mark.parametrize(
    ("error", "times"), [(AWAY, 4), (LOCKED, 4), (MIGRATED, 1)], ids=["away", "locked", "migrated"]
)
def test_a_read_that_something_keeps_from_its_answer_costs_no_attempt(
    handler: Any, error: Exception, times: int
) -> None:
    failing = Failing(error, times)
    handle = dispatched(handler)
    Worked(failing.start)
    assert failing.left == 0
    assert attempt_of(handle) == ("completed", 1, None)


@pytest.mark.parametrize("handler", [plain, awaiting])
def test_it_is_tried_no_longer_than_its_attempt_may_take(handler: Any) -> None:
    handle = dispatched(handler, timeout=1.0)
    Worked(Failing(AWAY, float("inf")).start)
    assert attempt_of(handle) == ("failed", 1, FailureCode.ACTION_TIMEOUT)


def test_a_lock_that_a_migration_has_on_the_ledger_costs_no_attempt() -> None:
    def waits(state: dict[str, Any], ctx: Any) -> None:
        locked = threading.Event()

        def migrate() -> None:
            with connection.cursor() as cursor:
                cursor.execute("BEGIN; LOCK TABLE workflow_step IN ACCESS EXCLUSIVE MODE")
                locked.set()
                time.sleep(2.5)
                cursor.execute("COMMIT")
            connections.close_all()

        migration = threading.Thread(target=migrate)
        migration.start()
        locked.wait(10)
        try:
            ctx.step.run("x", lambda: 1)
        finally:
            migration.join()

    handle = dispatched(waits)
    Worked()
    assert attempt_of(handle) == ("completed", 1, None)
