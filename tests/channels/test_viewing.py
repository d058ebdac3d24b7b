"""Sockets and `WORKFLOW["CAN_VIEW_RUN"]`: asked before one is accepted, and again while it is open."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from tests.channels.conftest import cookie_of, opened, refused
from tests.support.web import completed, waiting
from workflow import ids, workflows
from workflow.consumers import base
from workflow.models import Run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_redis")]

ALL = "/ws/workflow/"
HIDDEN: set[Any] = set()


def not_hidden(user: User, run: Run) -> bool:
    assert user.has_perm("workflow.view_run")
    return run.correlation_id not in HIDDEN


@pytest.fixture(autouse=True)
def _hook(settings: Any) -> Any:
    settings.WORKFLOW = {**settings.WORKFLOW, "CAN_VIEW_RUN": not_hidden}
    HIDDEN.clear()
    HIDDEN.add("theirs")


def socket_of(run_id: Any) -> str:
    return f"/ws/workflow/{run_id}/"


async def test_a_run_that_is_refused_cannot_be_told_from_one_that_does_not_exist(operator: User) -> None:
    own = await sync_to_async(completed)(correlation_id="ours")
    other = await sync_to_async(completed)(correlation_id="theirs")
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(socket_of(own), cookie) as socket:
        assert (await socket.next())["run"]["id"] == str(own)
    assert await refused(socket_of(other), cookie) == 4403
    assert await refused(socket_of(ids.new_run_id()), cookie) == 4403


async def test_a_hook_that_changes_its_mind_ends_the_socket(
    operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "RECHECK_INTERVAL", 0.1)
    own = await sync_to_async(completed)(correlation_id="ours")
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(socket_of(own), cookie) as socket:
        await socket.next()
        HIDDEN.add("ours")
        assert await socket.closed() == 4403


async def test_a_hook_that_raises_refuses(operator: User, settings: Any, caplog: Any) -> None:
    def broken(user: User, run: Run) -> bool:
        raise RuntimeError("the directory of tenants is down")

    own = await sync_to_async(completed)(correlation_id="ours")
    cookie = await sync_to_async(cookie_of)(operator)
    settings.WORKFLOW = {**settings.WORKFLOW, "CAN_VIEW_RUN": broken}
    assert await refused(socket_of(own), cookie) == 4403
    assert "the directory of tenants is down" in caplog.text


async def test_the_socket_of_all_runs_tells_of_none_that_is_refused(operator: User) -> None:
    own = await sync_to_async(waiting)("o", correlation_id="ours")
    other = await sync_to_async(waiting)("t", correlation_id="theirs")
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(ALL, cookie) as socket:
        first = await socket.next()
        assert [run["id"] for run in first["runs"]] == [str(own)]
        await workflows.acancel(other)
        await sync_to_async(completed)(correlation_id="theirs")
        await workflows.acancel(own)
        await socket.named("cancelled")
    assert {frame["run_id"] for frame in socket.frames if frame["type"] == "workflow.event"} == {str(own)}


async def test_the_socket_of_all_runs_asks_again(operator: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "RECHECK_INTERVAL", 0.05)
    run_id = await sync_to_async(waiting)("o", correlation_id="ours")
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(ALL, cookie) as socket:
        await socket.next()
        await workflows.acancel(run_id)
        await socket.named("cancelled")
        HIDDEN.add("ours")
        for _ in range(1_000):
            hidden = await sync_to_async(completed)(correlation_id="ours")
            shown = await sync_to_async(completed)(correlation_id="other")
            while (await socket.named("completed"))["run_id"] != str(shown):
                pass
            if str(hidden) not in {frame.get("run_id") for frame in socket.frames}:
                break
        else:
            pytest.fail("runs that are refused by now are still told of")
