"""What docs/how-to/run-on-a-schedule.md shows does what that page says of it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction

from tests.support.shown import shown
from tests.support.threads import elsewhere, together, until_blocked
from workflow import RunHandle, Workflow, workflows
from workflow.models import Run
from workflow.registry import registry
from workflow.testing import advance, drain

pytestmark = pytest.mark.django_db(transaction=True)
TODAY = date(2026, 3, 9)
BEFORE = ["2026-03-04", "2026-03-05", "2026-03-06", "2026-03-07", "2026-03-08"]


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    return shown("docs/how-to/run-on-a-schedule.md")


@pytest.fixture(autouse=True)
def _registry(page: dict[str, Any]) -> Iterator[None]:
    with registry.isolated():
        for value in page.values():
            if isinstance(value, Workflow):
                workflows.register(value)
        yield


@pytest.fixture
def catch_up(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[date], list[str]]:
    """Calls the command as if it were that day; the days that it has dispatched."""

    def call(today: date = TODAY) -> list[str]:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Clock:
                return cls(today.year, today.month, today.day, 8, tzinfo=tz)

        monkeypatch.setitem(page, "datetime", Clock)
        out = io.StringIO()
        call_command(page["Command"](), stdout=out)
        return [line.partition(":")[0] for line in out.getvalue().splitlines()]

    return call


def days() -> list[str]:
    return sorted(Run.objects.filter(workflow="nightly-report").values_list("input__day", flat=True))


# --- the tick -------------------------------------------------------------------------------------


def test_ticks_of_many_hosts_at_once_are_one_run(page: dict[str, Any]) -> None:
    handles = together([page["tick"]] * 8)
    assert [each for each in handles if not isinstance(each, RunHandle)] == []
    assert len({each.run_id for each in handles}) == 1
    assert sorted(each.created for each in handles) == [False] * 7 + [True]
    drain()
    run = Run.objects.get()
    assert (run.status, run.idempotency_key) == ("completed", f"nightly-{run.input['day']}")
    assert abs(datetime.now(UTC).date() - date.fromisoformat(run.input["day"])) <= timedelta(days=1)


def test_a_turn_stays_taken_when_its_run_is_over_and_is_free_once_it_is_pruned() -> None:
    def tick() -> RunHandle:
        return workflows.dispatch(
            "nightly-report", {"day": "2026-03-04"}, idempotency_key="nightly-2026-03-04"
        )

    first = tick()
    workflows.cancel(first.run_id)
    assert not tick().created
    advance(6 * 86_400)
    call_command("workflow:prune", stdout=io.StringIO())
    assert not tick().created
    advance(86_401)
    call_command("workflow:prune", stdout=io.StringIO())
    again = tick()
    assert again.created
    assert again.run_id != first.run_id


# --- missed ticks ---------------------------------------------------------------------------------


def test_what_is_missing_is_dispatched_and_nothing_else(catch_up: Callable[..., list[str]]) -> None:
    workflows.dispatch("nightly-report", {"day": BEFORE[1]}, idempotency_key=f"nightly-{BEFORE[1]}")
    assert catch_up() == [BEFORE[0], *BEFORE[2:]]
    assert days() == BEFORE
    assert catch_up() == []
    assert catch_up(TODAY + timedelta(days=2)) == ["2026-03-09", "2026-03-10"]


def test_days_that_the_tick_has_seen_to_are_not_missing(
    page: dict[str, Any], catch_up: Callable[..., list[str]]
) -> None:
    day = page["tick"]().status().run.input["day"]
    tomorrow = date.fromisoformat(day) + timedelta(days=1)
    assert page["dispatch_next"]("nightly-report", [day]) is None
    drain()
    assert page["dispatch_next"]("nightly-report", [day]) is None
    assert len(catch_up(tomorrow)) == page["DAYS"] - 1
    assert days().count(day) == 1


def test_two_that_catch_up_at_once_dispatch_each_day_once(page: dict[str, Any]) -> None:
    def call() -> int:
        out = io.StringIO()
        call_command(page["Command"](), stdout=out)
        return len(out.getvalue().splitlines())

    assert sum(together([call] * 4)) == page["DAYS"]
    assert Run.objects.count() == page["DAYS"]


def test_a_day_that_was_pruned_would_be_dispatched_anew(catch_up: Callable[..., list[str]]) -> None:
    assert catch_up() == BEFORE
    drain()
    workflows.prune(0)
    assert catch_up() == BEFORE


# --- no overlap -----------------------------------------------------------------------------------


def test_nothing_is_dispatched_while_a_run_is_live_and_then_the_oldest_day(page: dict[str, Any]) -> None:
    dispatch_next = page["dispatch_next"]
    for day in BEFORE:
        handle = dispatch_next("nightly-report", BEFORE)
        assert handle.status().run.input == {"day": day}
        assert dispatch_next("nightly-report", BEFORE) is None
        drain()
    assert dispatch_next("nightly-report", BEFORE) is None
    assert days() == BEFORE


@pytest.mark.parametrize("attempt", range(3))
def test_of_many_that_look_at_once_one_dispatches(page: dict[str, Any], attempt: int) -> None:
    handles = together([lambda: page["dispatch_next"]("nightly-report", BEFORE)] * 8)
    assert [type(each) for each in handles if each is not None] == [RunHandle]
    assert days() == BEFORE[:1]


def test_whoever_comes_second_waits_and_then_sees_the_run(page: dict[str, Any]) -> None:
    with elsewhere() as start:
        with transaction.atomic():
            assert page["dispatch_next"]("nightly-report", BEFORE).created
            other = start(lambda: page["dispatch_next"]("nightly-report", BEFORE))
            until_blocked()
        assert other.result(30) is None
    assert days() == BEFORE[:1]


def test_a_look_without_a_lock_is_not_enough() -> None:
    """Why the page says so: the first one's run cannot be seen yet."""

    def look_and_dispatch() -> RunHandle | None:
        with transaction.atomic():
            if workflows.list(workflow="nightly-report", status="pending").items:
                return None
            return workflows.dispatch("nightly-report", {"day": "x"})

    with elsewhere() as start, transaction.atomic():
        assert look_and_dispatch() is not None
        assert start(look_and_dispatch).result(30) is not None
    assert Run.objects.count() == 2


# --- chains and delays ----------------------------------------------------------------------------


def test_a_chain_goes_on_with_one_run_at_a_time(page: dict[str, Any]) -> None:
    workflows.dispatch("poll-supplier")
    for rounds in range(1, 4):
        drain()
        over = Run.objects.filter(finished_at__isnull=False)
        assert [run.status for run in over] == ["completed"] * rounds
        live = Run.objects.get(finished_at=None)
        assert (live.status, live.state) == ("pending", {"rounds": rounds})
        assert all(run.finished_at <= live.jobs.get().available_at for run in over)
        advance(601)


def test_a_run_of_later_waits_for_its_time_and_can_be_called_off(page: dict[str, Any]) -> None:
    kept, dropped = page["remind"]("o-1"), page["remind"]("o-2")
    dropped.cancel()
    advance(3 * 86_400 - 60)
    drain()
    assert kept.status().run.status == "pending"
    advance(60)
    drain()
    assert (kept.status().run.status, dropped.status().run.status) == ("completed", "cancelled")
