"""Steps that a handler calls in other threads and loops, in a test's transaction and without one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction

from tests.support.moving import clean
from tests.support.runs import staged
from workflow import Action, states, workflows
from workflow.models import Step
from workflow.testing import drain

__all__ = ["clean"]


def in_a_thread(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(ctx.step.run("one", lambda: 1)))
    thread.start()
    thread.join()
    return {"sum": sum(found)}


def in_two_threads(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
    with ThreadPoolExecutor(2) as pool:
        return {"sum": sum(pool.map(lambda n: ctx.step.run(f"step-{n}", lambda: n), (0, 1)))}


def in_a_loop_of_its_own(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
    async def steps() -> int:
        found: int = await ctx.step.arun("one", lambda: 1)
        return found

    return {"sum": asyncio.run(steps())}


HANDLERS = [in_a_thread, in_two_threads, in_a_loop_of_its_own]


def drained(handler: Callable[[dict[str, Any], Any], Any]) -> None:
    handle = workflows.dispatch(staged(Action("act", handler, attempts=1, timeout=10)), {})
    drain(handle.run_id)
    status = handle.status().run
    assert (status.error, status.status, status.state) == (None, states.COMPLETED, {"sum": 1})
    assert set(Step.objects.values_list("status", flat=True)) == {"completed"}


@pytest.mark.django_db
@pytest.mark.parametrize("handler", HANDLERS)
def test_they_are_settled_in_the_transaction_of_the_test(handler: Callable[..., Any]) -> None:
    drained(handler)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("handler", HANDLERS)
def test_they_leave_no_connection_of_theirs_behind(handler: Callable[..., Any]) -> None:
    def sessions() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            (found,) = cursor.fetchone()
            return int(found)

    before = sessions()
    drained(handler)
    assert sessions() <= before


@pytest.mark.django_db(transaction=True)
def test_what_the_handlers_own_thread_undoes_meanwhile_is_none_of_theirs() -> None:
    def handler(state: dict[str, Any], ctx: Any) -> Any:
        with transaction.atomic():
            found = in_a_thread(state, ctx)
            transaction.set_rollback(True)
        return found

    drained(handler)
