"""Ringing jobs one by one, where a message that carries the job's id tells a worker: the Celery transport.

`rung_at` says when a message was last sent for a job. It decides nothing: whoever gets the message claims the job under
the claim's own guards, and a message that was lost is sent again.
"""

from __future__ import annotations

from typing import Final

from workflow.sql.claim import OPEN, PAIRS

_UNRUNG: Final = """(
    {job}.rung_at IS NULL OR {job}.rung_at < {job}.available_at
    OR {job}.rung_at < now() - least(greatest({job}.rung_at - {job}.available_at, %s * interval '1 second'),
                                     %s * interval '1 second')
)"""
# Never since it has come due, or so long ago that the message must be lost, or waits behind many others. Then it had
# better not get many more: the longer a job has been due when it was rung, the later it is rung again.

RING: Final = f"""
WITH RECURSIVE {PAIRS}, due AS MATERIALIZED (
    SELECT j.id, j.priority, j.available_at, j.rung_at
    FROM pairs AS p CROSS JOIN LATERAL (
        SELECT j.id, j.priority, j.available_at, j.rung_at FROM workflow_job AS j
        WHERE j.lease_token IS NULL AND j.queue = p.queue AND j.priority = p.priority AND j.available_at <= now()
        ORDER BY j.available_at
        LIMIT %s
    ) AS j
    WHERE {OPEN}
    ORDER BY j.priority DESC, j.available_at
    LIMIT %s
), unrung AS MATERIALIZED (
    SELECT j.id
    FROM due AS d JOIN workflow_job AS j ON j.id = d.id
    WHERE {_UNRUNG.format(job="d")} AND {_UNRUNG.format(job="j")}
      AND (j.lease_token IS NULL)::int = 1 AND j.available_at <= now()
    ORDER BY d.priority DESC, d.available_at
    LIMIT %s
    FOR UPDATE OF j SKIP LOCKED
)
UPDATE workflow_job AS j SET rung_at = now()
FROM unrung WHERE j.id = unrung.id
RETURNING j.id::text, j.queue, j.priority, j.available_at
"""
"""Takes those of the first due jobs that are to be rung. Touches job rows only, never waits; the guard is looked at again
once a row is locked, so that of several relays one rings it. No more than a window of jobs is looked at, so that a
backlog neither floods the broker nor is rung over and over. Jobs of a paused queue are not rung."""

UNRING: Final = """
UPDATE workflow_job AS j SET rung_at = NULL
FROM (SELECT j.id FROM workflow_job AS j WHERE j.id = ANY(%s::uuid[]) AND (j.lease_token IS NULL)::int = 1
      FOR UPDATE SKIP LOCKED) AS found
WHERE j.id = found.id
"""
"""These were not rung after all, or whoever was told could not take them. One that is locked is being claimed."""

ECHO: Final = """
SELECT pg_notify('workflow_job', '') WHERE EXISTS (
    SELECT 1 FROM workflow_job AS j
    WHERE j.run_id = ANY(%s::uuid[]) AND (j.lease_token IS NULL)::int = 1
      AND (j.rung_at IS NULL OR j.rung_at < j.available_at)
)
"""
"""Wakes relays if units of these runs have left a job, which no new row tells of: a retry, or a parent to go on."""
