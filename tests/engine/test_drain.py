"""`workflow.testing` itself: when `drain` gives up, what it bears, and which times can pass."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DataError, connection, transaction
from django.test import override_settings

from tests.support.runs import PATIENCE, node, staged
from workflow import Action, Retry, RunNotFound, Stage, Workflow, ids, parallel, testing, workflows
from workflow.models import RunEvent
from workflow.testing import advance, drain, settle


def test_a_unit_that_never_comes_to_rest_is_given_up_and_goes_on_later() -> None:
    tired: list[int] = []

    def again(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
        if ctx.attempt > 1 and tired:
            return {"done": True}
        raise Retry(delay=0)

    handle = workflows.dispatch(staged(Action("again", again, attempts=1_000_000)), {})
    begun = time.monotonic()
    with pytest.raises(
        TimeoutError, match=rf"still due after 0\.5 s: run {handle.run_id} at w\.s\.again$|at w$"
    ):
        drain(timeout=0.5)
    assert time.monotonic() - begun < PATIENCE
    assert handle.status().run.status == "running"
    tired.append(1)
    drain(timeout=PATIENCE)
    assert handle.status().run.status == "completed"


def test_a_drain_that_gives_up_names_a_few_of_what_was_due() -> None:
    workflows.register(staged(Action("slow", lambda state: time.sleep(0.05))))
    handles = workflows.dispatch_many("w", [{}] * 6)
    workflows.publish("nobody.waits", {})
    with pytest.raises(TimeoutError) as caught:
        drain(timeout=0)
    said = str(caught.value)
    assert said.startswith("something was still due after 0 s: ")
    named = [handle for handle in handles if f"run {handle.run_id} at w" in said]
    assert 2 <= len(named) <= testing.MOST_DUE
    assert re.search(r" and \d more$", said)


def test_what_a_lost_unit_had_started_is_no_part_of_the_next_run() -> None:
    """Neither the handlers that it never called nor the answers of gates that it never took."""
    called: list[str] = []

    def cancels(state: dict[str, Any], ctx: Any) -> None:
        called.append(f"cancels {state['n']}")
        if state["n"] == 1:
            workflows.cancel(ctx.run_id)

    def mate(state: dict[str, Any]) -> None:
        called.append(f"mate {state['n']}")

    def gate(state: dict[str, Any]) -> bool:
        return state["n"] == 1

    members = [Action("a", cancels), Action("b", mate), Action("c", mate, when=gate)]
    workflows.register(staged(parallel(members)))
    handles = [workflows.dispatch("w", {"n": n}) for n in (1, 2)]
    drain()
    assert [handle.status().run.status for handle in handles] == ["cancelled", "completed"]
    assert [call for call in called if call.endswith("2")] == ["cancels 2", "mate 2"]


def test_members_that_had_no_turn_before_the_time_was_up_are_called_by_the_next_drain() -> None:
    called: list[str] = []

    def slow(state: dict[str, Any], ctx: Any) -> None:
        called.append(f"{ctx.path} {ctx.attempt}")
        time.sleep(0.3)

    members = [Action(name, slow, attempts=1) for name in ("a", "b", "c")]
    handle = workflows.dispatch(staged(parallel(members)), {})
    with pytest.raises(TimeoutError):
        drain(timeout=0.1)
    assert called == ["w.s.a 1"]
    drain(timeout=PATIENCE)
    assert called == ["w.s.a 1", "w.s.b 1", "w.s.c 1"]
    status = handle.status()
    assert status.run.status == "completed"
    assert node(status, "w.s.c").attempt == 1


def test_a_timedelta_may_pass_too() -> None:
    def later(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.sleep("nap", timedelta(hours=1))

    handle = workflows.dispatch(staged(Action("later", later)), {})
    drain(timeout=PATIENCE)
    advance(timedelta(hours=1, seconds=1))
    drain(timeout=PATIENCE)
    assert handle.status().run.status == "completed"


def broken(state: dict[str, Any]) -> dict[str, Any]:
    Group.objects.create(name="only one")
    Group.objects.create(name="only one")
    return {}


def swallowing(state: dict[str, Any]) -> dict[str, Any]:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
    except DataError:
        pass
    return {"swallowed": True}


async def abroken(state: dict[str, Any]) -> None:
    await Group.objects.acreate(name="only one")
    await Group.objects.acreate(name="only one")


@pytest.mark.parametrize("wrong", ["signup", 7, object()])
def test_an_id_that_no_run_can_have_is_refused(wrong: Any) -> None:
    with pytest.raises(RunNotFound, match="no run has the id"):
        drain(wrong)


def test_an_id_that_no_run_has_is_refused_as_by_settle() -> None:
    workflows.dispatch(Workflow("w", stages=[Stage("s", run=lambda state: None)]), {})
    unknown = ids.new_run_id()
    for call in (drain, settle):
        with pytest.raises(RunNotFound, match=f"no run has the id {unknown}"):
            call(unknown)
    assert workflows.list().items[0].status == "pending"


@pytest.mark.parametrize("handler", [broken, abroken])
def test_an_error_of_the_database_is_the_handlers_and_the_transaction_of_the_test_goes_on(
    handler: Any,
) -> None:
    Group.objects.create(name="before")
    with transaction.atomic():
        handle = workflows.dispatch(staged(Action("broken", handler, attempts=1)), {})
        drain(timeout=PATIENCE)
        error = handle.status().run.error
        assert error is not None
        assert (error["code"], error["type"]) == ("ACTION_FAILED", "IntegrityError")
        assert [group.name for group in Group.objects.all()] == ["before"]


def test_so_it_does_after_an_error_that_the_handler_kept_to_itself_or_a_gate_met() -> None:
    stages = [Stage("kept", run=swallowing), Stage("gate", when=broken, run=swallowing)]
    with transaction.atomic():
        handle = workflows.dispatch(Workflow("w", stages=stages), {})
        drain(timeout=PATIENCE)
        status = handle.status()
        assert status.run.state == {"swallowed": True}
        assert node(status, "w.gate").status == "failed"


NO_TIMES = [-1, float("nan"), float("inf"), 1e300, "5", None, True, timedelta(seconds=-1)]


@pytest.mark.parametrize("seconds", NO_TIMES)
def test_no_other_time_can_pass(seconds: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="seconds"):
        advance(seconds)


@pytest.mark.parametrize("timeout", NO_TIMES)
def test_a_timeout_that_is_no_time_is_refused_before_anything_runs(timeout: Any) -> None:
    handle = workflows.dispatch(staged(Action("act", lambda state: None)), {})
    with pytest.raises((ValueError, TypeError), match="timeout"):
        drain(timeout=timeout)
    with pytest.raises((ValueError, TypeError), match="timeout"):
        settle(handle.run_id, timeout)
    assert handle.status().run.status == "pending"


def test_a_timeout_may_be_a_timedelta() -> None:
    def again(state: dict[str, Any]) -> None:
        raise Retry(delay=0)

    endless = workflows.dispatch(staged(Action("again", again, attempts=1_000_000)), {})
    with pytest.raises(TimeoutError, match=r"after 0\.1 s"):
        drain(endless.run_id, timeout=timedelta(milliseconds=100))
    with pytest.raises(TimeoutError, match=r"after 0\.1 s"):
        settle(endless.run_id, timedelta(milliseconds=100))
    workflows.cancel(endless.run_id)
    assert settle(endless.run_id, timedelta(seconds=PATIENCE)).run.status == "cancelled"


@override_settings(USE_TZ=False, TIME_ZONE="America/New_York")
def test_without_use_tz_what_is_told_of_a_retry_is_when_it_is_due_as_the_history_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def again(state: dict[str, Any]) -> None:
        raise Retry(delay=3600)

    told: list[Any] = []
    monkeypatch.setattr(testing, "announce_history", lambda rows, using: told.extend(rows))
    handle = workflows.dispatch(staged(Action("again", again)), {})
    drain(handle.run_id)
    [entry] = RunEvent.objects.filter(run_id=handle.run_id, name="action.retrying")
    [row] = [row for row in told if row[2] == "action.retrying"]
    due, kept = (datetime.fromisoformat(data["due_at"]) for data in (row[5], entry.data))
    assert due == kept
    assert due.utcoffset() is not None


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda: workflows.list(), "workflows.alist"),
        (lambda: workflows.publish("it-happened"), "workflows.apublish"),
        (lambda: workflows.wait(ids.new_run_id(), 1), "workflows.await_finished"),
        (lambda: workflows.dispatch(Workflow("w", stages=[Stage("s", run=str)])), "workflows.adispatch"),
        (lambda: drain(), r"sync_to_async\(drain\)\(\.\.\.\)"),
        (lambda: testing.advance(1), r"sync_to_async\(advance\)\(\.\.\.\)"),
    ],
)
def test_async_code_is_told_what_to_await_instead(call: Callable[[], Any], instead: str) -> None:
    async def wrong() -> None:
        call()

    with pytest.raises(SynchronousOnlyOperation, match=rf"cannot be called in async code: await {instead}$"):
        asyncio.run(wrong())
