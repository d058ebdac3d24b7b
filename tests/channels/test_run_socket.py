"""What somebody sees who watches one run: a snapshot, then its history, in order, each entry once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import override_settings

from tests.channels.conftest import cookie_of, opened
from tests.support.web import completed, failed, waiting
from workflow import ids, progress, states, workflows
from workflow.consumers import base, reading, run
from workflow.consumers.hub import Hub
from workflow.models import RunEvent
from workflow.testing import drain

pytestmark = [pytest.mark.django_db(transaction=True)]


def history_of(run_id: UUID) -> list[tuple[int, str, str | None]]:
    return list(RunEvent.objects.filter(run_id=run_id).order_by("seq").values_list("seq", "name", "node"))


def shown(frames: list[dict[str, Any]]) -> list[tuple[int, str, str | None]]:
    return [(f["seq"], f["name"], f["node"]) for f in frames if f["type"] == "workflow.event"]


async def test_a_snapshot_comes_first_and_then_the_history_as_it_is_written(
    any_layer: str, operator: User
) -> None:
    run_id = await sync_to_async(waiting)("o-1")
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/", cookie) as socket:
        first = await socket.next()
        before = await sync_to_async(history_of)(run_id)
        assert first["type"] == "snapshot"
        assert first["seq"] == len(before)
        assert first["run"]["status"] == "waiting"
        assert [node["path"] for node in first["nodes"]][:2] == ["web-order", "web-order.pay"]
        parked = next(node for node in first["nodes"] if node["path"] == "web-order.approve")
        assert (parked["status"], parked["wait_event"]) == ("waiting", "order.approved")

        await workflows.aresume(run_id, {"ok": True}, by="operator")
        await sync_to_async(drain)(run_id)
        last = await socket.named("completed")

    after = await sync_to_async(history_of)(run_id)
    assert shown(socket.frames) == after[len(before) :]
    assert last["run_id"] == str(run_id)
    assert last["seq"] == len(after)


async def test_whoever_comes_back_gets_what_was_missed_and_goes_on(any_layer: str, operator: User) -> None:
    run_id = await sync_to_async(waiting)("o-2")
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/?after=2", cookie) as socket:
        parked = await socket.named("waiting")
        await workflows.aresume(run_id)
        await sync_to_async(drain)(run_id)
        await socket.named("completed")
    everything = await sync_to_async(history_of)(run_id)
    assert shown(socket.frames) == everything[2:]
    assert parked["seq"] in range(3, len(everything))


@pytest.mark.parametrize("after", ["999", "-1", "x", "", "99999999999", "²", "0" * 5_000])
async def test_a_number_that_can_be_none_gets_a_snapshot(no_redis: None, operator: User, after: str) -> None:
    run_id = await sync_to_async(completed)()
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/?after={after}", cookie) as socket:
        assert (await socket.next())["type"] == "snapshot"


async def test_too_much_to_replay_is_a_snapshot(
    no_redis: None, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "REPLAY", 3)
    run_id = await sync_to_async(completed)()
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/?after=1", cookie) as socket:
        assert (await socket.next())["type"] == "snapshot"


async def test_nothing_is_told_twice_when_nothing_was_missed(no_redis: None, operator: User) -> None:
    run_id = await sync_to_async(waiting)("o-3")
    count = len(await sync_to_async(history_of)(run_id))
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/?after={count}", cookie) as socket:
        await workflows.acancel(run_id, "no more", by="somebody")
        first = await socket.next()
    assert (first["name"], first["seq"], first["by"]) == ("cancelled", count + 1, "somebody")


async def test_entries_of_which_nobody_was_told_are_found(
    no_redis: None, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No layer, no notification, the last entry included: the clock is enough."""
    monkeypatch.setattr("workflow.consumers.hub.FLOOR", 0.3)
    monkeypatch.setattr("workflow.progress.announce", lambda rows, using: None)
    monkeypatch.setattr("workflow.store.commands.announce", lambda rows, using: None)
    run_id = await sync_to_async(waiting)("o-4")
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/", cookie) as socket:
        await socket.next()
        await workflows.acancel(run_id)
        assert (await socket.next())["name"] == "cancelled"


async def test_a_gap_is_filled_from_the_table(no_redis: None, operator: User) -> None:
    """Only the last of three entries is announced."""
    from workflow.consumers.hub import hub

    run_id = await sync_to_async(waiting)("o-5")
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/", cookie) as socket:
        first = await socket.next()
        seq = first["seq"]

        def write() -> None:
            from workflow.models import Run

            for number in range(1, 4):
                RunEvent.objects.create(run_id=run_id, seq=seq + number, name="log", data={"n": number})
            Run.objects.filter(pk=run_id).update(seq=seq + 3)

        await sync_to_async(write)()
        # As it would be pushed: if the clock has found the first two by now, this one is passed on as it is.
        last = progress.message(run_id, seq + 3, "log", None, None, {"n": 3})
        hub().heard(str(run_id), seq + 3, seq + 3, last)
        assert [(await socket.next())["n"] for _ in range(3)] == [1, 2, 3]


async def test_a_client_may_ask_for_another_snapshot(
    no_redis: None, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "REFRESH_INTERVAL", 0.0)
    run_id = await sync_to_async(completed)()
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/", cookie) as socket:
        await socket.next()
        await socket.communicator.send_json_to({"type": "refresh"})
        assert (await socket.next())["type"] == "snapshot"


@pytest.mark.parametrize(
    "said",
    [
        "",
        "{",
        "[]",
        '"refresh"',
        "null",
        '{"type": 7}',
        '{"type": "ack", "n": "x"}',
        "x" * 5_000,
        "[" * 1_000,
    ],
)
async def test_whatever_a_client_says_it_goes_on(no_redis: None, operator: User, said: str) -> None:
    run_id = await sync_to_async(waiting)("o-6")
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/", cookie) as socket:
        await socket.next()
        await socket.communicator.send_input({"type": "websocket.receive", "text": said})
        await socket.communicator.send_input({"type": "websocket.receive", "bytes": said.encode()})
        await workflows.acancel(run_id)
        assert (await socket.next())["name"] == "cancelled"


async def test_what_is_to_be_masked_is_masked_in_snapshots_replays_and_live(
    any_layer: str, operator: User
) -> None:
    with override_settings(WORKFLOW={"REDACT": ["card"]}):
        run_id = await sync_to_async(failed)("f-1", card="S3CR3T-7777")
        cookie = await sync_to_async(cookie_of)(operator)
        async with (
            opened(f"/ws/workflow/{run_id}/", cookie) as fresh,
            opened(f"/ws/workflow/{run_id}/?after=0", cookie) as replayed,
            opened("/ws/workflow/", cookie) as everything,
        ):
            await fresh.next()
            await replayed.named("failed")
            await everything.next()
            await workflows.aretry(run_id)
            await sync_to_async(drain)(run_id)
            for socket in (fresh, replayed, everything):
                await socket.named("failed")
            said = repr([fresh.frames, replayed.frames, everything.frames])
    assert "S3CR3T" not in said
    assert "refused, card=********" in said
    logs = [f for f in fresh.frames if f.get("name") == "log"]
    assert logs
    assert "7777" not in repr(logs)


async def test_a_client_that_does_not_keep_up_is_dropped(
    no_redis: None, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "WINDOW", 1)
    monkeypatch.setattr(base, "OUTBOX", 2)
    run_id = await sync_to_async(completed)()
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/?after=0&flow=1", cookie) as socket:
        code = await socket.closed()
    assert code == 4408
    assert len(socket.frames) <= 1


async def test_a_client_that_says_what_it_takes_gets_all(
    no_redis: None, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "WINDOW", 2)
    run_id = await sync_to_async(completed)()
    everything = await sync_to_async(history_of)(run_id)
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/?after=0&flow=1", cookie) as socket:
        for _ in everything:
            await socket.next()
            await socket.communicator.send_json_to({"type": "ack", "n": 1})
    assert shown(socket.frames) == everything


async def test_a_client_that_takes_nothing_more_is_dropped_in_time(
    no_redis: None, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "WINDOW", 1)
    monkeypatch.setattr(base, "SEND_TIMEOUT", 0.2)
    run_id = await sync_to_async(completed)()
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/?after=0&flow=1", cookie) as socket:
        assert await socket.closed() == 4408


async def test_a_run_that_is_gone_ends_its_socket(
    no_redis: None, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "RECHECK_INTERVAL", 0.1)
    run_id = await sync_to_async(completed)()
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/", cookie) as socket:
        await socket.next()
        await workflows.aprune(0)
        assert await socket.closed() == 4404


async def test_the_hub_holds_nothing_when_nobody_watches(any_layer: str, operator: User) -> None:
    from django.db import connection

    def connections_of_the_hub() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name LIKE 'workflow live%'"
            )
            return int(cursor.fetchone()[0])

    run_id = await sync_to_async(waiting)("o-7")
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/", cookie) as socket:
        await socket.next()
        while not await sync_to_async(connections_of_the_hub)():
            await asyncio.sleep(0.02)
    async with asyncio.timeout(30):
        while await sync_to_async(connections_of_the_hub)():
            await asyncio.sleep(0.02)


class Page:
    def tell(self, messages: Sequence[reading.Frame]) -> None: ...

    def lost(self) -> None: ...


async def test_a_page_that_comes_while_the_last_one_leaves_hears_the_layer(
    no_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "reaches_others", lambda layer: True)
    own, run_id = Hub(), ids.new_run_id()
    before, after = Page(), Page()
    layer = progress.layer()
    group = progress.run_group(run_id)

    async def joined() -> set[str]:
        """The channels in the run's group once nobody does anything more."""
        for _ in range(50):
            await asyncio.sleep(0.01)
        return set(layer.groups.get(group, {}))

    own.watch(run_id, before)
    (old,) = await joined()
    leaving = asyncio.create_task(own.leave(run_id, before))
    await asyncio.sleep(0)
    own.watch(run_id, after)
    await leaving
    (new,) = await joined()
    assert new != old
    assert own.hears, "else it would look every second"
    await own.leave(run_id, after)
    assert await joined() == set()
    assert not own.hears


async def test_a_page_that_is_left_as_its_snapshot_comes_leaves_no_run_to_be_read(no_redis: None) -> None:
    own, page, run_id = Hub(), Page(), ids.new_run_id()
    own.watch(run_id, page)
    leaving = asyncio.create_task(own.leave(run_id, page))
    await asyncio.sleep(0)
    own.missing(run_id, 3)  # the task that reads the snapshot is cancelled a moment later
    await leaving
    assert own._cursors == {}


async def test_unknown_runs_have_no_socket(no_redis: None, operator: User) -> None:
    from tests.channels.conftest import refused

    cookie = await sync_to_async(cookie_of)(operator)
    assert await refused(f"/ws/workflow/{ids.new_run_id()}/", cookie) == 4404
    assert states.RUN_TERMINAL
