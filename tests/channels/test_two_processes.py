"""The worker is another process: with Redis between the two, and with nothing but PostgreSQL."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from tests.channels.conftest import StartWorker, cookie_of, opened
from tests.kitchen import workflows as kitchen
from workflow import workflows
from workflow.models import RunEvent

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("floor", [3_600.0, 5.0])
async def test_what_a_worker_does_is_seen_while_it_does_it(
    any_layer: str,
    floor: float,
    start_worker: StartWorker,
    operator: User,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Heard of, not found by the clock: with the first floor that would take an hour."""
    monkeypatch.setattr("workflow.consumers.hub.FLOOR", floor)
    url = request.getfixturevalue("redis_server").url if any_layer == "redis" else ""
    file = tmp_path / "baked"
    run_id = (await workflows.adispatch(kitchen.bread, {"file": str(file)})).run_id
    cookie = await sync_to_async(cookie_of)(operator)
    async with (
        opened(f"/ws/workflow/{run_id}/", cookie) as socket,
        opened("/ws/workflow/", cookie) as everything,
    ):
        first = await socket.next()
        await everything.next()
        assert first["run"]["status"] == "pending"
        await asyncio.to_thread(start_worker, url)
        moving = await socket.named("action.progress")
        assert (moving["progress"], moving["message"]) == (40.0, "warming up")
        file.touch()
        await socket.named("completed")
        await everything.named("completed")

    def entries() -> list[Any]:
        return list(RunEvent.objects.filter(run_id=run_id).order_by("seq").values_list("seq", flat=True))

    assert socket.seqs == await sync_to_async(entries)()


async def test_a_listener_whose_connection_is_cut_hears_again(
    no_redis: None, start_worker: StartWorker, operator: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connection

    monkeypatch.setattr("workflow.consumers.hub.FLOOR", 3_600.0)
    monkeypatch.setattr("workflow.consumers.hub.POLL", 3_600.0)

    def cut() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name LIKE 'workflow live%'"
            )
            return int(cursor.fetchone()[0])

    file = tmp_path / "baked"
    run_id = (await workflows.adispatch(kitchen.bread, {"file": str(file)})).run_id
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(f"/ws/workflow/{run_id}/", cookie) as socket:
        await socket.next()
        while await sync_to_async(cut)() < 2:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(start_worker)
        await socket.named("action.progress")
        file.touch()
        await socket.named("completed")
    assert socket.seqs == list(range(1, socket.seqs[-1] + 1))
