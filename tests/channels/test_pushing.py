"""Telling people of history never costs a run anything: no layer, a broken one, one that hangs, a tiny one."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from channels.layers import BaseChannelLayer, InMemoryChannelLayer, channel_layers
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection, transaction

from tests.channels.conftest import MEMORY, NONE, PATIENCE, Redis, cookie_of, opened, redis_layer
from tests.kitchen import workflows as kitchen
from tests.support.web import ORDER, completed, waiting
from workflow import Action, Stage, Workflow, parallel, progress, workflows
from workflow.ids import new_run_id
from workflow.models import Run, RunEvent
from workflow.registry import registry
from workflow.store.pipeline import Rows, Statement
from workflow.store.ports import connection_parameters
from workflow.testing import drain
from workflow.worker.pusher import Pusher

pytestmark = [pytest.mark.django_db(transaction=True)]


class Broken(BaseChannelLayer):  # type: ignore[misc]
    """Refuses everything, and counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        self.asked += 1
        raise ConnectionError("nobody is there")


class Hanging(Broken):
    """Takes a minute for everything."""

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        self.asked += 1
        await asyncio.sleep(60)


class Recording(BaseChannelLayer):  # type: ignore[misc]
    """Keeps what it is given, as if another process took it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, dict[str, Any]]] = []

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        self.sent.append((group, message))

    def of(self, run_id: UUID) -> list[dict[str, Any]]:
        return [message for group, message in self.sent if group == f"workflow.run.{run_id}"]


@pytest.fixture(autouse=True)
def layers_as_before() -> Iterator[None]:
    yield
    channel_layers.backends.clear()


def use(layer: Any) -> Any:
    channel_layers.set("default", layer)
    return layer


def work() -> float:
    """Has a worker, in this thread, do all that is due; how many seconds it took."""
    since = time.monotonic()
    call_command("workflow:worker", "--burst", "--concurrency", "20")
    return time.monotonic() - since


def history_of(run_id: UUID) -> list[dict[str, Any]]:
    return list(RunEvent.objects.filter(run_id=run_id).order_by("seq").values("seq", "name", "node", "data"))


def agrees(messages: list[dict[str, Any]], run_id: UUID) -> None:
    """The messages are the run's history, one for one."""
    entries = history_of(run_id)
    assert [m["seq"] for m in messages] == [e["seq"] for e in entries]
    for message, entry in zip(messages, entries, strict=True):
        assert message["type"] == "workflow.event"
        assert message["run_id"] == str(run_id)
        assert (message["name"], message["node"]) == (entry["name"], entry["node"])
        data = {k: v for k, v in (entry["data"] or {}).items() if k not in ("name", "type")}
        assert {key: message.get(key) for key in data} == data


def test_a_worker_pushes_the_history_one_for_one_and_in_order() -> None:
    layer = use(Recording())
    run_ids = [workflows.dispatch(kitchen.toast, {}).run_id for _ in range(5)]
    work()
    for run_id in run_ids:
        assert Run.objects.get(pk=run_id).status == "compensated"
        agrees(layer.of(run_id), run_id)
    everything = [message for group, message in layer.sent if group == "workflow"]
    assert len(everything) == RunEvent.objects.count()


def test_what_drain_pushes_says_when_a_retry_is_due() -> None:
    def shaky(state: dict[str, Any]) -> None:
        raise RuntimeError("not yet")

    layer = use(Recording())
    with registry.isolated():
        definition = Workflow("shaky", stages=[Stage("s", actions=[Action("a", shaky, backoff=30)])])
        run_id = workflows.dispatch(definition, {}).run_id
        drain()
    (retrying,) = [m for m in layer.of(run_id) if m["name"] == "action.retrying"]
    assert datetime.fromisoformat(retrying["due_at"]) == datetime.fromisoformat(retrying["at"]) + timedelta(
        seconds=30
    )
    agrees(layer.of(run_id), run_id)


def test_commands_push_after_their_commit_and_nothing_when_it_is_undone() -> None:
    layer = use(Recording())
    run_id = waiting("p-1")
    before = len(layer.of(run_id))
    agrees(layer.of(run_id), run_id)
    with transaction.atomic():
        workflows.cancel(run_id)
        transaction.set_rollback(True)
    assert len(layer.of(run_id)) == before
    with transaction.atomic():
        workflows.cancel(run_id, "enough", by="somebody")
        assert len(layer.of(run_id)) == before
    last = layer.of(run_id)[-1]
    assert (last["name"], last["reason"], last["by"]) == ("cancelled", "enough", "somebody")


def test_progress_is_coalesced_and_the_last_value_arrives() -> None:
    layer = use(Recording())
    run_id = workflows.dispatch(kitchen.sauce, {}).run_id
    seconds = work()
    told = [m["progress"] for m in layer.of(run_id) if m["name"] == "action.progress"]
    assert told[-1] == 99.9
    assert len(told) <= 2 + seconds / 0.4
    agrees(layer.of(run_id), run_id)


def test_parallel_members_of_a_run_share_what_a_run_may_tell() -> None:
    def busy(state: dict[str, Any], ctx: Any) -> None:
        for number in range(100):
            ctx.progress(number)
            time.sleep(0.02)  # two seconds of telling: the bound below is one on what is told in a time

    layer = use(Recording())
    members = [Action(f"a{number}", busy) for number in range(10)]
    with registry.isolated():
        definition = Workflow("busy", stages=[Stage("s", actions=[parallel(*members)])])
        run_id = workflows.dispatch(definition, {}).run_id
        seconds = work()
    told = [m for m in layer.of(run_id) if m["name"] == "action.progress"]
    for member in members:
        assert [m["progress"] for m in told if m["node"] == f"busy.s.{member.name}"][-1] == 99
    assert len(told) <= len(members) + 1 + seconds / 0.2
    agrees(layer.of(run_id), run_id)


@pytest.mark.parametrize("broken", [Broken, Hanging])
@pytest.mark.parametrize("engine", ["worker", "drain"])
def test_a_layer_that_takes_nothing_costs_next_to_nothing(
    broken: type[Broken], engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    layer = use(broken())
    run_ids = [workflows.dispatch(ORDER, {"order_id": f"b-{n}"}).run_id for n in range(20)]
    since = time.monotonic()
    with caplog.at_level(logging.WARNING, logger="workflow"):
        if engine == "worker":
            work()
        else:
            drain(timeout=30)
    assert time.monotonic() - since < 25  # each of the messages would take a minute, or the bound of a second
    assert {Run.objects.get(pk=run_id).status for run_id in run_ids} == {"waiting"}
    assert layer.asked <= 3
    lines = [r for r in caplog.records if "takes no messages" in r.getMessage()]
    assert len(lines) == 1


def test_the_log_hears_of_a_broken_layer_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000.0]
    monkeypatch.setattr("workflow.progress.time.monotonic", lambda: clock[0])
    gate = progress.Gate()
    with caplog.at_level(logging.WARNING, logger="workflow"):
        for _ in range(121):
            if gate.open:
                gate.failed(ConnectionError("gone"), 1)
            clock[0] += 1
    assert 2 <= len(caplog.records) <= 3
    assert not progress.Gate().lost


def test_a_layer_that_comes_back_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_REST", 0.0)
    layer = Recording()
    gate = progress.gate_of(use(layer))
    gate._rest = 0.0
    gate.failed(ConnectionError("gone"), 3)
    run_id = completed()
    agrees(layer.of(run_id), run_id)


def test_a_layer_that_cannot_be_made_is_none(settings: Any) -> None:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "no.such.Layer"}}
    run_id = completed()
    assert Run.objects.get(pk=run_id).status == "completed"
    assert progress.layer() is None
    workflows.dispatch(kitchen.toast, {})
    work()


def test_without_a_layer_nothing_is_queued_and_nothing_pushed(settings: Any) -> None:
    for layers in (NONE, MEMORY):
        settings.CHANNEL_LAYERS = layers
        assert not progress.has_readers(progress.layer())
        run_id = workflows.dispatch(kitchen.toast, {}).run_id
        work()
        assert Run.objects.get(pk=run_id).status == "compensated"


class Listener:
    """Hears PostgreSQL's channel as a web process does."""

    def __enter__(self) -> Listener:
        self.payloads: list[str] = []
        self._connection = psycopg.connect(**connection_parameters(), autocommit=True)
        self._connection.execute(f"LISTEN {progress.CHANNEL}")
        return self

    def hear(self, count: int) -> dict[str, progress.Range]:
        """What at least so many notifications say together."""
        for notification in self._connection.notifies(timeout=PATIENCE, stop_after=count):
            self.payloads.append(notification.payload)
        assert len(self.payloads) >= count
        for notification in self._connection.notifies(timeout=0.1):
            self.payloads.append(notification.payload)
        ranges: dict[str, progress.Range] = {}
        for payload in self.payloads:
            parsed = progress.parse(payload)
            assert parsed is not None
            for run_id, (first, last) in parsed.items():
                known = ranges.get(run_id, (first, last))
                ranges[run_id] = (min(first, known[0]), max(last, known[1]))
        return ranges

    def __exit__(self, *error: object) -> None:
        self._connection.close()


def test_a_worker_without_a_layer_notifies_of_all_that_it_wrote_a_few_times_a_second(settings: Any) -> None:
    settings.CHANNEL_LAYERS = MEMORY
    run_ids = [workflows.dispatch(kitchen.toast, {}).run_id for _ in range(30)]
    with Listener() as listener:
        seconds = work()
        ranges = listener.hear(1)
    assert ranges == {str(run_id): (1, Run.objects.get(pk=run_id).seq) for run_id in run_ids}
    assert len(listener.payloads) <= 2 + seconds / 0.2


class Noting:
    """A port that keeps the payloads of notifications."""

    def __init__(self) -> None:
        self.payloads: list[str] = []
        self.told = asyncio.Event()

    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        for statement, parameters in statements:
            assert statement == progress.NOTIFY
            self.payloads.append(str(parameters[0]))
        self.told.set()
        return [[] for _ in statements]


async def test_what_is_appended_soon_after_one_another_is_told_at_once_and_in_nobodys_way(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.CHANNEL_LAYERS = NONE
    monkeypatch.setattr("workflow.worker.pusher.NOTIFY_DELAY", 0.5)
    run_id, port = str(new_run_id()), Noting()
    pusher = Pusher(port)
    telling = asyncio.create_task(pusher.run())
    try:
        pusher.announce_rows([(run_id, 1, "started", None, None, None)])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert port.payloads == []
        pusher.announce_rows([(run_id, 2, "completed", None, None, None)])
        async with asyncio.timeout(PATIENCE):
            await port.told.wait()
        assert [progress.parse(payload) for payload in port.payloads] == [{run_id: (1, 2)}]
    finally:
        telling.cancel()


def test_commands_without_a_layer_notify_after_their_commit(settings: Any) -> None:
    settings.CHANNEL_LAYERS = NONE
    run_id = waiting("p-2")
    with Listener() as listener:
        with transaction.atomic():
            workflows.cancel(run_id)
            transaction.set_rollback(True)
        workflows.cancel(run_id)
        seq = Run.objects.get(pk=run_id).seq
        assert listener.hear(1) == {str(run_id): (seq, seq)}


@pytest.mark.parametrize("run_id", [UUID(int=0), UUID(int=2**128 - 1), new_run_id()])
def test_the_groups_of_runs_have_names_that_every_layer_takes(run_id: UUID) -> None:
    for name in (progress.GROUP, progress.run_group(run_id)):
        assert BaseChannelLayer().require_valid_group_name(name)


def test_payloads_are_read_as_they_were_written() -> None:
    ranges = {str(UUID(int=n << 20)): (n, n + 3) for n in range(1, 400)}
    lines = progress.payloads(ranges)
    assert 1 < len(lines) <= progress.MAX_NOTIFICATIONS
    assert max(map(len, lines)) < 8_000
    together: dict[str, progress.Range] = {}
    for line in lines:
        together.update(progress.parse(line) or {})
    assert together == ranges
    assert progress.payloads({}) == []
    many = {str(UUID(int=n << 20)): (1, 99_999) for n in range(1, 5_000)}
    assert progress.payloads(many) == ["*"]
    for unreadable in ("*", "x:1-2", f"{UUID(int=0)}:1", f"{UUID(int=0)}:a-b"):
        assert progress.parse(unreadable) is None


async def test_a_tiny_layer_loses_messages_and_the_page_still_ends_right(operator: User) -> None:
    use(InMemoryChannelLayer(capacity=5))
    run_id = (await workflows.adispatch(kitchen.sauce, {})).run_id
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/", cookie) as socket:
        await socket.next()
        await sync_to_async(drain)(run_id)
        await socket.named("completed")
    assert socket.seqs == list(range(1, socket.seqs[-1] + 1))


@pytest.fixture
async def stopped_redis(tmp_path: Any, settings: Any) -> AsyncIterator[Redis]:
    """A Redis of this test alone, which it may stop and start."""
    server = await asyncio.to_thread(Redis, tmp_path)
    settings.CHANNEL_LAYERS = redis_layer(server.url)
    yield server
    await asyncio.to_thread(server.stop)


async def test_redis_goes_away_and_comes_back_while_a_page_is_open(
    stopped_redis: Redis, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflow.consumers.hub.POLL", 0.2)
    run_id = await sync_to_async(waiting)("r-1")
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/", cookie) as socket:
        await socket.next()
        await asyncio.to_thread(stopped_redis.stop)
        await workflows.aresume(run_id)
        await socket.named("resumed")
        await asyncio.to_thread(stopped_redis.start)
        await sync_to_async(drain)(run_id)
        await socket.named("completed")
    assert socket.seqs == list(range(socket.seqs[0], socket.seqs[-1] + 1))


@pytest.mark.parametrize(("entries", "characters"), [(100, 10**9), (10**9, 100 * 20)])
def test_what_waits_for_a_layer_is_bounded_and_the_oldest_go(
    monkeypatch: pytest.MonkeyPatch, entries: int, characters: int
) -> None:
    from workflow.worker import pusher as module

    monkeypatch.setattr(module, "CAPACITY", entries)
    monkeypatch.setattr(module, "CAPACITY_CHARACTERS", characters)
    layer = use(Recording())
    run_id = str(UUID(int=0))
    text = json.dumps({"message": "12345"})
    assert len(text) == 20

    async def main() -> int:
        pusher = module.Pusher(None)  # type: ignore[arg-type]  # with a layer nothing is notified
        for number in range(1, 501):  # nobody takes any of it meanwhile
            pusher.announce_rows([(run_id, number, "log", None, None, text)])  # type: ignore[list-item]
        task = asyncio.get_running_loop().create_task(pusher.run())
        await pusher.drained(PATIENCE)
        task.cancel()
        return pusher.dropped

    assert async_to_sync(main)() == 400
    assert [message["seq"] for message in layer.of(UUID(int=0))] == list(range(401, 501))


def test_announcing_from_a_handlers_thread_is_safe() -> None:
    """Atomic actions settle in threads; the queue is emptied on the loop."""
    from workflow.worker.pusher import Pusher

    layer = use(Recording())

    async def main() -> None:
        class Nowhere:
            async def run(self, statements: Any) -> list[Any]:
                raise AssertionError("with a layer nothing is notified")

        pusher = Pusher(Nowhere())
        task = asyncio.get_running_loop().create_task(pusher.run())
        run_id = str(UUID(int=0))

        def announce(thread: int) -> None:
            for number in range(200):
                pusher.announce_rows([(run_id, thread * 1_000 + number, "log", None, None, None)])  # type: ignore[list-item]

        threads = [threading.Thread(target=announce, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        await pusher.drained(PATIENCE)
        task.cancel()

    async_to_sync(main)()
    seqs = [message["seq"] for group, message in layer.sent if group == "workflow"]
    assert len(seqs) == 800
    for thread in range(4):
        own = [seq for seq in seqs if seq // 1_000 == thread]
        assert own == sorted(own)
    assert connection.vendor == "postgresql"
