"""Claiming due jobs, keeping their leases, and reading what a claimed unit needs."""

from __future__ import annotations

from typing import Final

PAIRS: Final = """
pairs AS (
    (SELECT j.queue, j.priority FROM workflow_job AS j
     WHERE j.lease_token IS NULL ORDER BY j.queue, j.priority LIMIT 1)
    UNION ALL
    SELECT following.queue, following.priority
    FROM pairs AS p CROSS JOIN LATERAL (
        SELECT j.queue, j.priority FROM workflow_job AS j
        WHERE j.lease_token IS NULL AND (j.queue, j.priority) > (p.queue, p.priority)
        ORDER BY j.queue, j.priority LIMIT 1
    ) AS following
)
"""
# The distinct (queue, priority) pairs, by skipping through the index: one descent a pair. Within a pair the due
# jobs come first, so jobs that are due later are never read, however many there are.

UNPAUSED: Final = """<> ALL (ARRAY(
    SELECT q.queue FROM workflow_pausedqueue AS q WHERE q.until IS NULL OR q.until > now()))"""
# After the name of a column: that this queue is not paused.

OPEN: Final = f"p.queue {UNPAUSED}"
# Whether the queue of a pair is not paused. The few paused ones are read once a statement, whatever there is to claim,
# and a pair that is paused is left out before any job of it is looked at or locked.


_TAKE: Final = """UPDATE workflow_job AS j
SET lease_token = gen_random_uuid(), worker_id = %s::uuid, locked_at = now(), started_at = now(),
    attempt = j.attempt + 1
FROM due WHERE j.id = due.id
RETURNING j.id::text, j.kind, j.run_id::text, j.node_id::text, j.lease_token::text, j.attempt, j.last_error
"""


def _claim(which: str) -> str:
    return f"""
WITH RECURSIVE {PAIRS}, due AS MATERIALIZED (
    SELECT j.id
    FROM pairs AS p CROSS JOIN LATERAL (
        SELECT j.id, j.priority, j.available_at FROM workflow_job AS j
        WHERE j.lease_token IS NULL AND j.queue = p.queue AND j.priority = p.priority
          AND j.available_at <= now() - %s * interval '1 second'{which}
        ORDER BY j.available_at
        LIMIT %s
        FOR UPDATE SKIP LOCKED
    ) AS j
    WHERE (%s::text[] IS NULL OR p.queue = ANY(%s::text[])) AND {OPEN}
    ORDER BY j.priority DESC, j.available_at
    LIMIT %s
)
{_TAKE}"""


CLAIM: Final = _claim("")
"""Touches job rows only, never waits, and takes what has been due for so many seconds at least. Higher priority first,
then the one that has been due longest. Jobs of a paused queue are not claimed, whatever they are there for: what a
pause finds claimed already goes on."""

CLAIM_OF_RUN: Final = _claim(" AND (j.run_id = %s::uuid OR j.run_id IS NULL)")
"""The same for the jobs of one run, and for those of none."""

CLAIM_SPARING: Final = _claim("""
          AND NOT EXISTS (SELECT FROM workflow_run AS r
                          JOIN unnest(%s::text[], %s::int[]) AS x(workflow, version) USING (workflow, version)
                          WHERE r.id = j.run_id)""")
"""The same without the jobs of these versions of workflows: those that this process is known not to serve."""

_ASKED: Final = f"""
    WHERE j.id = ANY(%s::uuid[]) AND (j.lease_token IS NULL)::int = 1 AND j.available_at <= now()
      AND j.queue {UNPAUSED}"""

CLAIM_ASKED: Final = f"""
WITH due AS MATERIALIZED (
    SELECT j.id FROM workflow_job AS j{_ASKED}
    FOR UPDATE SKIP LOCKED
)
{_TAKE}"""
"""The same for these jobs and no others: due, in nobody's hands, their queue not paused."""

LEFT_OF_ASKED: Final = f"""
SELECT j.id::text FROM workflow_job AS j{_ASKED}
"""
"""Which of these are left although they are due: right after CLAIM_ASKED, those that somebody had locked."""

_RUN: Final = """
SELECT r.id::text, r.workflow, r.version, r.fingerprint, r.status, r.input::text, r.state::text, r.context::text,
       r.correlation_id, r.error::text, r.seq
FROM workflow_run AS r
"""

CLAIMED_RUNS: Final = f"""{_RUN}WHERE r.id IN (SELECT j.run_id FROM workflow_job AS j
               WHERE j.worker_id = %s::uuid AND j.lease_token IS NOT NULL AND j.started_at = now())
"""
"""The runs of the jobs that CLAIM took in the same transaction."""

RUN: Final = f"{_RUN}WHERE r.id = %s::uuid"
"""One run, read again."""

NEXT_DUE: Final = f"""
WITH RECURSIVE {PAIRS}
SELECT extract(epoch FROM least(min(following.available_at), (
    SELECT min(q.until) FROM workflow_pausedqueue AS q
    WHERE q.until > now() AND (%s::text[] IS NULL OR q.queue = ANY(%s::text[]))
)) - now())::float8
FROM pairs AS p CROSS JOIN LATERAL (
    SELECT j.available_at FROM workflow_job AS j
    WHERE j.lease_token IS NULL AND j.queue = p.queue AND j.priority = p.priority
      AND j.available_at > now() - %s * interval '1 second'
    ORDER BY j.available_at LIMIT 1
) AS following
WHERE (%s::text[] IS NULL OR p.queue = ANY(%s::text[])) AND {OPEN}
"""
"""Seconds until the next job comes due that may be claimed then, or the pause of a queue ends; NULL when neither will.
Jobs that have been due for less than the seconds that CLAIM was asked for are told of too, by 0 or less.
A pause without an end is over when somebody says so, and rings."""

LOAD_NODES: Final = """
SELECT n.run_id::text, n.id::text, n.path, n.status, n.attempt, n.compensate_attempt,
       extract(epoch FROM n.due_at - now())::float8, n.output::text, n.error::text, n.completed_seq,
       n.wait_outcome::text, n.unit
FROM unnest(%s::uuid[], %s::uuid[]) AS x(low, high)
JOIN workflow_node AS n ON n.id >= x.low AND n.id <= x.high
"""
"""The rows of node id ranges: a run's nodes lie together in the primary key."""

LOAD_GROUPS: Final = """
SELECT n.run_id::text, n.path, n.beside
FROM unnest(%s::uuid[], %s::uuid[]) AS x(low, high)
JOIN workflow_node AS n ON n.id >= x.low AND n.id <= x.high
WHERE n.beside IS NOT NULL
"""
"""The parallel groups of these runs, which have nodes that newer code has dropped. By ranges of node ids too."""

HEARTBEAT: Final = """
WITH held AS MATERIALIZED (
    SELECT j.id FROM unnest(%s::uuid[], %s::uuid[]) AS x(job, token)
    JOIN workflow_job AS j ON j.id = x.job AND j.lease_token IS NOT DISTINCT FROM x.token
    FOR UPDATE OF j SKIP LOCKED
), beat AS (
    UPDATE workflow_job AS j SET locked_at = now() FROM held WHERE j.id = held.id
), seen AS (
    UPDATE workflow_worker SET seen_at = now(), units = %s, abandoned_threads = %s
    WHERE id = (SELECT w.id FROM workflow_worker AS w WHERE w.id = %s::uuid FOR UPDATE SKIP LOCKED)
)
SELECT x.job::text FROM unnest(%s::uuid[], %s::uuid[]) AS x(job, token)
WHERE NOT EXISTS (SELECT 1 FROM workflow_job AS j WHERE j.id = x.job AND j.lease_token IS NOT DISTINCT FROM x.token)
"""
"""Touches `locked_at` of the jobs that this process still holds, and the process's own row; the rows are the jobs whose
lease is lost. Waits for nobody's lock.
A job that is being settled at this moment is skipped: its boundary is a sign of life itself."""

RELEASE: Final = """
UPDATE workflow_job AS j
SET lease_token = NULL, worker_id = NULL, locked_at = NULL, started_at = NULL,
    available_at = now() + x.delay * interval '1 second', attempt = greatest(j.attempt - x.refund, 0),
    last_error = coalesce(x.reason, j.last_error)
FROM unnest(%s::uuid[], %s::uuid[], %s::float8[], %s::int[], %s::text[]) AS x(job, token, delay, refund, reason)
WHERE j.id = x.job AND j.lease_token IS NOT DISTINCT FROM x.token
"""
"""Gives claimed jobs back: the claimer itself is the only one who may."""

DROP: Final = """
DELETE FROM workflow_job AS j USING unnest(%s::uuid[], %s::uuid[]) AS x(job, token)
WHERE j.id = x.job AND j.lease_token IS NOT DISTINCT FROM x.token
"""
"""Deletes claimed jobs that are settled without a boundary: deliveries, checks and orphans."""

LOST: Final = """
SELECT x.token::text,
       CASE WHEN r.seq IS NULL OR r.status = 'cancelled' OR (
           SELECT true FROM workflow_runevent AS e WHERE e.run_id = r.id AND e.name = 'cancelled' LIMIT 1
       ) THEN 'cancelled' ELSE 'lease-lost' END
FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[]) AS x(token, job, run)
LEFT JOIN workflow_run AS r ON r.id = x.run
WHERE NOT EXISTS (SELECT 1 FROM workflow_job AS j WHERE j.id = x.job AND j.lease_token IS NOT DISTINCT FROM x.token)
"""
"""Which of these leases are gone, and why: cancelled, also when the run goes back because of that, or taken."""

DUE_MEMBERS: Final = """
SELECT x.token::text, n.id::text
FROM unnest(%s::uuid[], %s::uuid[]) AS x(token, node)
JOIN workflow_node AS n ON n.id = x.node
WHERE n.status = 'waiting' AND n.due_at <= now()
"""
"""Which of these suspended handlers of units at work are due: an event, an answer or their own time has come."""

OVER_MEMBERS: Final = """
SELECT x.token::text, n.id::text
FROM unnest(%s::uuid[], %s::uuid[]) AS x(token, node)
JOIN workflow_node AS n ON n.id = x.node
WHERE n.status NOT IN ('pending', 'running', 'waiting')
"""
"""Which of these nodes with jobs of their own, that units at work wait for, are over."""

RELEASE_STRANDED: Final = """
WITH mine AS MATERIALIZED (
    SELECT j.id FROM workflow_job AS j
    WHERE j.worker_id = %s::uuid AND j.lease_token IS NOT NULL AND j.lease_token <> ALL(%s::uuid[])
), free AS MATERIALIZED (
    SELECT j.id FROM workflow_job AS j JOIN mine ON mine.id = j.id
    WHERE j.worker_id = %s::uuid FOR UPDATE OF j SKIP LOCKED
), released AS (
    UPDATE workflow_job AS j
    SET lease_token = NULL, worker_id = NULL, locked_at = NULL, started_at = NULL, attempt = greatest(j.attempt - 1, 0),
        last_error = CASE WHEN EXISTS (SELECT FROM workflow_run AS r WHERE r.id = j.run_id AND r.boundary = j.lease_token)
                          THEN 'UNBEGUN: the claim was never answered' ELSE j.last_error END
    FROM free WHERE j.id = free.id
    RETURNING j.id
)
SELECT (SELECT count(*) FROM released), (SELECT count(*) FROM mine)
"""
"""Gives back what a worker has claimed without knowing it: all of its jobs but those whose tokens it knows. A run that
such a claim has begun says so by its stamp: its handlers were never called. Waits for nobody's lock: how many were given
back, and of how many."""
