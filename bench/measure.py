"""The measurements. Each returns a dict of plain numbers; times in seconds unless a name says otherwise."""

from __future__ import annotations

import statistics
import time
from typing import Any

import psycopg
from django.db import connection

from bench.server import Workers, postmaster_cpu, wait_until, workers
from workflow import workflows
from workflow.models import Run


def commit_rate(parameters: dict[str, Any], seconds: float = 2.0) -> dict[str, float]:
    """The floor: single-row updates, each its own commit, on one connection of psycopg's."""
    with psycopg.connect(**parameters, autocommit=True) as db:
        db.execute("CREATE TABLE IF NOT EXISTS bench_floor (id int PRIMARY KEY, n int)")
        db.execute("INSERT INTO bench_floor VALUES (1, 0) ON CONFLICT DO NOTHING")
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            db.execute("UPDATE bench_floor SET n = n + 1 WHERE id = 1", prepare=True)
            count += 1
    return {"commits_per_s": count / seconds}


def backlog(
    parameters: dict[str, Any],
    workflow: str,
    runs: int,
    *,
    processes: int = 1,
    data: Any = None,
    concurrency: int = 100,
) -> dict[str, float]:
    """Dispatches runs to paused workers and lets them drain the backlog."""
    with workers(processes, concurrency) as crew:
        _through(workflow, 50, data)
        crew.pause()
        handles = workflows.dispatch_many(workflow, [data or {}] * runs)
        before = _snapshot(crew, parameters)
        started = time.perf_counter()
        crew.go_on()
        wait_until(lambda: _unfinished() == 0, 300, 0.01)
        elapsed = time.perf_counter() - started
        after = _snapshot(crew, parameters)
        memory = crew.rss()
        first = handles[0].status()
    cost = {key: (after[key] - before[key]) for key in before}
    return {
        "runs": runs,
        "seconds": elapsed,
        "runs_per_s": runs / elapsed,
        "transitions_per_run": _transitions(first.run.id),
        "boundaries_per_commit": crew.boundaries / max(crew.commits, 1),
        "commits_per_run": crew.commits / (runs + 50),
        "worker_cpu_ms_per_run": 1000 * cost["worker"] / runs,
        "server_cpu_ms_per_run": 1000 * cost["server"] / runs,
        "wal_kb_per_run": cost["wal"] / 1024 / runs,
        "worker_rss_mb": memory / 2**20,
    }


def latency(workflow: str, times: int = 100) -> dict[str, float]:
    """One run at a time on an idle worker: from the call of dispatch to the run's end as another session sees it."""
    ends: list[float] = []
    with workers():
        _through(workflow, 20)
        for _ in range(times):
            time.sleep(0.02)
            started = time.perf_counter()
            run_id = workflows.dispatch(workflow, {}).run_id
            wait_until(lambda run_id=run_id: _status(run_id) == "completed", 30, 0.0003)
            ends.append(1000 * (time.perf_counter() - started))
    ends.sort()
    return {
        "p50_ms": statistics.median(ends),
        "p95_ms": ends[int(0.95 * (len(ends) - 1))],
        "max_ms": ends[-1],
    }


def starts(count: int = 2000) -> dict[str, float]:
    """dispatch in a loop, and dispatch_many, with no worker around."""
    began = time.perf_counter()
    for _ in range(count):
        workflows.dispatch("five-sync", {})
    one_by_one = count / (time.perf_counter() - began)
    began = time.perf_counter()
    for _ in range(5):
        workflows.dispatch_many("five-sync", [{}] * 1000)
    many = 5000 / (time.perf_counter() - began)
    return {"dispatch_per_s": one_by_one, "dispatch_many_runs_per_s": many}


def waking(count: int = 1000) -> dict[str, float]:
    """One publish that wakes so many parked runs."""
    with workers():
        workflows.dispatch_many("one-wait", [{}] * count)
        wait_until(lambda: Run.objects.filter(status="waiting").count() == count, 120, 0.02)
        began = time.perf_counter()
        workflows.publish("bench.go", 1)
        wait_until(lambda: _unfinished() == 0, 120, 0.01)
        return {"waits": count, "seconds": time.perf_counter() - began}


def _through(workflow: str, count: int, data: Any = None) -> None:
    """Warms the workers up."""
    workflows.dispatch_many(workflow, [data or {}] * count)
    wait_until(lambda: _unfinished() == 0, 60, 0.01)


def _unfinished() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM workflow_run WHERE finished_at IS NULL")
        return int(cursor.fetchone()[0])


def _status(run_id: Any) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT status FROM workflow_run WHERE id = %s", [run_id])
        return str(cursor.fetchone()[0])


def _transitions(run_id: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT seq FROM workflow_run WHERE id = %s", [run_id])
        return int(cursor.fetchone()[0])


def _snapshot(crew: Workers, parameters: dict[str, Any]) -> dict[str, float]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
        wal = float(cursor.fetchone()[0])
    return {"worker": crew.cpu(), "server": postmaster_cpu(parameters) or 0.0, "wal": wal}


def clear() -> None:
    """Empties the tables between measurements."""
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE workflow_run, workflow_node, workflow_job, workflow_runevent, workflow_step, workflow_event"
        )
        cursor.execute("VACUUM ANALYZE")
