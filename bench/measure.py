"""The measurements. Each returns a dict of plain numbers; times in seconds unless a name says otherwise."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from django.db import connection

from bench import processes, server
from bench.server import Workers, wait_until, workers
from workflow import workflows
from workflow.models import Run

Figures = dict[str, float]
TABLES = ("run", "node", "job", "runevent", "step", "event")
WARM_UP = 50


@dataclass(frozen=True, slots=True)
class Place:
    """Where is measured: the scratch database, and the server's first process when it is on this machine."""

    dsn: str
    postmaster: int | None

    @staticmethod
    def of(dsn: str) -> Place:
        return Place(dsn, server.postmaster(dsn))


def commit_rate(place: Place, seconds: float = 2.0) -> Figures:
    """The floor: single-row updates, each its own commit, on one connection of psycopg's."""
    with psycopg.connect(place.dsn, autocommit=True) as db:
        db.execute("CREATE TABLE IF NOT EXISTS bench_floor (id int PRIMARY KEY, n int)")
        db.execute("INSERT INTO bench_floor VALUES (1, 0) ON CONFLICT DO NOTHING")
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            db.execute("UPDATE bench_floor SET n = n + 1 WHERE id = 1", prepare=True)
            count += 1
    return {"commits_s": count / seconds}


def backlog(
    place: Place,
    workflow: str,
    runs: int,
    *,
    processes: int = 1,
    data: Any = None,
    concurrency: int = 100,
) -> Figures:
    """Dispatches runs to paused workers and lets them drain the backlog."""
    with workers(processes, concurrency) as crew:
        _through(workflow, WARM_UP if runs > WARM_UP else 5, data)
        crew.pause()
        handles = workflows.dispatch_many(workflow, [data or {}] * runs)
        before = _costs(crew, place)
        began = time.perf_counter()
        crew.go_on()
        wait_until(lambda: _unfinished() == 0, 300, 0.01)
        elapsed = time.perf_counter() - began
        cost = _spent(before, _costs(crew, place), runs)
        resident = crew.resident()
    transitions = handles[0].status().run and _transitions(handles[0].run_id)
    return {
        "runs": runs,
        "runs_s": runs / elapsed,
        "transitions_per_run": transitions,
        "transitions_s": runs * transitions / elapsed,
        "cpu_us_per_transition": 1000 * (cost["worker_cpu_ms"] + cost["server_cpu_ms"]) / transitions,
        **cost,
        "boundaries_per_commit": crew.total("boundaries") / max(crew.total("commits"), 1),
        "boundary_p50_ms": crew.worst("boundary_p50_ms"),
        "boundary_p99_ms": crew.worst("boundary_p99_ms"),
        "worker_rss_mb": resident / 2**20,
    }


def latency(workflow: str, times: int = 100) -> Figures:
    """One run at a time on an idle worker: from the call of dispatch to the run's end as another session sees it."""
    ends: list[float] = []
    with workers():
        _through(workflow, 20)
        for _ in range(times):
            time.sleep(0.02)
            began = time.perf_counter()
            run_id = workflows.dispatch(workflow, {}).run_id
            wait_until(lambda run_id=run_id: _is_over(run_id), 30, 0.0003)
            ends.append(1000 * (time.perf_counter() - began))
    ends.sort()
    return {
        "p50_ms": statistics.median(ends),
        "p95_ms": _percentile(ends, 0.95),
        "min_ms": ends[0],
    }


def starts(count: int = 2000) -> Figures:
    """dispatch in a loop, and dispatch_many, with no worker around."""
    began = time.perf_counter()
    for _ in range(count):
        workflows.dispatch("five-sync", {})
    one_by_one = count / (time.perf_counter() - began)
    began = time.perf_counter()
    for _ in range(5):
        workflows.dispatch_many("five-sync", [{}] * 1000)
    many = 5000 / (time.perf_counter() - began)
    return {"dispatch_s": one_by_one, "dispatch_many_runs_s": many}


def waking(count: int = 1000) -> Figures:
    """One publish that wakes so many parked runs: until the last of them is over."""
    with workers():
        workflows.dispatch_many("one-wait", [{}] * count)
        wait_until(lambda: Run.objects.filter(status="waiting").count() == count, 120, 0.02)
        began = time.perf_counter()
        workflows.publish("bench.go", 1)
        published = time.perf_counter() - began
        wait_until(lambda: not Run.objects.filter(workflow="one-wait", finished_at=None).exists(), 120, 0.01)
        elapsed = time.perf_counter() - began
    return {"waits": count, "publish_ms": 1000 * published, "seconds": elapsed, "woken_s": count / elapsed}


def under_load(rate: float, seconds: float = 5.0) -> Figures:
    """Runs dispatched at a steady rate: how long they take, by the database's clock, and what rate it came to."""
    with workers():
        _through("five-sync", WARM_UP)
        began = time.perf_counter()
        count = 0
        while (now := time.perf_counter() - began) < seconds:
            if count <= now * rate:
                workflows.dispatch("five-sync", {})
                count += 1
            else:
                time.sleep(min(0.001, 1 / rate))
        dispatched = time.perf_counter() - began
        wait_until(lambda: _unfinished() == 0, 120, 0.01)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM finished_at - created_at)::float8 * 1000 FROM workflow_run"
            " ORDER BY id DESC LIMIT %s",
            [count],
        )
        took = sorted(row[0] for row in cursor.fetchall())
    return {
        "offered_s": rate,
        "came_to_s": count / dispatched,
        "p50_ms": statistics.median(took),
        "p95_ms": _percentile(took, 0.95),
        "p99_ms": _percentile(took, 0.99),
    }


def boundaries_in_flight(place: Place, units: int = 200, runs: int = 1000) -> Figures:
    """What one boundary takes with so many runs in flight, each of whose handlers takes 100 ms."""
    with workers(1, units) as crew:
        workflows.dispatch_many("lingering", [{"seconds": 0.1}] * runs)
        wait_until(lambda: _unfinished() == 0, 120, 0.05)
    return {
        "units": units,
        "boundary_p50_ms": crew.worst("boundary_p50_ms"),
        "boundary_p99_ms": crew.worst("boundary_p99_ms"),
        "boundary_max_ms": crew.worst("boundary_max_ms"),
    }


def memory(counts: Sequence[int], units: int = 1000) -> Figures:
    """Resident megabytes of one worker: idle, with so many units in flight, and after so many runs."""
    figures: Figures = {}
    with workers(1, units) as crew:
        figures["idle_mb"] = crew.resident() / 2**20
        workflows.dispatch_many("one-linger", [{"seconds": 3.0}] * units)
        wait_until(lambda: _running("one-linger") == units, 60, 0.02)
        figures[f"with_{units}_units_mb"] = crew.resident() / 2**20
        wait_until(lambda: _unfinished() == 0, 60, 0.02)
        done = 0
        for count in counts:
            while done < count:
                some = min(5000, count - done)
                workflows.dispatch_many("five-sync", [{}] * some)
                wait_until(lambda: _unfinished() == 0, 300, 0.02)
                done += some
            figures[f"after_{count}_runs_mb"] = crew.resident() / 2**20
    return figures


def disk(runs: int = 5000) -> Figures:
    """Bytes on disk that a finished run of five empty actions leaves, by table, indexes included."""
    before = sizes()
    with workers():
        workflows.dispatch_many("five-sync", [{}] * runs)
        wait_until(lambda: _unfinished() == 0, 300, 0.02)
    after = sizes()
    figures = {f"{table}_bytes": (after[table] - before[table]) / runs for table in TABLES}
    figures["bytes_per_run"] = sum(figures.values())
    return figures


def sizes() -> dict[str, int]:
    """Bytes on disk of each table with its indexes."""
    with connection.cursor() as cursor:
        found = {}
        for table in TABLES:
            cursor.execute("SELECT pg_total_relation_size(%s)", [f"workflow_{table}"])
            found[table] = int(cursor.fetchone()[0])
    return found


def clear() -> None:
    """Empties the tables between measurements."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE " + ", ".join(f"workflow_{table}" for table in TABLES))
        cursor.execute("VACUUM ANALYZE")


# --- inside -------------------------------------------------------------------------------------


def _through(workflow: str, count: int, data: Any = None) -> None:
    """Warms the workers up."""
    workflows.dispatch_many(workflow, [data or {}] * count)
    wait_until(lambda: _unfinished() == 0, 60, 0.01)


def _number(query: str, parameters: Sequence[Any] = ()) -> float:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return float(cursor.fetchone()[0])


def _unfinished() -> float:
    """Jobs that are due, or soon, or at work: a live run has one unless it is parked, and one that sleeps for days
    is not meant (see `bench.history`). Asked again and again while a worker is measured: it looks at nothing else.
    """
    return _number(
        "SELECT (SELECT count(*) FROM workflow_job WHERE lease_token IS NULL AND queue = 'default' AND priority = 0"
        " AND available_at < now() + interval '1 day')"
        " + (SELECT count(*) FROM workflow_job WHERE lease_token IS NOT NULL)"
    )


def _running(workflow: str) -> float:
    return _number(
        "SELECT count(*) FROM workflow_run AS r JOIN workflow_node AS n ON n.run_id = r.id"
        " WHERE r.workflow = %s AND n.kind = 'action' AND n.status = 'running'",
        [workflow],
    )


def _is_over(run_id: Any) -> bool:
    return bool(
        _number("SELECT count(*) FROM workflow_run WHERE id = %s AND finished_at IS NOT NULL", [run_id])
    )


def _transitions(run_id: Any) -> float:
    return _number("SELECT seq FROM workflow_run WHERE id = %s", [run_id])


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[round(share * (len(ordered) - 1))]


def _costs(crew: Workers, place: Place) -> Figures:
    return {
        "worker_cpu_ms": 1000 * crew.cpu(),
        "server_cpu_ms": 1000 * processes.cpu([place.postmaster]) if place.postmaster else 0.0,
        "commits": _number("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"),
        "wal_kb": _number("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')") / 1024,
    }


def _spent(before: Figures, after: Figures, runs: int) -> Figures:
    return {name: (after[name] - before[name]) / runs for name in before}
