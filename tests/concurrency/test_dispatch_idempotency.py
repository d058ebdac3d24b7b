"""One idempotency key, many connections: one run, whoever commits, rolls back or comes late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from tests.support import rows
from tests.support.definitions import PLAIN
from tests.support.threads import elsewhere, together, until_blocked
from workflow import RunHandle, workflows
from workflow.models import Event, Job, Node, Run
from workflow.registry import registry

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _registry() -> Any:
    with registry.isolated():
        workflows.register(PLAIN)
        yield


def one(key: str, who: str = "") -> Callable[[], RunHandle]:
    return lambda: workflows.dispatch("plain", {"who": who}, idempotency_key=key)


def many(keys: list[str]) -> Callable[[], list[RunHandle]]:
    return lambda: workflows.dispatch_many("plain", keys, idempotency_keys=keys)


@pytest.mark.parametrize("attempt", range(3))
def test_twenty_at_once_are_one_run(attempt: int) -> None:
    handles = together([one("k")] * 20)
    assert [handle for handle in handles if not isinstance(handle, RunHandle)] == []
    assert len({handle.run_id for handle in handles}) == 1
    assert sorted(handle.created for handle in handles) == [False] * 19 + [True]
    assert rows.counts() == {"run": 1, "node": 3, "job": 1, "step": 0, "event": 0, "runevent": 0}


def test_whoever_waits_for_a_dispatch_that_is_rolled_back_creates_the_run() -> None:
    with elsewhere() as start:
        with transaction.atomic():
            lost = one("k", "first")()
            other = start(one("k", "second"))
            until_blocked()
            transaction.set_rollback(True)
        handle = other.result(30)
    assert handle.created
    assert handle.run_id != lost.run_id
    assert Run.objects.get().state == {"who": "second"}
    assert (Node.objects.count(), Job.objects.count()) == (3, 1)


def test_whoever_waits_for_a_dispatch_that_is_committed_finds_its_run() -> None:
    with elsewhere() as start:
        with transaction.atomic():
            first = one("k", "first")()
            other = start(one("k", "second"))
            until_blocked()
        handle = other.result(30)
    assert (handle.run_id, handle.created) == (first.run_id, False)
    assert Run.objects.get().state == {"who": "first"}


def test_a_transaction_that_waited_and_found_the_key_taken_goes_on() -> None:
    def inside() -> bool:
        with transaction.atomic():
            created = one("k", "second")().created
            workflows.dispatch("plain", {"who": "third"})
            return created

    with elsewhere() as start:
        with transaction.atomic():
            one("k", "first")()
            other = start(inside)
            until_blocked()
        assert other.result(30) is False
    assert sorted(run.state["who"] for run in Run.objects.all()) == ["first", "third"]


def test_a_batch_waits_for_a_key_and_is_whole_either_way() -> None:
    for commits in (True, False):
        Run.objects.all().delete()
        with elsewhere() as start:
            with transaction.atomic():
                one("b", "first")()
                other = start(many(["c", "b", "a"]))
                until_blocked()
                transaction.set_rollback(not commits)
            handles = other.result(30)
        assert [handle.created for handle in handles] == [True, not commits, True]
        assert len({handle.run_id for handle in handles}) == Run.objects.count() == 3


@pytest.mark.parametrize("attempt", range(3))
def test_batches_with_keys_in_common_never_wait_for_each_other_crosswise(attempt: int) -> None:
    keys = [f"k{n}" for n in range(60)]
    batches = [keys, keys[::-1], keys[30:] + keys[:30], keys[::2] + keys[1::2]]
    found = together([many(batch) for batch in batches])
    assert [handles for handles in found if isinstance(handles, Exception)] == []
    by_key: dict[str, set[Any]] = {}
    created = 0
    for batch, handles in zip(batches, found, strict=True):
        assert isinstance(handles, list)
        for key, handle in zip(batch, handles, strict=True):
            by_key.setdefault(key, set()).add(handle.run_id)
            created += handle.created
    assert {len(ids) for ids in by_key.values()} == {1}
    assert created == Run.objects.count() == Job.objects.count() == 60


def test_a_key_whose_run_is_pruned_again_and_again_is_never_an_error_of_the_database() -> None:
    def dispatch() -> int:
        return sum(one("k")().created for _ in range(40))

    def prune() -> int:
        dropped = 0
        for _ in range(40):
            Run.objects.filter(status="pending").update(status="cancelled", finished_at="2000-01-01T00:00Z")
            dropped += workflows.prune(1)
        return dropped

    first, second, dropped = together([dispatch, dispatch, prune])
    assert isinstance(first, int), first
    assert isinstance(second, int), second
    assert isinstance(dropped, int), dropped
    assert first + second == dropped + Run.objects.count()


def test_one_event_id_from_twenty_webhooks_counts_once() -> None:
    found = together([lambda: workflows.publish("paid", event_id="e")] * 20)
    assert sorted(found) == [False] * 19 + [True]
    assert (Event.objects.count(), Job.objects.count()) == (1, 1)


def test_a_publish_that_is_rolled_back_leaves_its_event_id_to_the_next() -> None:
    with elsewhere() as start:
        with transaction.atomic():
            workflows.publish("paid", 1, event_id="e")
            other = start(lambda: workflows.publish("paid", 2, event_id="e"))
            until_blocked()
            transaction.set_rollback(True)
        assert other.result(30) is True
    assert Event.objects.get().payload == 2


def test_a_caller_at_a_stricter_isolation_gets_its_serialization_error_and_no_second_run() -> None:
    def strict() -> bool:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT count(*) FROM workflow_run")
            return one("k", "second")().created

    with elsewhere() as start:
        with transaction.atomic():
            one("k", "first")()
            other = start(strict)
            until_blocked()
        with pytest.raises(Exception, match="could not serialize"):
            other.result(30)
    assert Run.objects.get().state == {"who": "first"}
