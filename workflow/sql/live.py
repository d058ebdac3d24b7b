"""Reading runs and their history for people who watch. Nothing here locks or writes; everything is bounded.

Times come as they are, so the driver decides about their zone; errors come without their tracebacks and
with the beginning of their message, because a run may have a thousand of them.
"""

from __future__ import annotations

from typing import Final

from workflow.sql.ledger import SUSPENDED


def _short_error(table: str) -> str:
    return (
        f"CASE WHEN {table}.error IS NOT NULL THEN jsonb_build_object("
        f"'code', {table}.error->'code', 'type', {table}.error->'type', 'node', {table}.error->'node', "
        f"'message', left({table}.error->>'message', 500)) END"
    )


SNAPSHOT: Final = f"""
SELECT r.id, '' AS path, 'run' AS kind, r.status, NULL::int AS attempt, NULL::int AS compensate_attempt,
       NULL::float8 AS progress, NULL::bool AS has_output, {_short_error("r")} AS error,
       r.started_at, r.finished_at, NULL::timestamptz AS due_at,
       NULL::text AS wait_event, NULL::text AS wait_correlation, NULL::timestamptz AS wait_until,
       NULL::bool AS parked, r.seq, r.workflow, r.version, r.correlation_id, r.created_at, now() AS now
FROM workflow_run AS r WHERE r.id = %(run)s
UNION ALL
SELECT n.id, n.path, n.kind, n.status, n.attempt, n.compensate_attempt, n.progress, n.output IS NOT NULL,
       {_short_error("n")}, n.started_at, n.finished_at, n.due_at, n.wait_event, n.wait_correlation, n.wait_until,
       CASE n.kind
           WHEN 'stage' THEN n.status = 'waiting' AND n.wait_outcome IS NULL
           WHEN 'action' THEN (n.status = 'waiting' OR n.status = 'completed' AND n.due_at IS NOT NULL)
               AND EXISTS (SELECT 1 FROM workflow_step AS s WHERE s.run_id = n.run_id AND s.node_id = n.id AND {SUSPENDED})
       END,
       NULL, NULL, NULL, NULL, NULL, NULL
FROM workflow_node AS n WHERE n.run_id = %(run)s
ORDER BY 1
"""
"""A run and its nodes as one snapshot saw them, the run first, its payloads left out. Its `seq` says up to which
history entry they are. `parked` nodes are those that `resume` satisfies: it is the same rule."""

RECENT: Final = f"""
SELECT r.id, r.workflow, r.version, r.status, {_short_error("r")} AS error, r.correlation_id,
       r.created_at, r.started_at, r.finished_at, r.seq
FROM workflow_run AS r ORDER BY r.id DESC LIMIT %(limit)s
"""
"""The newest runs."""

TAIL: Final = """
SELECT h.run_id::text, h.seq, h.name, h.node, h.at, h.data
FROM unnest(%s::uuid[], %s::int[]) AS x(run, after)
CROSS JOIN LATERAL (
    SELECT h.run_id, h.seq, h.name, h.node, h.at, h.data FROM workflow_runevent AS h
    WHERE h.run_id = x.run AND h.seq > x.after ORDER BY h.seq LIMIT %s
) AS h
ORDER BY h.run_id, h.seq
"""
"""What was appended to these runs' histories later than that, a few entries of each. One index descent a run.

Gap-safe: a run's numbers are given out under its lock and committed in order, so whoever sees one sees all
before it."""

HAS_ENTRY: Final = "SELECT 1 FROM workflow_runevent WHERE run_id = %(run)s AND seq = %(seq)s"
