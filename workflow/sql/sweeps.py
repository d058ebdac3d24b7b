"""Taking leases away from workers that no longer keep them. Bounded, re-entrant, never waiting for a lock."""

from __future__ import annotations

from typing import Final

_LOST: Final = """
    lease_token = NULL, worker_id = NULL, locked_at = NULL, started_at = NULL,
    available_at = now() + least(j.attempt, 60) * interval '1 second'
"""

_STALE: Final = "(j.locked_at < now() - %s * interval '1 second')"
_CAPPED: Final = "(%s > 0 AND j.started_at < now() - %s * interval '1 second')"

_REASON: Final = """
    last_error = CASE WHEN {capped}
        THEN 'LEASE_ABSOLUTE_CAP: claimed for longer than the absolute cap, by worker ' || j.worker_id
        ELSE 'LEASE_HEARTBEAT_LOST: no heartbeat from worker ' || j.worker_id || ' since ' || j.locked_at END
"""

REAP_LEASES: Final = f"""
WITH stale AS MATERIALIZED (
    SELECT j.id, j.run_id FROM workflow_job AS j
    WHERE j.lease_token IS NOT NULL AND j.run_id IS NOT NULL AND ({_STALE} OR {_CAPPED})
    LIMIT %s
), locked AS MATERIALIZED (
    SELECT r.id FROM workflow_run AS r
    WHERE r.id IN (SELECT run_id FROM stale) ORDER BY r.id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE workflow_job AS j
SET {_REASON.format(capped=_CAPPED)}, {_LOST}
FROM stale JOIN locked ON locked.id = stale.run_id
WHERE j.id = stale.id AND j.lease_token IS NOT NULL AND ({_STALE} OR {_CAPPED})
RETURNING j.id::text, j.run_id::text, j.last_error
"""
"""Guard: the lease is still stale, or over the cap, once the run's lock is held; a run whose lock another holds is
left for the next pass. The attempt stays spent, and the unit finds its action still running when it is claimed."""

REAP_DELIVERIES: Final = f"""
WITH stale AS MATERIALIZED (
    SELECT j.id FROM workflow_job AS j
    WHERE j.lease_token IS NOT NULL AND j.run_id IS NULL AND ({_STALE} OR {_CAPPED})
    LIMIT %s FOR UPDATE SKIP LOCKED
)
UPDATE workflow_job AS j
SET {_REASON.format(capped=_CAPPED)}, {_LOST}
FROM stale WHERE j.id = stale.id
RETURNING j.id::text
"""
"""The same for jobs that belong to no run."""
