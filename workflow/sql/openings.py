"""Beginning fresh runs in the transaction that claims their first jobs."""

from __future__ import annotations

from typing import Final

OPEN_RUNS: Final = """
WITH fresh AS MATERIALIZED (
    SELECT r.id, j.lease_token, o.opening, o.entries, o.nodes
    FROM workflow_job AS j
    JOIN workflow_run AS r ON r.id = j.run_id
    JOIN unnest(%s::text[], %s::int[], %s::text[], %s::int[], %s::int[], %s::int[])
         AS o(workflow, version, fingerprint, opening, entries, nodes)
      ON (o.workflow, o.version, o.fingerprint) IS NOT DISTINCT FROM (r.workflow, r.version, r.fingerprint)
    WHERE j.worker_id = %s::uuid AND j.lease_token IS NOT NULL AND j.started_at = now()
      AND j.kind = 'unit' AND j.attempt = 1 AND j.last_error = '' AND r.status IS NOT DISTINCT FROM 'pending'
    FOR NO KEY UPDATE OF r SKIP LOCKED
), begun AS (
    UPDATE workflow_run AS r
    SET status = 'running', boundary = fresh.lease_token, seq = r.seq + fresh.entries, updated_at = now(),
        started_at = coalesce(r.started_at, now())
    FROM fresh WHERE r.id = fresh.id
    RETURNING r.id, r.seq, fresh.opening, fresh.entries, fresh.nodes
), started AS (
    UPDATE workflow_node AS n
    SET status = 'running', attempt = coalesce(x.attempt, n.attempt), started_at = now()
    FROM begun JOIN unnest(%s::int[], %s::text[], %s::int[]) AS x(opening, ending, attempt) ON x.opening = begun.opening
    WHERE n.id = (left(begun.id::text, -5) || x.ending)::uuid AND n.status = 'pending'
    RETURNING 1
), told AS (
    INSERT INTO workflow_runevent (run_id, seq, name, node, at, data)
    SELECT begun.id, begun.seq - begun.entries + x.entry, x.name, x.node, now(), x.data::jsonb
    FROM begun JOIN unnest(%s::int[], %s::int[], %s::text[], %s::text[], %s::text[])
                    AS x(opening, entry, name, node, data) ON x.opening = begun.opening
)
SELECT begun.id::text, begun.seq, now(),
       1 / (CASE WHEN (SELECT count(*) FROM started) = (SELECT sum(nodes) FROM begun) THEN 1 ELSE 0 END)
FROM begun
"""
"""Begins the runs of the jobs that CLAIM took in the same transaction, as their first boundary would: those that nobody
has begun, whose definition is one of these, and that nobody else has locked (SKIP LOCKED: a claim holds job rows, so it
must not wait for a run). The stamp on the run is the lease token: as long as it stands, no boundary of this claim was
settled. Guard: each node is still pending; one that is not divides by zero, and the claim is made without this."""
