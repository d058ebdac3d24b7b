"""Pausing and resuming queues: what is written, refused and told; whose clock it is."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, connections, transaction
from django.test import override_settings

from workflow import workflows
from workflow.models import PausedQueue
from workflow.results import PausedQueueInfo
from workflow.store.ports import connection_parameters
from workflow.testing import advance

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def now() -> datetime:
    """The transaction's."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        found: datetime = cursor.fetchone()[0]
        return found


def paused() -> list[str]:
    return [pause.queue for pause in workflows.paused_queues()]


def test_a_pause_is_a_row_that_says_why_who_and_since_when() -> None:
    found = workflows.pause_queue("slow", reason="upstream is down", by="ada")
    assert found == PausedQueueInfo(
        queue="slow", until=None, reason="upstream is down", by="ada", paused_at=now()
    )
    assert workflows.paused_queues() == [found]
    assert PausedQueue.objects.values().get() == found.model_dump()


def test_without_anything_else_it_has_no_end_and_no_reason() -> None:
    found = workflows.pause_queue("slow")
    assert (found.until, found.reason, found.by) == (None, "", None)


@pytest.mark.parametrize("until", [90, 90.0, timedelta(seconds=90)])
def test_seconds_count_from_now_on_the_databases_clock(until: Any) -> None:
    assert workflows.pause_queue("slow", until=until).until == now() + timedelta(seconds=90)


def test_a_moment_may_be_of_any_time_zone() -> None:
    moment = now() + HOUR
    for hours in (5, -23.9, 16, 23.9):
        there = moment.astimezone(timezone(hours * HOUR))
        assert workflows.pause_queue("slow", until=there).until == moment


def test_pausing_again_replaces_all_but_since_when() -> None:
    first = workflows.pause_queue("slow", until=HOUR, reason="one", by="ada")
    advance(60)
    second = workflows.pause_queue("slow", until=2 * HOUR, reason="two")
    assert (second.until, second.reason, second.by) == (now() + 2 * HOUR, "two", None)
    assert second.paused_at == first.paused_at - timedelta(seconds=60)
    assert workflows.pause_queue("slow").until is None
    assert paused() == ["slow"]


def test_a_pause_that_is_over_is_none_and_the_next_one_begins_anew() -> None:
    workflows.pause_queue("slow", until=10)
    advance(10)
    assert paused() == []
    assert workflows.pause_queue("slow").paused_at == now()
    workflows.pause_queue("slow", until=10)
    advance(10)
    assert workflows.resume_queue("slow") is False
    assert not PausedQueue.objects.exists()


def test_resuming_says_whether_there_was_a_pause() -> None:
    workflows.pause_queue("slow")
    workflows.pause_queue("fast")
    assert workflows.resume_queue("slow", by="ada") is True
    assert workflows.resume_queue("slow") is False
    assert paused() == ["fast"]


def test_queues_are_listed_by_name_whatever_they_are_called() -> None:
    names = ["b", "a", 'quo"ted', "{}", "ünï", "a,b", "NULL", "%s", "x" * 100]
    for name in names:
        workflows.pause_queue(name)
    assert sorted(paused()) == sorted(names)


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((None,), {}, TypeError),
        ((7,), {}, TypeError),
        (("",), {}, ValueError),
        (("x" * 101,), {}, ValueError),
        (("a\0b",), {}, ValueError),
        (("#events",), {}, ValueError),
        (("slow",), {"until": "tomorrow"}, TypeError),
        (("slow",), {"until": True}, TypeError),
        (("slow",), {"until": date(2100, 1, 1)}, TypeError),
        (("slow",), {"until": datetime(2100, 1, 1, tzinfo=UTC).replace(tzinfo=None)}, ValueError),
        (("slow",), {"until": datetime(2020, 1, 1, tzinfo=UTC)}, ValueError),
        (("slow",), {"until": datetime.max.replace(tzinfo=timezone(-HOUR))}, ValueError),
        (("slow",), {"until": datetime.min.replace(tzinfo=timezone(HOUR))}, ValueError),
        (("slow",), {"until": 0}, ValueError),
        (("slow",), {"until": -1}, ValueError),
        (("slow",), {"until": float("nan")}, ValueError),
        (("slow",), {"until": float("inf")}, ValueError),
        (("slow",), {"until": timedelta(days=-1)}, ValueError),
        (("slow",), {"until": 10**400}, ValueError),
        (("slow",), {"reason": None}, TypeError),
        (("slow",), {"reason": "x" * 10_001}, ValueError),
        (("slow",), {"by": 7}, TypeError),
        (("slow",), {"by": ""}, ValueError),
    ],
)
def test_what_can_not_be_right_is_refused_and_leaves_the_transaction_usable(
    arguments: Any, options: Any, error: type[Exception]
) -> None:
    workflows.pause_queue("before")
    with pytest.raises(error) as raised:
        workflows.pause_queue(*arguments, **options)
    assert "\n" not in str(raised.value)
    assert paused() == ["before"]


def test_an_end_that_has_passed_leaves_the_pause_that_there_is() -> None:
    before = workflows.pause_queue("slow", reason="for ever")
    with pytest.raises(ValueError, match="until must be in the future"):
        workflows.pause_queue("slow", until=now())
    assert workflows.paused_queues() == [before]


@pytest.mark.parametrize(
    ("arguments", "error"), [((None,), TypeError), (("",), ValueError), (("a\0",), ValueError)]
)
def test_resuming_takes_a_name(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        workflows.resume_queue(*arguments)


def test_the_engines_own_queue_can_not_be_paused_by_anybody() -> None:
    with pytest.raises(ValueError, match="the engine's own queue #events"):
        workflows.pause_queue("#events")
    with pytest.raises(IntegrityError), transaction.atomic():
        PausedQueue.objects.create(queue="#events")


def test_each_call_is_one_query(django_assert_num_queries: Any) -> None:
    for call in (
        lambda: workflows.pause_queue("slow", until=5),
        lambda: workflows.resume_queue("slow"),
        paused,
    ):
        with django_assert_num_queries(1):
            call()


@override_settings(USE_TZ=False)
def test_times_are_as_django_gives_them() -> None:
    assert all(
        value is None or value.tzinfo is None
        for pause in (workflows.pause_queue("slow", until=HOUR), *workflows.paused_queues())
        for value in (pause.until, pause.paused_at)
    )
    workflows.resume_queue("slow")


@pytest.mark.django_db(transaction=True)
async def test_the_twins_do_the_same() -> None:
    found = await workflows.apause_queue("slow", until=HOUR, reason="why")
    assert await workflows.apaused_queues() == [found] == await sync_to_async(workflows.paused_queues)()
    assert await workflows.aresume_queue("slow", by="ada") is True
    assert await workflows.apaused_queues() == []
    await sync_to_async(connections.close_all)()


@pytest.mark.django_db(transaction=True)
def test_all_of_it_takes_part_in_the_callers_transaction_and_rings_with_its_commit() -> None:
    channel = uuid.uuid4().hex
    with psycopg.connect(**connection_parameters(), autocommit=True) as listener:
        listener.execute("LISTEN workflow_job")
        listener.execute(f'LISTEN "{channel}"')

        def rings() -> int:
            listener.execute("SELECT pg_notify(%s, '')", (channel,))
            heard = []
            for note in listener.notifies(timeout=30):
                if note.channel == channel:
                    break
                heard.append(note)
            return len(heard)

        with transaction.atomic():
            workflows.pause_queue("slow")
            assert rings() == 0
        assert rings() == 1
        with transaction.atomic():
            workflows.resume_queue("slow")
            transaction.set_rollback(True)
        assert (rings(), paused()) == (0, ["slow"])
        workflows.resume_queue("slow")
        assert rings() == 1
        workflows.resume_queue("slow")
        assert rings() == 0
