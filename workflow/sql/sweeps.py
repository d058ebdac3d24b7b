"""Taking leases away from workers that no longer keep them. Bounded, re-entrant, never waiting for a lock."""

from __future__ import annotations

from typing import Final

from workflow.sql.ledger import INTERRUPTED

_LOST: Final = """
    lease_token = NULL, worker_id = NULL, locked_at = NULL, started_at = NULL,
    available_at = now() + least(j.attempt, 60) * interval '1 second'
"""

_STALE: Final = "(j.locked_at < now() - %s * interval '1 second')"
_CAPPED: Final = "(%s::float8 > 0 AND j.started_at < now() - %s * interval '1 second')"

_REASON: Final = """
    last_error = CASE WHEN {capped}
        THEN 'LEASE_ABSOLUTE_CAP: claimed for longer than the absolute cap, by worker ' || j.worker_id
        ELSE 'LEASE_HEARTBEAT_LOST: no heartbeat from worker ' || j.worker_id || ' since ' || j.locked_at END
"""

_OF_RUNS: Final = f"""
    FROM workflow_job AS j
    WHERE j.lease_token IS NOT NULL AND j.run_id IS NOT NULL AND ({_STALE} OR {_CAPPED})"""
_OF_NONE: Final = f"""
    FROM workflow_job AS j
    WHERE j.lease_token IS NOT NULL AND j.run_id IS NULL AND ({_STALE} OR {_CAPPED})"""
_PAGE: Final = """ AND j.id > %s::uuid
    ORDER BY j.id LIMIT %s"""
_THESE: Final = " AND j.id = ANY(%s::uuid[])"


def _reap(which: str) -> str:
    return f"""
WITH stale AS MATERIALIZED (
    SELECT j.id, j.run_id{_OF_RUNS}{which}
), locked AS MATERIALIZED (
    SELECT r.id FROM workflow_run AS r
    WHERE r.id IN (SELECT run_id FROM stale) ORDER BY r.id FOR NO KEY UPDATE SKIP LOCKED
), free AS MATERIALIZED (
    SELECT j.id FROM stale JOIN locked ON locked.id = stale.run_id JOIN workflow_job AS j ON j.id = stale.id
    ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
), reaped AS (
    UPDATE workflow_job AS j
    SET {_REASON.format(capped=_CAPPED)}, {_LOST}
    FROM free
    WHERE j.id = free.id AND j.lease_token IS NOT NULL AND ({_STALE} OR {_CAPPED})
    RETURNING j.id, j.last_error
)
SELECT stale.id::text, stale.run_id::text, reaped.last_error
FROM stale LEFT JOIN reaped ON reaped.id = stale.id ORDER BY stale.id
"""


REAP_LEASES: Final = _reap(_PAGE)
"""A page of stale leases. Guard: the lease is still stale, or over the cap, once the run's lock is held; a run whose
lock another holds, or a job that another has locked, is left for the next pass (its `last_error` here is NULL). The
attempt stays spent, and the unit finds its action still running when it is claimed."""

REAP_THESE: Final = _reap(_THESE)
"""The same for some of a page."""

STALE_LEASES: Final = f"SELECT j.id::text, j.run_id::text, NULL{_OF_RUNS}{_PAGE}"
"""The same page, looked at only."""


def _reap_deliveries(which: str) -> str:
    return f"""
WITH stale AS MATERIALIZED (
    SELECT j.id{_OF_NONE}{which} FOR UPDATE SKIP LOCKED
)
UPDATE workflow_job AS j
SET {_REASON.format(capped=_CAPPED)}, {_LOST}
FROM stale WHERE j.id = stale.id
RETURNING j.id::text, true
"""


REAP_DELIVERIES: Final = _reap_deliveries(" LIMIT %s")
"""The same for jobs that belong to no run."""

REAP_THESE_DELIVERIES: Final = _reap_deliveries(_THESE)

STALE_DELIVERIES: Final = f"SELECT j.id::text, false{_OF_NONE} LIMIT %s"
"""Those that REAP_DELIVERIES would free, looked at only: none is freed here."""

_IDLE: Final = """
r.finished_at IS NULL
AND NOT EXISTS (SELECT 1 FROM workflow_job AS j WHERE j.run_id = r.id AND j.kind <> 'check')
AND NOT EXISTS (SELECT 1 FROM workflow_node AS n WHERE n.run_id = r.id AND (n.wait_event IS NOT NULL)::int = 1)
"""
# Live, but no job will ever touch it and no event or deadline will wake it: a wait that is parked has `wait_event`.

FIND_IDLE_RUNS: Final = f"""
SELECT r.id::text, r.workflow, r.version, r.status, extract(epoch FROM now() - r.updated_at)::float8
FROM workflow_run AS r
WHERE {_IDLE} AND r.updated_at < now() - %s * interval '1 second' AND r.id > %s::uuid
ORDER BY r.id LIMIT %s
"""
"""Pages through the live runs by id, so that runs which it may not touch do not hide those behind them."""

LOCK_IDLE_RUN: Final = f"""
SELECT r.id FROM workflow_run AS r
WHERE r.id = %s::uuid AND {_IDLE} AND r.updated_at < now() - %s * interval '1 second'
FOR NO KEY UPDATE SKIP LOCKED
"""

_BEGUN: Final = """(
    {node}.kind <> 'pipeline' AND {node}.status IN ('running', 'waiting')
    AND ('x' || right({node}.id::text, 5))::bit(20)::int = {node}.unit
)"""
# A stage or an action with a job of its own, begun and not over: its parent has nothing to do but to await it.

ADVANCE_RUN: Final = f"""
INSERT INTO workflow_job (id, kind, run_id, node_id, queue, priority, available_at, last_error)
SELECT gen_random_uuid(), CASE WHEN r.status = 'compensating' THEN 'compensate' ELSE 'unit' END, r.id,
       CASE WHEN r.status = 'compensating' THEN r.id ELSE next.id END, r.queue, r.priority, now(),
       'found without a job'
FROM workflow_run AS r
LEFT JOIN LATERAL (
    SELECT min(n.id::text) FILTER (WHERE n.kind = 'pipeline' AND n.status NOT IN ('completed', 'skipped'))::uuid AS pipeline,
           array_agg(n.id) FILTER (WHERE {_BEGUN.format(node="n")} AND NOT EXISTS (
               SELECT 1 FROM workflow_node AS below
               WHERE below.run_id = r.id AND starts_with(below.path, n.path || '.') AND {_BEGUN.format(node="below")}
           )) AS begun
    FROM workflow_node AS n WHERE n.run_id = r.id
) AS tree ON true
LEFT JOIN LATERAL unnest(coalesce(tree.begun, ARRAY[tree.pipeline])) AS next(id) ON true
WHERE r.id = %s::uuid AND (r.status = 'compensating' OR next.id IS NOT NULL) AND {_IDLE}
ON CONFLICT (run_id, node_id) DO NOTHING
RETURNING id
"""
"""Gives an idle run the job that its tree says comes next; the unit then finds out what is left to do. Those come first
that a parent would await: each innermost one that has begun; else the first pipeline that is not done."""

FAIL_RUN: Final = f"""
WITH failed AS (
    UPDATE workflow_run AS r
    SET status = 'failed', finished_at = now(), updated_at = now(), seq = r.seq + 1, error = %s::jsonb
    WHERE r.id = (SELECT f.id FROM workflow_run AS f WHERE f.id = %s::uuid FOR NO KEY UPDATE SKIP LOCKED)
      AND {_IDLE} AND r.updated_at < now() - %s * interval '1 second'
    RETURNING r.id, r.seq
), nodes AS (
    UPDATE workflow_node AS n SET status = 'cancelled', finished_at = now(), due_at = NULL, wait_outcome = NULL
    FROM failed WHERE n.run_id = failed.id AND n.status IN ('pending', 'running', 'waiting')
), steps AS (
    UPDATE workflow_step AS s
    SET {INTERRUPTED}
    FROM failed WHERE s.run_id = failed.id AND s.status = 'running'
), jobs AS (
    DELETE FROM workflow_job AS j USING failed WHERE j.run_id = failed.id
)
INSERT INTO workflow_runevent (run_id, seq, name, at, data)
SELECT id, seq, 'failed', now(), jsonb_build_object('error', %s::jsonb) FROM failed
RETURNING run_id::text, seq, name, node, at, data::text
"""
