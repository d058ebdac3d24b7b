"""The socket of all runs: the newest ones, then what happens, as much of it as a page can use."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from tests.channels.conftest import cookie_of, opened
from tests.support.web import completed, failed, waiting
from workflow import workflows
from workflow.consumers import reading, runs
from workflow.consumers.hub import hub

pytestmark = [pytest.mark.django_db(transaction=True)]

ALL = "/ws/workflow/"


async def test_the_newest_runs_and_then_what_happens(any_layer: str, operator: User) -> None:
    old = [await sync_to_async(completed)() for _ in range(3)]
    parked = await sync_to_async(waiting)("a-1", correlation_id="c-1")
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(ALL, cookie) as socket:
        first = await socket.next()
        assert [run["id"] for run in first["runs"]] == [str(run) for run in (parked, *reversed(old))]
        assert first["runs"][0]["status"] == "waiting"
        assert first["runs"][0]["correlation_id"] == "c-1"
        fresh = await sync_to_async(completed)()
        await workflows.acancel(parked)
        await socket.until(lambda frame: frame.get("name") == "cancelled")
    told = [(f["run_id"], f["seq"]) for f in socket.frames if f["type"] == "workflow.event"]
    assert [seq for run_id, seq in told if run_id == str(fresh)] == list(range(1, len(told)))
    assert told[-1] == (str(parked), first["runs"][0]["seq"] + 1)


async def test_texts_that_somebody_wrote_are_left_out(any_layer: str, operator: User) -> None:
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(ALL, cookie) as socket:
        await socket.next()
        await sync_to_async(failed)("a-2", card="S3CR3T-1")
        last = await socket.named("failed")
        everything = [*socket.frames]
    async with opened(ALL, cookie) as socket:
        everything.append(await socket.next())
    assert last["error"] == {"code": "ACTION_FAILED", "type": "RuntimeError"}
    assert "S3CR3T" not in repr(everything)


async def test_more_than_a_page_can_use_is_left_out_and_said_so(
    no_redis: None, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RATE", 5)
    monkeypatch.setattr(runs, "RESYNC_INTERVAL", 0.1)
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(ALL, cookie) as socket:
        await socket.next()
        hub()._tell("x", [{"type": "workflow.event", "run_id": "x", "seq": n} for n in range(1, 101)])
        await socket.until(lambda frame: frame["type"] == "resync")
    assert len(socket.seqs) <= 10


async def test_many_changes_at_once_are_a_resync(
    no_redis: None, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RESYNC_INTERVAL", 0.1)
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(ALL, cookie) as socket:
        await socket.next()
        hub()._heard_payload("*")
        assert (await socket.next()) == {"type": "resync"}


async def test_the_list_is_bounded(no_redis: None, operator: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RECENT", 2)
    for _ in range(3):
        await sync_to_async(completed)()
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(ALL, cookie) as socket:
        assert len((await socket.next())["runs"]) == 2
