"""`workflow:top`: what it counts, within which limits, and how people and scripts get to see it."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.postgres.functions import TransactionNow as Now
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings
from rich.console import Console

from tests.support.rows import end, lease, park_run, start
from workflow import Stage, WaitFor, Workflow, action, ids, states, workflows
from workflow import overview as overviews
from workflow.management import top
from workflow.models import Job, Run, Worker
from workflow.overview import MOST_ENDS, MOST_JOBS, MOST_PAIRS, Overview, Rates, overview
from workflow.registry import registry
from workflow.sql import overview as sql
from workflow.store.workers import silent_after


@action
def stir(state: dict[str, Any]) -> None: ...


SOUP = Workflow(
    "top-soup", version=2, stages=[Stage("stir", actions=[stir]), Stage("taste", wait_for=WaitFor("tasted"))]
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with registry.isolated():
        workflows.register(SOUP)
        yield


def soup(queue: str = "default", priority: int = 0, due_in: float = 0) -> uuid.UUID:
    """A run whose job comes due in so many seconds, or has been due since."""
    run_id = workflows.dispatch(SOUP, {}, queue=queue, priority=priority).run_id
    Job.objects.filter(run=run_id).update(available_at=Now() + timedelta(seconds=due_in))
    return run_id


def ended(status: str, ago: float, started_ago: float | None = None) -> uuid.UUID:
    """A run that ended so many seconds ago."""
    run_id = soup()
    start(run_id)
    if status == states.COMPENSATED:
        Run.objects.filter(pk=run_id).update(status=states.COMPENSATING)
    end(run_id, status)
    started = ago + 1 if started_ago is None else started_ago
    Run.objects.filter(pk=run_id).update(
        finished_at=Now() - timedelta(seconds=ago), started_at=Now() - timedelta(seconds=started)
    )
    return run_id


def going(started_ago: float) -> uuid.UUID:
    run_id = soup()
    start(run_id)
    Run.objects.filter(pk=run_id).update(started_at=Now() - timedelta(seconds=started_ago))
    return run_id


def worker(host: str = "kitchen", **values: Any) -> Worker:
    serves = [{"name": "top-soup", "version": 2, "fingerprint": "f", "compatible": [1]}]
    return Worker.objects.create(**{
        "hostname": host, "pid": 17, "concurrency": 10, "threads": 4, "serves": serves, **values
    })  # fmt: skip


def rates(seconds: float) -> dict[str, float]:
    """Runs per minute in a window, without those that are zero."""
    [found] = [each for each in overview().rates if each.seconds == seconds]
    return {name: round(value, 3) for name, value in found if name != "seconds" and value}


# Queues


def test_an_idle_system_has_nothing_to_tell() -> None:
    seen = overview()
    assert (seen.queues, seen.workers, seen.unserved, seen.oldest_due) == ([], [], [], None)
    assert [each.seconds for each in seen.rates] == [60, 300]
    assert rates(60) == rates(300) == {}


def test_jobs_are_counted_by_queue_whatever_their_priority() -> None:
    for priority, due_in in ((0, -5), (0, -1), (7, -90), (-3, 60), (7, 1), (7, 2)):
        soup("slow", priority, due_in)
    lease(soup("slow", 7))
    lease(soup("fast"))
    slow = {"due": 3, "leased": 1, "later": 3, "more": False, "workers": 0}
    fast = {"due": 0, "leased": 1, "later": 0, "more": False, "workers": 0}
    [first, second] = overview().queues
    assert first.model_dump() == {"name": "fast", "oldest_due": None, **fast}
    assert second.model_dump() == {"name": "slow", "oldest_due": second.oldest_due, **slow}
    assert 90 <= (second.oldest_due or 0) < 120
    assert overview().oldest_due == second.oldest_due


def test_counting_ends_at_its_limit_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        soup()
        soup(due_in=60)
    monkeypatch.setattr(overviews, "MOST_JOBS", 3)
    [queue] = overview().queues
    assert (queue.due, queue.later, queue.more) == (3, 3, True)
    assert top.lines(overview())[7].split()[:4] == ["default", "3+", "0", "3+"]


def test_so_many_priorities_are_looked_at_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for priority in range(5):
        soup(priority=priority)
    monkeypatch.setattr(overviews, "MOST_PAIRS", 2)
    assert overview().queues[0].due == 2


def test_a_queue_tells_how_many_workers_take_it() -> None:
    soup("slow"), soup("fast")
    workflows.publish("soup.tasted")
    worker(queues=["fast"]), worker(queues=[]), worker(queues=["other"])
    worker(queues=["slow"], seen_at=Now() - timedelta(seconds=301))
    assert {queue.name: queue.workers for queue in overview().queues} == {"fast": 2, "slow": 1, "#events": 3}


# Rates


def test_ends_are_counted_by_how_and_when() -> None:
    for status, ago in (("completed", 2), ("completed", 50), ("failed", 59), ("cancelled", 70)):
        ended(status, ago, started_ago=1000)
    ended("compensated", 290, started_ago=1000), ended("completed", 310, started_ago=1000)
    minute = {"completed": 2, "failed": 1}
    five = {"completed": 0.4, "failed": 0.2, "cancelled": 0.2, "compensated": 0.2}
    assert {name: rate for name, rate in rates(60).items() if name != "dispatched"} == minute
    assert {name: rate for name, rate in rates(300).items() if name != "dispatched"} == five


def test_starts_are_those_of_runs_that_go_on_and_of_those_that_ended() -> None:
    ended("completed", 2, started_ago=30), ended("failed", 2, started_ago=200), ended("failed", 2, 400)
    going(10), going(100), going(500), soup()
    parked = going(20)
    park_run(parked, "top-soup.taste", "tasted")
    assert rates(60)["started"] == 3
    assert rates(300)["started"] == 1


def dispatched(*seconds_ago: float) -> None:
    """Runs whose ids say that they were dispatched then."""
    now = datetime.now(UTC).timestamp()
    for count, ago in enumerate(seconds_ago):
        millisecond = int((now - ago) * 1000)
        run_id = uuid.UUID(int=(millisecond << 80) | (7 << 76) | (2 << 62) | (count << ids.ORDINAL_BITS))
        Run.objects.create(id=run_id, workflow="top-soup", version=2, fingerprint="f")


def test_dispatches_are_counted_by_the_time_in_their_ids() -> None:
    dispatched(5, 30, 100, 200, 1000)
    assert rates(60) == {"dispatched": 2}
    assert rates(300) == {"dispatched": 0.8}


def test_beyond_its_limit_a_rate_is_that_of_the_latest_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six runs in ten seconds, and a long silence before: with a limit of four, what was read covers six seconds."""
    monkeypatch.setattr(overviews, "MOST_ENDS", 4)
    for ago in (0, 2, 4, 6, 8, 10, 250):
        ended("completed", ago, started_ago=1000)
    Run.objects.all().update(started_at=Now() - timedelta(seconds=1000))
    for window in (60, 300):
        # The oldest of the four stands at the edge of the six seconds and is not counted.
        assert rates(window)["completed"] == pytest.approx(3 * 60 / 6, rel=0.05)


def test_the_statements_go_by_indexes() -> None:
    """No plan reads a whole table of runs or jobs. Told not to, PostgreSQL does so only where no index serves.

    Which of two indexes serves on tables that are nearly empty is the planner's guess, and not asked here.
    """
    longest = (300.0, MOST_ENDS, MOST_ENDS, "{60,300}")
    wanted = {
        sql.QUEUES: ((MOST_PAIRS, MOST_JOBS, MOST_JOBS), {"workflow_job_due", "workflow_job_leased"}),
        sql.RATES: ((*longest, 9, 9, 9), {"workflow_run_finished"}),
        sql.DISPATCHED: (longest, {"workflow_run_pkey"}),
        sql.WORKERS: ((300, 1000), {"workflow_job_leased"}),
    }
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off")
        for statement, (parameters, indexes) in wanted.items():
            cursor.execute(f"EXPLAIN {statement}", parameters)
            plan = "\n".join(row[0] for row in cursor.fetchall())
            assert {index for index in indexes if index in plan} == indexes, plan
            assert "Seq Scan on workflow_run" not in plan, plan
            assert "Seq Scan on workflow_job" not in plan, plan


# Workers


def test_live_workers_are_shown_with_what_they_have_in_hand() -> None:
    busy = worker("bar", queues=["slow", "fast"], abandoned_threads=2)
    worker("attic", seen_at=Now() - timedelta(seconds=200))
    worker("cellar", seen_at=Now() - timedelta(seconds=400)), worker("door", stopped_at=Now())
    for _ in range(3):
        lease(soup())
    Job.objects.all().update(worker_id=busy.id)
    Job.objects.filter(pk=Job.objects.all()[0].pk).update(worker_id=uuid.uuid4())
    [attic, bar] = overview().workers
    assert (attic.host, attic.units) == ("attic", 0)
    assert 200 <= attic.seen_seconds < 220
    assert attic.silent
    assert bar.model_dump(exclude={"started_at", "seen_at", "seen_seconds"}) == {
        "id": busy.id, "host": "bar", "pid": 17, "queues": ["slow", "fast"], "units": 2, "concurrency": 10,
        "abandoned_threads": 2, "serves": [{"name": "top-soup", "version": 2, "compatible": [1]}], "silent": False,
    }  # fmt: skip


def test_a_worker_that_misses_its_heartbeats_is_silent_and_not_alive() -> None:
    worker("bar", seen_at=Now() - timedelta(seconds=100))
    worker("attic", seen_at=Now() - timedelta(seconds=125))
    soup("slow")
    seen = overview()
    assert {one.host: one.silent for one in seen.workers} == {"attic": True, "bar": False}
    assert {queue.name: queue.workers for queue in seen.queues} == {"slow": 1}
    lines = top.lines(seen)
    assert "  1 worker alive, 1 silent, 0 of 10 slots busy; " in lines[0]
    (row,) = [line for line in lines if line.startswith("attic")]
    assert "silent for 2m" in row
    Worker.objects.filter(hostname="bar").delete()
    assert "  no worker is alive, 1 silent; " in top.lines(overview())[0]


@pytest.mark.parametrize(("interval", "seconds"), [(60, 120), (20, 40), (1, 10), (100, 200)])
def test_how_long_a_worker_may_be_late_follows_its_heartbeats(interval: float, seconds: float) -> None:
    with override_settings(WORKFLOW={"HEARTBEAT_INTERVAL": interval}):
        assert silent_after() == seconds


def test_who_is_silent_has_not_lost_its_leases_yet() -> None:
    with override_settings(WORKFLOW={"HEARTBEAT_INTERVAL": 0.2, "STALE_LEASE_THRESHOLD": 2}):
        assert silent_after() == 2


def test_a_worker_of_a_release_that_said_less_is_shown_too() -> None:
    worker(serves=[{"name": "top-soup", "version": 1, "fingerprint": "f"}])
    assert overview().workers[0].serves[0].compatible == []


# What people and scripts see


def shown(*arguments: str, **options: Any) -> str:
    out = io.StringIO()
    call_command("workflow:top", *arguments, stdout=out, **options)
    return out.getvalue()


def test_in_a_pipe_it_is_shown_once_in_plain_lines() -> None:
    soup("slow", due_in=-5), soup("slow", due_in=60)
    worker(queues=["fast"], started_at=Now() - timedelta(hours=2))
    dispatched(1)
    lines = shown().splitlines()
    assert lines[0].endswith("  1 worker alive, 0 of 10 slots busy; oldest due job 5.0s")
    assert [line.split() for line in lines[2:5]] == [
        ["RUNS", "PER", "MINUTE", "DISPATCHED", "STARTED", "COMPLETED", "FAILED", "COMPENSATED", "CANCELLED"],
        ["last", "minute", "3.0", "0", "0", "0", "0", "0"],
        ["last", "5", "minutes", "0.6", "0", "0", "0", "0", "0"],
    ]
    assert [line.split() for line in lines[6:8]] == [
        ["QUEUE", "DUE", "LEASED", "LATER", "OLDEST", "DUE", "WORKERS"],
        ["slow", "1", "0", "1", "5.0s", "0"],
    ]
    assert lines[9].split() == ["HOST", "PID", "UNITS", "SEEN", "UP", "QUEUES", "SERVES"]
    assert lines[10] == "kitchen  17   0/10   0.0s ago  2h 00m  fast    top-soup v2 (v1)"
    assert lines[12].startswith(
        'no live worker serves top-soup v2 in the queue "default", which has 1 live run'
    )
    assert lines[13].startswith(
        'no live worker serves top-soup v2 in the queue "slow", which has 2 live runs'
    )
    assert len(lines) == 14
    assert "\x1b" not in "".join(lines)


def test_an_idle_system_in_plain_lines() -> None:
    assert shown().splitlines()[0].endswith("  no worker is alive; nothing is due")
    assert len(shown().splitlines()) == 5


def test_as_json_it_is_one_object_with_all_of_it() -> None:
    soup(), worker(queues=["fast"])
    printed = json.loads(shown("--json"))
    assert Overview.model_validate(printed).model_dump(mode="json") == printed
    assert set(printed) == {"at", "queues", "rates", "workers", "unserved", "paused"}
    assert printed["unserved"][0]["message"].startswith("no live worker serves top-soup v2 in the queue")
    assert printed["unserved"][0]["queue"] == "default"


def test_texts_of_others_steer_no_terminal() -> None:
    soup("\x1b[31mred\n")
    worker("\x1b]0;title\x07", queues=["\x1b[2J"], serves=[{"name": "x\ny", "version": 1}])
    for text in (shown(), shown("--force-color")):
        assert "\x1b]0" not in text
        assert "\x1b[2J" not in text
        assert "\x1b[31mred" not in text
        assert "\\x1b[31mred" in text
    assert "\\x1b]0;title\\x07" in shown()


def drawn(seen: Overview) -> str:
    console = Console(
        file=io.StringIO(), force_terminal=True, width=100, color_system="standard", legacy_windows=False
    )
    console.print(top.view(seen))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_on_a_terminal_what_nobody_looks_after_stands_out() -> None:
    for queue in "abcde":
        soup(queue)
    worker(queues=["a"])
    text = drawn(overview())
    assert text.count("no live worker serves") == 3
    assert "and 1 more like this" in text
    red = [line for line in text.splitlines() if "\x1b[31m" in line]
    assert [line.split("m", 1)[1][0] for line in red] == ["b", "c", "d", "e"]


def test_rates_keep_a_digit_only_while_it_says_something() -> None:
    row = top._rates_row(
        Rates(
            seconds=60, dispatched=0, started=0.6, completed=9.96, failed=12.4, compensated=120.6, cancelled=1
        )
    )
    assert row == ("last minute", "0", "0.6", "10.0", "12", "121", "1.0")


@pytest.mark.parametrize("interval", ["0", "-1", "soon", "inf", "nan", "1e9"])
def test_an_interval_that_is_none_is_refused(interval: str) -> None:
    with pytest.raises(CommandError, match=r"^--interval must be a number from 0\.1 to 86,400, not "):
        shown("--interval", interval)


def test_every_run_status_that_goes_on_is_asked_for_starts() -> None:
    asked = {status for status in states.RUN_STATUSES if f"'{status}'" in sql._GOING}
    assert asked == set(states.RUN_LIVE) - {states.PENDING}
