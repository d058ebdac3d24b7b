"""Tables with a past: finished, parked and sleeping runs, copied in SQL from runs that the engine made itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import connection

from bench.server import wait_until, workers
from workflow import workflows
from workflow.models import Job, Node, Run

CHUNK = 50_000
_PREFIX = (
    "lpad(to_hex({now} - {age}::bigint), 12, '0') || '7' || lpad(to_hex(g %% 4096), 3, '0')"
    " || '8' || lpad(to_hex(g), 10, '0')"
)
"""The first 27 digits of a run id of that many milliseconds ago: UUIDv7, the last 20 bits left for the ordinal."""
_TABLES = ("run", "node", "job", "runevent", "step")


def finished(count: int) -> None:
    """Adds that many completed runs of five empty actions, spread over the last thirty days, older ones first."""
    run_id = workflows.dispatch("five-sync", {}).run_id
    with workers():
        wait_until(lambda: Run.objects.filter(pk=run_id, status="completed").exists(), 60)
    days = 30 * 86_400_000
    _copy(str(run_id), count, lambda g: f"({days} - ({g})::bigint * {days} / {count})")


def parked(count: int) -> None:
    """Adds that many runs that wait for an event of their own."""
    run_id = workflows.dispatch("own-wait", {"order": "template"}).run_id
    with workers():
        wait_until(lambda: Run.objects.filter(pk=run_id, status="waiting").exists(), 60)
        wait_until(lambda: not Job.objects.filter(run_id=run_id).exists(), 60)
    _copy(str(run_id), count, lambda g: f"(3600000 + {count} - {g})")


def asleep(count: int) -> None:
    """Adds that many runs with a handler in a durable sleep of ten days: each has a job that comes due then."""
    run_id = workflows.dispatch("sleeper", {}).run_id
    with workers():
        wait_until(lambda: Node.objects.filter(run_id=run_id, kind="action", status="waiting").exists(), 60)
        wait_until(lambda: Job.objects.filter(run_id=run_id, lease_token=None).exists(), 60)
    _copy(str(run_id), count, lambda g: f"(7200000 + {count} - {g})")


def _copy(run_id: str, count: int, age: Callable[[str], str]) -> None:
    prefix = _PREFIX.format(now=time.time_ns() // 1_000_000, age=age("g"))
    new_run = f"({prefix} || '00000')::uuid"
    of_node = f"({prefix} || right({{}}::text, 5))::uuid"
    own = {
        "run": {"id": new_run, "boundary": "gen_random_uuid()"},
        "node": {"id": of_node.format("x.id"), "run_id": new_run, "wait_correlation": _own_correlation()},
        "job": {"id": "gen_random_uuid()", "run_id": new_run, "node_id": of_node.format("x.node_id")},
        "runevent": {"run_id": new_run},
        "step": {"id": "gen_random_uuid()", "run_id": new_run, "node_id": of_node.format("x.node_id")},
    }
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
        for table in _TABLES:
            # Rows start as pending, and jobs ring a bell: not these.
            cursor.execute(f"ALTER TABLE workflow_{table} DISABLE TRIGGER USER")
        try:
            for first in range(1, count + 1, CHUNK):
                for table in _TABLES:
                    _copy_rows(table, own[table], run_id, first, min(first + CHUNK - 1, count))
        finally:
            for table in _TABLES:
                cursor.execute(f"ALTER TABLE workflow_{table} ENABLE TRIGGER USER")
            cursor.execute("RESET synchronous_commit")
        cursor.execute("VACUUM ANALYZE")


def _own_correlation() -> str:
    return "CASE WHEN x.wait_correlation IS NOT NULL THEN x.wait_correlation || g END"


def _copy_rows(table: str, own: dict[str, str], run_id: str, first: int, last: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema()"
            " AND table_name = %s ORDER BY ordinal_position",
            [f"workflow_{table}"],
        )
        columns = [row[0] for row in cursor.fetchall()]
        values = ", ".join(own.get(column, f"x.{column}") for column in columns)
        key = "id" if table == "run" else "run_id"
        cursor.execute(
            f"INSERT INTO workflow_{table} ({', '.join(columns)}) SELECT {values}"
            f" FROM generate_series(%s, %s) AS g, (SELECT * FROM workflow_{table} WHERE {key} = %s) AS x",
            [first, last, run_id],
        )
