"""A database with a past: as many finished runs as one likes, written in SQL, and a run of thousands of nodes."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from django.db import connection

from workflow import Stage, Workflow, action, workflows
from workflow.models import RunEvent

DAYS = 30
WORKFLOWS = ("past-order", "past-refund", "past-report", "past-import", "past-mail")

RUNS = """
INSERT INTO workflow_run (id, workflow, version, fingerprint, status, queue, priority, input, state, error,
    correlation_id, idempotency_key, seq, created_at, started_at, finished_at, updated_at)
SELECT (lpad(to_hex(r.ms), 12, '0') || '7' || lpad(to_hex(g % 4096), 3, '0') || '8' || lpad(to_hex(g), 10, '0')
        || '00000')::uuid,
    (%(names)s::text[])[1 + g % {names}], 1, 'f', r.status, 'default', 0, jsonb_build_object('order', g),
    jsonb_build_object('order', g, 'note', repeat('x', 200)),
    CASE WHEN r.status IN ('failed', 'compensated') THEN
        jsonb_build_object('code', 'ACTION_FAILED', 'node', 'past.pay.charge', 'message', 'no funds') END,
    'customer-' || g / 3, 'key-' || g, 7, r.at, r.at, r.at + interval '3 seconds', r.at + interval '3 seconds'
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS g
CROSS JOIN LATERAL (
    SELECT m.ms, to_timestamp(m.ms / 1000.0) AS at,
        CASE WHEN g % 100 < 3 THEN 'failed' WHEN g % 100 = 3 THEN 'compensated' WHEN g % 100 = 4 THEN 'cancelled'
             ELSE 'completed' END AS status
    FROM (SELECT %(now)s::bigint - 5000 - (%(count)s - g) * {days}::bigint * 86400000 / %(count)s AS ms) AS m
) AS r
""".replace("% 4096", "%% 4096").replace("g % ", "g %% ")
"""Older ones first. Three of a hundred failed, one was undone, one cancelled; three runs share a correlation id."""

NODES = """
INSERT INTO workflow_node (id, run_id, path, unit, kind, status, attempt, compensate_attempt, output, finished_at)
SELECT (left(r.id::text, 31) || lpad(to_hex(n), 5, '0'))::uuid, r.id,
    CASE n WHEN 1 THEN 'past' WHEN 2 THEN 'past.pay' ELSE 'past.pay.charge' END, 1,
    CASE n WHEN 1 THEN 'pipeline' WHEN 2 THEN 'stage' ELSE 'action' END, 'completed', 1, 0,
    '{"paid": true}', r.finished_at
FROM workflow_run AS r CROSS JOIN generate_series(1, %(nodes)s) AS n
WHERE r.fingerprint = 'f'
"""


def finished(count: int, nodes: int = 0) -> None:
    """That many runs that are over, from the last thirty days, with up to three nodes each; then ANALYZE."""
    statement = RUNS.format(names=len(WORKFLOWS), days=DAYS)
    # WORKFLOWS has no name that needs quoting in an array.
    given = {"names": f"{{{','.join(WORKFLOWS)}}}", "now": time.time_ns() // 1_000_000, "count": count}
    with connection.cursor() as cursor:
        # They never were pending, and nobody is to be told of them.
        for table in ("run", "node"):
            cursor.execute(f"ALTER TABLE workflow_{table} DISABLE TRIGGER USER")
        for first in range(1, count + 1, 100_000):
            cursor.execute(statement, {**given, "first": first, "last": min(first + 99_999, count)})
        if nodes:
            cursor.execute(NODES, {"nodes": nodes})
        for table in ("run", "node"):
            cursor.execute(f"ALTER TABLE workflow_{table} ENABLE TRIGGER USER")
        cursor.execute("ANALYZE")


@action
def nothing(state: dict[str, Any]) -> None:
    """Does nothing."""


def due(count: int) -> None:
    """That many runs of one action that a worker could begin now."""
    workflows.dispatch_many(Workflow("past-due", stages=[Stage("s", actions=[nothing])]), [{}] * count)


def large(stages: int, entries: int) -> UUID:
    """A run of two nodes for each stage, and one more, that has so many entries in its history."""
    definition = Workflow(
        f"past-large-{stages}", stages=[Stage(f"s{n}", actions=[nothing]) for n in range(stages)]
    )
    run_id = workflows.dispatch(definition).run_id
    RunEvent.objects.bulk_create(
        [
            RunEvent(
                run_id=run_id,
                seq=seq,
                name="log",
                node=f"past-large-{stages}.s0",
                data={"message": f"entry {seq}"},
            )
            for seq in range(1, entries + 1)
        ],
        batch_size=1_000,
    )
    return run_id
