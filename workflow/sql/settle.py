"""Settling a batch of boundaries: the statements of one transaction, in their order.

Lock order (DESIGN.md): LOCK_RUNS takes the run rows in id order; everything after it touches rows
of those runs only. UPDATE_RUNS is the guard: it stamps the boundary's id on the run if, and only
if, the run's status allows it and the job still carries the worker's lease token. Every later
statement joins on that stamp, so a refused boundary drops out of all of them. A batch holds at
most one boundary of a run.
"""

from __future__ import annotations

from typing import Final

from workflow.sql import claim, events
from workflow.sql.ledger import INTERRUPTED, LEFT_BEHIND

_LIVE: Final = "('pending', 'running', 'waiting')"

LOCK_RUNS: Final = """
SELECT 1 FROM workflow_run WHERE id = ANY(%s::uuid[]) ORDER BY id FOR NO KEY UPDATE
"""

FREE_RUNS: Final = """
SELECT id::text FROM workflow_run WHERE id = ANY(%s::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""
"""Which of these runs are locked by nobody else, without waiting; what it locks itself ends with the statement."""

KNOWN_RUNS: Final = "SELECT id::text FROM workflow_run WHERE id = ANY(%s::uuid[])"
"""Which of these runs there are."""

_UPDATE_RUNS: Final = """
UPDATE workflow_run AS r
SET boundary = b.boundary,
    seq = r.seq + b.entries,
    updated_at = now(),
    status = coalesce(b.target, r.status),
    state = CASE WHEN b.patch IS NULL THEN r.state ELSE r.state || b.patch::jsonb END,
    error = CASE WHEN b.error IS NULL THEN r.error ELSE b.error::jsonb END,
    started_at = CASE WHEN b.target IS NULL THEN r.started_at ELSE coalesce(r.started_at, now()) END,
    finished_at = CASE WHEN b.target IN ('completed', 'compensated', 'failed', 'cancelled') THEN now() END
FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::bool[], %s::text[], %s::int[], %s::text[], %s::text[]{types})
     AS b(boundary, run, job, token, compensating, target, entries, patch, error{columns})
JOIN workflow_job AS j ON j.id = b.job AND j.lease_token IS NOT DISTINCT FROM b.token AND j.boundary IS DISTINCT FROM b.boundary
WHERE r.id = b.run AND r.boundary IS DISTINCT FROM b.boundary
  AND CASE WHEN b.compensating THEN r.status = 'compensating' ELSE r.status IN ('pending', 'running', 'waiting') END{guard}
RETURNING r.id::text, r.seq, now()
"""

UPDATE_RUNS: Final = _UPDATE_RUNS.format(types="", columns="", guard="")
"""Touches one run row for each boundary; a boundary whose run is missing from the result was refused."""

_MAY_MOVE: Final = f"""
  AND CASE WHEN b.moves THEN
      r.queue {claim.UNPAUSED}
      AND NOT EXISTS (SELECT FROM workflow_job AS o WHERE o.run_id = r.id AND o.id <> b.job AND o.kind <> 'check')
      AND r.priority >= ALL (ARRAY(
          SELECT p.priority FROM pairs AS p CROSS JOIN LATERAL (
              SELECT FROM workflow_job AS d
              WHERE d.lease_token IS NULL AND d.queue = p.queue AND d.priority = p.priority AND d.available_at <= now()
              LIMIT 1
          ) AS due
          WHERE (%s::text[] IS NULL OR p.queue = ANY(%s::text[])) AND (%s::bool OR p.queue <> {events.QUEUE})
            AND {claim.OPEN}))
      ELSE true END"""

UPDATE_RUNS_MOVING: Final = f"""WITH RECURSIVE {claim.PAIRS}{
    _UPDATE_RUNS.format(types=", %s::bool[]", columns=", moves", guard=_MAY_MOVE)
}"""
"""The same for a batch in which some boundaries take their units' jobs on to other nodes. These are held to what a
claim would be held to, and are refused else: the queue must not be paused, nothing of a higher priority may be due in
a queue that this process serves, and the run must have no other job, so that its worker has it to itself. What is
asked of all of them alike is asked once a statement."""

UPDATE_NODES: Final = """
WITH x AS MATERIALIZED (
    SELECT x.*, r.seq - x.entries + x.entry AS completed
    FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::text[], %s::int[], %s::int[],
                %s::text[], %s::text[], %s::float8[], %s::float8[], %s::int[], %s::int[])
         AS x(boundary, run, node, source, target, attempt, compensate_attempt, output, error, due, progress, entry, entries)
    JOIN workflow_run AS r ON r.id = x.run AND r.boundary = x.boundary
), changed AS (
    UPDATE workflow_node AS n
    SET status = x.target,
        attempt = coalesce(x.attempt, n.attempt),
        compensate_attempt = coalesce(x.compensate_attempt, n.compensate_attempt),
        output = CASE WHEN x.output IS NULL THEN n.output ELSE x.output::jsonb END,
        error = CASE WHEN x.error IS NULL THEN n.error WHEN x.error = '' THEN NULL ELSE x.error::jsonb END,
        progress = coalesce(x.progress, n.progress),
        due_at = CASE WHEN x.due IS NOT NULL THEN now() + x.due * interval '1 second' END,
        started_at = CASE WHEN x.target IN ('running', 'waiting') THEN coalesce(n.started_at, now()) ELSE n.started_at END,
        finished_at = CASE WHEN x.target IN ('pending', 'running', 'waiting') THEN NULL
                           WHEN x.target = x.source THEN n.finished_at ELSE now() END,
        completed_seq = coalesce(x.completed, n.completed_seq),
        wait_outcome = CASE WHEN x.target = 'waiting' THEN n.wait_outcome END
    FROM x
    WHERE n.id = x.node AND n.status = x.source
    RETURNING 1
)
SELECT 1 / (CASE WHEN (SELECT count(*) FROM x) = (SELECT count(*) FROM changed) THEN 1 ELSE 0 END)
"""
"""Guard: each node still has the status that its change leaves. One that does not divides by zero, which
undoes the whole batch; settled piece by piece, only the boundary that no longer fits is refused."""

CANCEL_REST: Final = f"""
WITH ended AS MATERIALIZED (
    SELECT r.id, r.status FROM unnest(%s::uuid[], %s::uuid[]) AS x(boundary, run)
    JOIN workflow_run AS r ON r.id = x.run AND r.boundary = x.boundary
), step AS (
    UPDATE workflow_step AS s
    SET {INTERRUPTED}
    FROM ended
    WHERE s.run_id = ended.id AND s.kind <> 'sleep'
      AND (s.status = 'running' OR (s.status = 'waiting' AND ended.status = 'compensating'))
)
UPDATE workflow_node AS n
SET status = 'cancelled', finished_at = now(), due_at = NULL,
    wait_event = NULL, wait_correlation = NULL, wait_until = NULL, wait_outcome = NULL
FROM ended WHERE n.run_id = ended.id AND n.status IN {_LIVE}
"""
"""Touches the nodes that are still live when a run is over or turns back, and the steps whose bodies were at work. What
the ledger of a run that failed waits for stays: after a retry the wait goes on. One that turns back cannot be retried.
"""

DELETE_REST: Final = """
DELETE FROM workflow_job AS j
USING unnest(%s::uuid[], %s::uuid[], %s::uuid[]) AS x(boundary, run, job)
JOIN workflow_run AS r ON r.id = x.run AND r.boundary = x.boundary
WHERE j.run_id = x.run AND j.id <> x.job
"""
"""Touches every other job of such a run."""

INSERT_HISTORY: Final = """
INSERT INTO workflow_runevent (run_id, seq, name, node, at, data)
SELECT x.run, r.seq - x.entries + x.entry, x.name, x.node, now(),
       CASE WHEN x.due IS NULL THEN x.data::jsonb
            ELSE x.data::jsonb || jsonb_build_object('due_at', now() + x.due * interval '1 second') END
FROM unnest(%s::uuid[], %s::uuid[], %s::int[], %s::int[], %s::text[], %s::text[], %s::text[], %s::float8[])
     AS x(boundary, run, entry, entries, name, node, data, due)
JOIN workflow_run AS r ON r.id = x.run AND r.boundary = x.boundary
"""

PARK: Final = """
UPDATE workflow_node AS n
SET wait_event = x.event, wait_correlation = x.correlation, wait_until = now() + x.timeout * interval '1 second',
    wait_outcome = NULL, event_id = NULL, parked_at = statement_timestamp(),
    parked_xact = pg_current_xact_id()::text::bigint, parked_snapshot = pg_current_snapshot()::text
FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::text[], %s::float8[])
     AS x(boundary, run, node, event, correlation, timeout)
JOIN workflow_run AS r ON r.id = x.run AND r.boundary = x.boundary
WHERE n.id = x.node
"""
"""What a wait stage waits for. The deadline is absolute from here on; the snapshot tells which events it has missed.
`parked_at` is a moment before the snapshot: what this could not see is later than that, or its transaction was open."""

WRITE_STEPS: Final = """
INSERT INTO workflow_step AS s (id, run_id, node_id, phase, key, kind, status, attempt, value, error, lease_token,
                                lease_until, deadline, next_poll_at, wait_event, wait_correlation,
                                parked_at, parked_xact, parked_snapshot, created_at, finished_at, completed_seq)
SELECT x.id, x.run, x.node, x.phase, x.key, x.kind, x.status, x.attempt, x.value::jsonb, x.error::jsonb,
       CASE WHEN x.lease IS NOT NULL THEN x.token END,
       now() + x.lease * interval '1 second', now() + x.deadline * interval '1 second',
       now() + x.poll * interval '1 second', x.event, x.correlation,
       CASE WHEN x.event IS NOT NULL THEN statement_timestamp() END,
       CASE WHEN x.event IS NOT NULL THEN pg_current_xact_id()::text::bigint END,
       CASE WHEN x.event IS NOT NULL THEN pg_current_snapshot()::text END,
       now(), CASE WHEN x.status IN ('completed', 'failed') THEN clock_timestamp() END,
       CASE WHEN x.compensable THEN r.seq END
FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::text[], %s::text[],
            %s::text[], %s::int[], %s::text[], %s::text[], %s::float8[], %s::float8[], %s::float8[], %s::text[],
            %s::text[], %s::bool[])
     AS x(boundary, run, token, id, node, phase, key, kind, status, attempt, value, error, lease, deadline, poll,
          event, correlation, compensable)
JOIN workflow_run AS r ON r.id = x.run AND r.boundary = x.boundary
ON CONFLICT (run_id, node_id, phase, key) DO UPDATE
SET kind = excluded.kind, status = excluded.status, attempt = excluded.attempt, value = excluded.value,
    error = excluded.error, lease_token = excluded.lease_token, lease_until = excluded.lease_until,
    deadline = CASE WHEN s.status = 'failed' THEN excluded.deadline ELSE coalesce(s.deadline, excluded.deadline) END,
    next_poll_at = excluded.next_poll_at, wait_event = excluded.wait_event,
    wait_correlation = excluded.wait_correlation,
    parked_at = CASE WHEN s.status = 'failed' THEN excluded.parked_at ELSE coalesce(s.parked_at, excluded.parked_at) END,
    parked_xact = CASE WHEN s.status = 'failed' THEN excluded.parked_xact
                       ELSE coalesce(s.parked_xact, excluded.parked_xact) END,
    parked_snapshot = CASE WHEN s.status = 'failed' THEN excluded.parked_snapshot
                           ELSE coalesce(s.parked_snapshot, excluded.parked_snapshot) END,
    finished_at = excluded.finished_at, completed_seq = excluded.completed_seq
WHERE s.status <> 'completed'
"""
"""Ledger rows. Guard: one that is settled stays as it is. A deadline is fixed when a step first parks; a step
that failed and is opened again by a retry gets a new one. One that can be undone keeps where in the run's history
it was completed: with `finished_at`, which tells steps of one transaction apart, its place in the walk back."""

CLOSE_STEPS: Final = f"""
UPDATE workflow_step AS s
SET {LEFT_BEHIND}
FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[]) AS x(boundary, run, node, phase)
JOIN workflow_run AS r ON r.id = x.run AND r.boundary = x.boundary
WHERE s.run_id = x.run AND s.node_id = x.node AND s.phase = x.phase
  AND s.status IN ('running', 'waiting') AND s.kind <> 'sleep'
"""
"""Touches what is open in the ledger of an action, or of a compensation, that is over for good. Asked only where
something may be open."""

UPDATE_JOBS: Final = """
UPDATE workflow_job AS j
SET boundary = x.boundary,
    lease_token = CASE WHEN x.keep THEN j.lease_token END,
    worker_id = CASE WHEN x.keep THEN j.worker_id END,
    locked_at = CASE WHEN x.keep THEN now() END,
    started_at = CASE WHEN x.keep AND x.node IS NOT NULL THEN now() WHEN x.keep THEN j.started_at END,
    available_at = CASE WHEN x.keep THEN j.available_at ELSE now() + x.delay * interval '1 second' END,
    attempt = CASE WHEN x.node IS NULL THEN j.attempt ELSE 1 END - x.refund::int,
    last_error = coalesce(x.last_error, CASE WHEN x.node IS NOT NULL THEN '' END, j.last_error),
    node_id = coalesce(x.node, j.node_id),
    kind = coalesce(x.kind, j.kind)
FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::bool[], %s::float8[], %s::bool[], %s::text[],
            %s::uuid[], %s::text[])
     AS x(boundary, run, job, token, keep, delay, refund, last_error, node, kind)
JOIN workflow_run AS r ON r.id = x.run AND r.boundary = x.boundary
WHERE j.id = x.job AND j.lease_token IS NOT DISTINCT FROM x.token
"""
"""The units' own jobs: those that go on (a boundary is a sign of life) and those that go back to the queue. One that
moves on to another node, with its id and its lease, is as if it had been claimed as that node's just now."""

READY_JOBS: Final = f"""
WITH settled AS (
    SELECT DISTINCT whole.boundary FROM (
        SELECT x.boundary, x.set
        FROM unnest(%s::uuid[], %s::int[], %s::uuid[]) AS x(boundary, set, node)
        JOIN workflow_node AS n ON n.id = x.node
        GROUP BY x.boundary, x.set
        HAVING bool_and(n.status NOT IN {_LIVE} OR n.wait_outcome IS NOT NULL
                        OR (n.status = 'waiting' AND n.due_at <= now()))
    ) AS whole
)
UPDATE workflow_job AS j
SET boundary = x.boundary, lease_token = NULL, worker_id = NULL, locked_at = NULL, started_at = NULL, available_at = now(),
    last_error = CASE WHEN j.lease_token IS NULL THEN j.last_error ELSE '' END
FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[]) AS x(boundary, run, job, token)
JOIN workflow_run AS r ON r.id = x.run AND r.boundary = x.boundary
WHERE j.id = x.job AND x.boundary IN (SELECT boundary FROM settled)
  AND (j.boundary = x.boundary OR j.lease_token IS NOT DISTINCT FROM x.token)
"""
"""A unit that lets go although something it awaits has settled meanwhile is due at once. The run's lock, held
by whoever settles, makes sure that one of the two sees the other. It is due for a good reason: what its claim had found
in `last_error` is over, unless UPDATE_JOBS has just released the job and said why."""

DELETE_JOBS: Final = """
DELETE FROM workflow_job AS j
USING unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[]) AS x(boundary, run, job, token)
JOIN workflow_run AS r ON r.id = x.run AND r.boundary = x.boundary
WHERE j.id = x.job AND j.lease_token IS NOT DISTINCT FROM x.token
"""

INSERT_JOBS: Final = f"""
INSERT INTO workflow_job (id, kind, run_id, node_id, queue, priority, available_at)
SELECT x.id, x.kind, CASE WHEN x.kind <> 'check' THEN x.run END, x.node,
       CASE WHEN x.kind = 'check' THEN {events.QUEUE} ELSE r.queue END,
       CASE WHEN x.kind = 'check' THEN {events.PRIORITY} ELSE r.priority END,
       now() + x.delay * interval '1 second'
FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::uuid[], %s::float8[])
     AS x(boundary, run, id, kind, node, delay)
JOIN workflow_run AS r ON r.id = x.run AND r.boundary = x.boundary
LEFT JOIN workflow_node AS n ON n.id = x.node
WHERE x.kind <> 'unit' OR n.status IN {_LIVE}
ON CONFLICT (run_id, node_id) DO NOTHING
"""
"""A node that has settled since its unit read the run gets no job: it would be left behind.

A check job belongs to no run: it would have the node of a queued wait stage, whose own job it would keep from being
added when the wait is over. It is in the queue of deliveries: were it in the run's, and that paused, then the wait's
deadline could pass although its event was there in time."""

CHECK_STEPS: Final = f"""
WITH parked AS MATERIALIZED (
    SELECT s.id, s.status, s.node_id, x.job, r.id AS run
    FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::text[])
         AS x(boundary, run, job, node, phase, key)
    JOIN workflow_run AS r ON r.id = x.run AND r.boundary = x.boundary
    JOIN workflow_step AS s ON s.run_id = x.run AND s.node_id = x.node AND s.phase = x.phase AND s.key = x.key
), due AS (
    UPDATE workflow_node AS n SET due_at = now()
    FROM parked WHERE parked.status = 'completed' AND n.id = parked.node_id AND n.due_at > now()
    RETURNING pg_notify('workflow_signal', n.run_id::text)
), woken AS (
    UPDATE workflow_job AS j SET available_at = now()
    FROM parked WHERE parked.status = 'completed' AND j.id = parked.job AND (j.lease_token IS NULL)::int = 1
)
INSERT INTO workflow_job (id, kind, run_id, node_id, queue, priority, available_at)
SELECT gen_random_uuid(), 'check', parked.run, parked.id, {events.QUEUE}, {events.PRIORITY}, now()
FROM parked WHERE parked.status = 'waiting'
ON CONFLICT (run_id, node_id) DO NOTHING
"""
"""A job that looks for missed events for each ledger row that parks. A row that was waiting before its handler read it
may have been settled since: then the handler is due at once, for nobody else would wake it. The unit may stay at work:
it is told to look."""

WAKE_UNITS: Final = f"""
INSERT INTO workflow_job (id, kind, run_id, node_id, queue, priority, available_at)
SELECT w.id, 'unit', w.run, w.node, r.queue, r.priority, now()
FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[]) AS w(boundary, run, id, node)
JOIN workflow_run AS r ON r.id = w.run AND r.boundary = w.boundary
WHERE NOT EXISTS (
    SELECT 1 FROM unnest(%s::uuid[], %s::uuid[]) AS s(id, node)
    JOIN workflow_node AS n ON n.id = s.node
    WHERE s.id = w.id AND n.status IN {_LIVE}
)
ON CONFLICT (run_id, node_id) DO UPDATE SET available_at = least(workflow_job.available_at, now())
WHERE workflow_job.lease_token IS NULL
"""
"""The last child to settle wakes its parent's unit: it finds, under the run's lock, no live sibling."""

QUIET_RUNS: Final = """
WITH quiet AS (
    UPDATE workflow_run AS r
    SET status = 'waiting', seq = r.seq + 1, updated_at = now()
    FROM unnest(%s::uuid[], %s::uuid[]) AS x(boundary, run)
    WHERE r.id = x.run AND r.boundary = x.boundary AND r.status = 'running'
      AND NOT EXISTS (SELECT 1 FROM workflow_job AS j WHERE j.run_id = r.id AND j.kind <> 'check')
      AND NOT EXISTS (SELECT 1 FROM workflow_node AS n WHERE n.run_id = r.id AND n.kind = 'action' AND n.status = 'waiting')
      AND EXISTS (SELECT 1 FROM workflow_node AS n
                  WHERE n.run_id = r.id AND (n.wait_event IS NOT NULL)::int = 1 AND n.kind = 'stage')
    RETURNING r.id, r.seq
)
INSERT INTO workflow_runevent (run_id, seq, name, node, at)
SELECT q.id, q.seq, 'waiting',
       (SELECT n.path FROM workflow_node AS n
        WHERE n.run_id = q.id AND (n.wait_event IS NOT NULL)::int = 1 AND n.kind = 'stage' ORDER BY n.id LIMIT 1), now()
FROM quiet AS q
RETURNING run_id::text, seq, node
"""
"""A run of which nothing but parked waits is left is `waiting`."""

APPLIED: Final = """
SELECT boundary::text FROM workflow_job WHERE boundary = ANY(%s::uuid[]) AND id = ANY(%s::uuid[])
UNION
SELECT boundary::text FROM workflow_run WHERE boundary = ANY(%s::uuid[]) AND id = ANY(%s::uuid[])
"""
"""After a commit whose outcome is unknown: which of these boundaries are on their jobs, or on their runs?"""

OUTCOME: Final = """
SELECT 1 FROM workflow_node AS n
WHERE n.id = %s::uuid
  AND CASE WHEN %s THEN n.status = 'compensated'
           ELSE n.status IN ('completed', 'compensated') AND n.attempt = %s END
"""
"""The same for the checkpoint of an atomic action: was this node done by this attempt? Stamps would not tell, since
others of the unit settle boundaries of their own meanwhile."""
