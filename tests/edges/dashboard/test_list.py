"""The dashboard's list of runs: what it finds, refuses, counts and costs."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.edges.dashboard.conftest import all_pages, text, url
from tests.support import rows
from tests.support.web import ORDER, completed, failed, waiting
from workflow import ids, workflows
from workflow.consumers import reading as live
from workflow.dashboard import filters, reading
from workflow.models import Job, Node, Run, Worker
from workflow.sql import dashboard as sql

pytestmark = [pytest.mark.django_db]


# --- the list -------------------------------------------------------------------------------------


def ids_on(response: Any) -> list[str]:
    assert response.status_code == 200, response.content
    return re.findall(r'<tr id="run-([0-9a-f-]{36})"', response.content.decode())


def test_runs_are_found_by_what_the_form_offers(viewer: Client) -> None:
    bad = failed("l-1", correlation_id="customer-1")
    parked = waiting("l-2", correlation_id="customer-2")
    done = completed(correlation_id="customer-2", idempotency_key="key-2")
    page = url("runs")
    assert ids_on(viewer.get(page)) == [str(done), str(parked), str(bad)]
    for query, expected in (
        ({"workflow": "web-order"}, [parked, bad]),
        ({"status": "failed"}, [bad]),
        ({"status": "live"}, [parked]),
        ({"correlation": "customer-2"}, [done, parked]),
        ({"correlation": "customer-2", "workflow": "web-free"}, [done]),
        ({"q": "customer-1"}, [bad]),
        ({"q": "key-2"}, [done]),
        ({"q": "key-2", "status": "failed"}, []),
        ({"q": str(parked)}, [parked]),
        ({"q": str(parked).upper()}, [parked]),
        ({"q": str(parked).replace("-", "")}, [parked]),
        ({"q": f"run {parked} failed"}, [parked]),
        ({"q": str(Node.objects.filter(run_id=parked).latest("id").id)}, [parked]),
        ({"q": str(parked)[:8]}, [done, parked, bad]),
        ({"q": "nothing like it"}, []),
        ({"q": "ffff"}, []),
        ({"age": "1h"}, [done, parked, bad]),
        ({"age": "older-1h"}, []),
        ({"status": "", "workflow": "", "q": "  "}, [done, parked, bad]),
    ):
        assert ids_on(viewer.get(page, query)) == [str(run) for run in expected], query


@pytest.mark.parametrize("q", ["a" * 33, f"{'a' * 16}--{'a' * 17}", "f" * 36, "-" * 36, "٣" * 32])
def test_what_looks_nearly_like_an_id_is_looked_for_too(viewer: Client, q: str) -> None:
    done = completed(correlation_id=q)
    assert ids_on(viewer.get(url("runs"), {"q": q})) == [str(done)]


def test_age_is_told_from_the_id(viewer: Client) -> None:
    done = completed()
    old = ids.new_run_id().int - (2 * 3_600_000 << 80)
    Run.objects.filter(pk=done).update(id=UUID(int=old))
    assert ids_on(viewer.get(url("runs"), {"age": "older-1h"})) == [str(UUID(int=old))]
    assert ids_on(viewer.get(url("runs"), {"age": "1h"})) == []


@pytest.mark.parametrize(
    "query",
    [
        "_connector=OR",
        "_negated=1",
        "input__a'b=1",
        "input__password__startswith=x",
        "workflow__name=x",
        "status__in=failed",
        "limit=5",
        "status=nope",
        "status=failed&status=completed",
        "age=1y",
        "older=nope",
        "newer=1",
        "older=00000000-0000-0000-0000-000000000000&newer=00000000-0000-0000-0000-000000000000",
        "q=%00",
        f"q={'x' * 300}",
    ],
)
def test_whatever_else_is_asked_is_refused(viewer: Client, query: str) -> None:
    with CaptureQueriesContext(connection) as queries:
        response = viewer.get(f"{url('runs')}?{query}")
    assert response.status_code == 400
    assert not any("workflow_run" in one["sql"] for one in queries.captured_queries)


def test_pages_lead_from_one_to_the_next_and_back(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PAGE", 2)
    run_ids = [str(completed()) for _ in range(5)][::-1]

    def follow(response: Any, rel: str) -> Any:
        found = re.search(rf'href="\?([^"]+)" rel="{rel}"', response.content.decode())
        assert found, rel
        return viewer.get(f"{url('runs')}?{html.unescape(found[1])}")

    first = viewer.get(url("runs"), {"workflow": "web-free"})
    second = follow(first, "next")
    third = follow(second, "next")
    assert [ids_on(page) for page in (first, second, third)] == [run_ids[:2], run_ids[2:4], run_ids[4:]]
    assert b'rel="next"' not in third.content
    back = follow(third, "prev")
    assert ids_on(back) == run_ids[2:4]
    assert ids_on(follow(back, "prev")) == run_ids[:2]
    assert b'rel="prev"' not in first.content


@pytest.mark.django_db(transaction=True)
def test_at_a_glance(viewer: Client) -> None:
    failed("o-1")
    waiting("o-2")
    completed()
    queue = "slow"
    workflows.dispatch(ORDER, {"order_id": "o-3"}, queue=queue)
    Job.objects.filter(queue=queue).update(available_at=timezone.now() - timedelta(minutes=5))
    host = Worker.objects.create(
        hostname="host-1", pid=7, concurrency=9, threads=2, units=3,
        serves=[{"name": "web-order", "version": 1, "fingerprint": "x"}], queues=["slow"],
    )  # fmt: skip
    in_hand = workflows.dispatch(ORDER, {"order_id": "o-4"}).run_id
    rows.lease(in_hand)
    Job.objects.filter(run_id=in_hand).update(worker_id=host.pk)
    Worker.objects.create(hostname="gone", pid=8, concurrency=1, threads=1, stopped_at=timezone.now())
    Worker.objects.create(
        hostname="silent", pid=9, concurrency=1, threads=1, seen_at=timezone.now() - timedelta(hours=1)
    )
    said = text(viewer.get(url("runs")))
    assert "2 · pending" in said
    assert "1 ◷ waiting" in said
    assert "1 ✓ completed" in said
    assert "1 ✗ failed" in said
    assert re.search(r"Oldest due job: 5m 0\ds late, in slow", said)
    assert "1 worker alive" in said
    assert "host-1:7 : 1 of 9 units, slow" in said
    assert "web-order v1" in said
    assert "2 ended, 1 failed or undone, last hour" in said
    assert "2 ended, 1 failed or undone, last day" in said
    assert "silent" not in said
    assert "gone" not in said


def test_large_counts_are_estimated(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CAP", 3)
    for _ in range(5):
        completed()
    counts = {count.status: count for count in reading.counts()}
    assert counts["completed"].exact is False
    assert counts["completed"].number >= 4
    assert (counts["failed"].number, counts["failed"].exact) == (0, True)
    reading.forget()
    assert "4+ ✓ completed" in text(viewer.get(url("runs")))


def test_a_list_that_takes_too_long_says_so(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PATIENCE_MS", 50)
    monkeypatch.setattr(reading.sql, "RUNS", "SELECT pg_sleep(5){conditions} -- {direction}", raising=True)
    monkeypatch.setitem(reading.sql.RUN_CONDITIONS, "workflow", "")
    assert "took too long" in text(viewer.get(url("runs"), {"workflow": "x"}))


def test_the_list_costs_the_same_however_many_runs_there_are(viewer: Client) -> None:
    def cost() -> int:
        reading.forget()
        with CaptureQueriesContext(connection) as queries:
            viewer.get(url("runs"))
        return len(queries)

    completed()
    one = cost()
    for _ in range(20):
        completed()
    assert cost() == one
    assert one <= 16


def test_filters_know_their_conditions() -> None:
    """Each condition is one of the statement's; nothing a person types becomes SQL."""
    from django.http import QueryDict

    query = QueryDict(f"workflow=a&status=failed&correlation=b&age=1h&q=c&older={ids.new_run_id()}")
    names, parameters = filters.parse(query).conditions(timezone.now())
    assert set(names) <= {*sql.RUN_CONDITIONS, *sql.SEARCHES}
    for name in set(names) & set(sql.RUN_CONDITIONS):
        for parameter in re.findall(r"%\((\w+)\)s", reading.sql.RUN_CONDITIONS[name]):
            assert parameter in parameters
    assert sorted(names) == ["correlation", "older", "since", "status", "words", "workflow"]
    for words, name in (("0199c0de", "id"), ("customer 1", "words")):
        names, parameters = filters.parse(QueryDict(f"q={words}")).conditions(timezone.now())
        assert names == [name]
        asked = "".join(sql.RUN_CONDITIONS[kind] for kind in sql.SEARCHES[name])
        assert set(re.findall(r"%\((\w+)\)s", asked)) == {"names", *parameters}


def test_a_worker_that_misses_its_heartbeats_is_shown_as_silent(viewer: Client) -> None:
    serves = [{"name": "web-order", "version": 1}]
    for name, seconds in (("fresh", 5), ("lost", 200), ("late", 100)):
        Worker.objects.create(
            hostname=name,
            pid=1,
            concurrency=1,
            threads=1,
            serves=serves,
            seen_at=timezone.now() - timedelta(seconds=seconds),
        )
    said = text(viewer.get(url("runs")))
    assert "2 workers alive, 1 silent" in said
    assert "lost:1 : silent for 3m 2" in said
    assert said.count("silent") == 2
    assert "served by 2 workers" in text(viewer.get(url("definition", "web-order")))


def test_a_web_server_whose_clock_is_wrong_shows_the_same_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("fresh", 5), ("lost", 200)):
        Worker.objects.create(
            hostname=name, pid=1, concurrency=1, threads=1, seen_at=Now() - timedelta(seconds=seconds)
        )
    ahead = timezone.now() + timedelta(hours=1)
    monkeypatch.setattr(timezone, "now", lambda: ahead)
    seen = {worker.hostname: reading.silence(worker) is not None for worker in reading.workers()}
    assert seen == {"fresh": False, "lost": True}


@override_settings(USE_TZ=False, TIME_ZONE="America/New_York")
def test_without_use_tz_the_pages_say_the_same(viewer: Client) -> None:
    run_id = waiting("l-9")
    Worker.objects.create(
        hostname="lost", pid=1, concurrency=1, threads=1, seen_at=Now() - timedelta(seconds=200)
    )
    Worker.objects.create(hostname="here", pid=2, concurrency=1, threads=1)
    pages = all_pages(run_id)
    said = {page: viewer.get(page) for page in pages}
    assert {page: answer.status_code for page, answer in said.items()} == dict.fromkeys(pages, 200)
    listed = said[url("runs")]
    assert "1 worker alive, 1 silent" in text(listed)
    assert "lost:1 : silent for 3m 2" in text(listed)
    row = re.search(
        r'data-label="Age" class="num"><time datetime="([^"]+)"[^>]*>([^<]+)<', listed.content.decode()
    )
    assert row is not None
    created = datetime.fromisoformat(row[1])
    assert created.utcoffset() in (timedelta(hours=-4), timedelta(hours=-5))
    assert abs(datetime.now(UTC) - created) < timedelta(minutes=2)
    assert re.fullmatch(r"[0-9.]+s", row[2])


@override_settings(USE_TZ=False, TIME_ZONE="America/New_York")
def test_without_use_tz_what_sockets_are_told_has_an_offset() -> None:
    run_id = waiting("l-10")
    one = live.snapshot(run_id)
    assert one is not None
    newest = live.recent()
    entries = live.replay(run_id, 0)
    assert entries
    moments = [one["now"], one["run"]["created_at"], one["nodes"][0]["started_at"], newest["now"]]
    moments += [newest["runs"][0]["created_at"], *(entry["at"] for entry in entries)]
    for moment in map(datetime.fromisoformat, moments):
        assert abs(datetime.now(UTC) - moment) < timedelta(minutes=2)
