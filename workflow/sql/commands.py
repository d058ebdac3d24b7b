"""The commands' statements. They run on Django's connection, in whatever transaction the caller is in.

Lock order (DESIGN.md): a command that changes a run takes the run's row first, in a statement of its
own (`LOCK_RUN`), so that what follows sees all that the previous holder of the lock committed, jobs
that it added included. Its jobs come next, then its nodes and ledger rows.

Parameters are given by name, except in the two statements that are called the most. Arrays are
PostgreSQL array literals (see `workflow.sql.arrays`). Times are written out: Django's column defaults
are the statement's time, and a job of now, inside a longer transaction, must be due at its `now()`.
Only `created_at` is the clock's own, like an event's `at`: the two are compared.
"""

from __future__ import annotations

from typing import Final

from workflow.sql import events
from workflow.sql.ledger import CANCELLED, SUSPENDED

# --- dispatch -----------------------------------------------------------------------------------

DISPATCH: Final = (
    "SELECT workflow_dispatch_2(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
"""Adds one run, its nodes and the job of its first pipeline; the run's id, or that of the run that has
the idempotency key already, or NULL if that one kept slipping away.

A function, for the sake of its cached plans: they halve the time of the statement and outlive no
transaction that a pooler could cut. Touches no row that exists. An insert under a key that an open
transaction holds waits for its end. See migration 0009 for the body; a changed one gets another number.
"""

DISPATCH_MANY: Final = """
WITH batch AS MATERIALIZED (
    SELECT b.id, b.job, b.correlation, b.key, nullif(b.input, 'null'::jsonb) AS input, b.position
    FROM ROWS FROM (unnest(%(ids)s::uuid[], %(jobs)s::uuid[], %(correlations)s::text[], %(keys)s::text[]),
                    jsonb_array_elements(%(inputs)s::jsonb))
         WITH ORDINALITY AS b(id, job, correlation, key, input, position)
), run AS (
    INSERT INTO workflow_run (id, workflow, version, fingerprint, status, queue, priority,
                              input, state, context, correlation_id, idempotency_key, seq,
                              created_at, updated_at)
    SELECT b.id, %(workflow)s, %(version)s, %(fingerprint)s, 'pending', %(queue)s, %(priority)s, b.input,
           CASE WHEN b.input IS NULL THEN '{}'::jsonb
                WHEN jsonb_typeof(b.input) = 'object' THEN b.input
                ELSE jsonb_build_object('input', b.input) END,
           %(context)s::jsonb, b.correlation, b.key, (%(by)s::text IS NOT NULL)::int, clock_timestamp(), now()
    FROM batch AS b ORDER BY b.position
    ON CONFLICT (workflow, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING id, queue, priority
), node AS (
    INSERT INTO workflow_node (id, run_id, path, unit, beside, kind)
    SELECT (left(run.id::text, -5) || t.suffix)::uuid, run.id, t.path, t.unit, t.beside, t.kind
    FROM run CROSS JOIN unnest(%(suffixes)s::text[], %(paths)s::text[], %(units)s::int[], %(besides)s::int[],
                               %(kinds)s::text[]) AS t(suffix, path, unit, beside, kind)
), job AS (
    INSERT INTO workflow_job (id, kind, run_id, node_id, queue, priority, available_at)
    SELECT b.job, 'unit', run.id, (left(run.id::text, -5) || '00001')::uuid, run.queue, run.priority,
           now() + %(delay)s * interval '1 second'
    FROM run JOIN batch AS b ON b.id = run.id
), history AS (
    INSERT INTO workflow_runevent (run_id, seq, name, at, data)
    SELECT run.id, 1, 'log', now(), jsonb_build_object('message', 'dispatched', 'by', %(by)s::text)
    FROM run WHERE %(by)s::text IS NOT NULL
)
SELECT id, now() FROM run
"""
"""The same for many runs of one workflow, and with a first history entry when it is known who asked.

The ids of those that were added; the others' keys are taken. Callers give the rows in the order of
their keys, so that two batches with keys in common wait for each other one way round only.
"""

FIND_KEYS: Final = """
SELECT idempotency_key, id FROM workflow_run
WHERE workflow = %(workflow)s AND idempotency_key = ANY(%(keys)s::text[])
"""

# --- reading ------------------------------------------------------------------------------------

RUN_STATUS: Final = "SELECT status FROM workflow_run WHERE id = %(run)s"

STATUS: Final = """
SELECT r.id, '' AS path, 'run' AS kind, r.status, r.error, r.started_at, r.finished_at,
       r.input AS output, NULL::int AS attempt, NULL::float8 AS progress, NULL::int AS completed_seq,
       r.workflow, r.version, r.state, r.correlation_id, r.created_at
FROM workflow_run AS r WHERE r.id = %(run)s
UNION ALL
SELECT n.id, n.path, n.kind, n.status, n.error, n.started_at, n.finished_at,
       n.output, n.attempt, n.progress, n.completed_seq,
       NULL, NULL, NULL, NULL, NULL
FROM workflow_node AS n WHERE n.run_id = %(run)s
ORDER BY 1
"""
"""A run and its nodes in one snapshot. The run's id has ordinal 0, so it comes first; the tree follows."""

LIST: Final = """
SELECT id, workflow, version, status, state, input, error, correlation_id, created_at, started_at, finished_at
FROM workflow_run
WHERE true{conditions}
ORDER BY id DESC LIMIT %(limit)s
"""
"""One page of runs, newest first; `conditions` are made of LIST_CONDITIONS alone."""

LIST_CONDITIONS: Final = {
    "workflow": " AND workflow = %(workflow)s",
    "status": " AND status = %(status)s",
    "correlation_id": " AND correlation_id = %(correlation_id)s",
    "after": " AND id < %(after)s",
}

# --- steering one run ---------------------------------------------------------------------------

LOCK_RUN: Final = """
SELECT workflow, version FROM workflow_run
WHERE id = %(run)s AND status = ANY(%(statuses)s::text[])
FOR NO KEY UPDATE
"""
"""The guard of every command below: no row when the run has none of those statuses, or does not exist."""

_STOPPED: Final = f"""job AS (
    DELETE FROM workflow_job WHERE run_id = %(run)s
), node AS (
    UPDATE workflow_node
    SET status = 'cancelled', finished_at = now(), due_at = NULL,
        wait_event = NULL, wait_correlation = NULL, wait_until = NULL, wait_outcome = NULL
    WHERE run_id = %(run)s AND status IN ('pending', 'running', 'waiting')
), step AS (
    UPDATE workflow_step
    SET {CANCELLED}
    WHERE run_id = %(run)s AND status IN ('running', 'waiting') {{}}
)"""
# The way forward of a run ends: its jobs, its live nodes and what is open in its ledger, but for what is left out.

CANCEL: Final = f"""
WITH {_STOPPED.format("")}, run AS (
    UPDATE workflow_run
    SET status = 'cancelled', finished_at = now(), updated_at = now(), seq = seq + 1
    WHERE id = %(run)s AND status IN ('pending', 'running', 'waiting')
    RETURNING id, seq
), history AS (
    INSERT INTO workflow_runevent (run_id, seq, name, at, data)
    SELECT run.id, run.seq, 'cancelled', now(), %(data)s::jsonb FROM run
    RETURNING run_id, seq, name, node, at, data
)
SELECT run_id, seq, name, node, at, data, pg_notify('workflow_signal', run_id::text) FROM history
"""
"""Ends a run that goes forward: its jobs, its live nodes, what is open in its ledger, itself, its history.

Whoever works on it finds the lease gone; the signal tells them to look.
"""

CANCEL_AND_COMPENSATE: Final = f"""
WITH {_STOPPED.format("AND kind <> 'sleep'")}, run AS (
    UPDATE workflow_run SET status = 'compensating', updated_at = now(), seq = seq + 2
    WHERE id = %(run)s AND status IN ('running', 'waiting')
    RETURNING id, seq, queue, priority
), undo AS (
    INSERT INTO workflow_job (id, kind, run_id, node_id, queue, priority, available_at)
    SELECT %(job)s::uuid, 'compensate', run.id, run.id, run.queue, run.priority, now() FROM run
), history AS (
    INSERT INTO workflow_runevent (run_id, seq, name, at, data)
    SELECT run.id, run.seq - 1, 'cancelled', now(), %(data)s::jsonb FROM run
    UNION ALL
    SELECT run.id, run.seq, 'compensating', now(), NULL FROM run
    RETURNING run_id, seq, name, node, at, data
)
SELECT run_id, seq, name, node, at, data, pg_notify('workflow_signal', run_id::text) FROM history ORDER BY seq
"""
"""The same for a run that has begun, except that what it has completed is undone next. For that a handler may come by
its sleeps again, which stay as they are."""

# --- retry --------------------------------------------------------------------------------------

COMPENSATION_BEGUN: Final = """
SELECT EXISTS (SELECT 1 FROM workflow_runevent WHERE run_id = %(run)s AND name = 'compensating')
    OR EXISTS (SELECT 1 FROM workflow_node
               WHERE run_id = %(run)s AND (status = 'compensated' OR compensate_attempt > 0))
"""

HAS_NODE: Final = "SELECT 1 FROM workflow_node WHERE run_id = %(run)s AND path = %(path)s"

FORGET_STEPS: Final = """
DELETE FROM workflow_step AS s
USING workflow_node AS n
WHERE n.run_id = %(run)s AND n.path = ANY(%(paths)s::text[])
  AND s.run_id = n.run_id AND s.node_id = n.id
  AND EXISTS (SELECT 1 FROM workflow_node AS done
              WHERE done.run_id = %(run)s AND done.path = ANY(%(paths)s::text[])
                AND done.status IN ('completed', 'skipped'))
"""
"""All that is done again starts with an empty ledger if any of it was done, or skipped, before: what had failed after
that is given another state, and its ledger was made of the old one. Else the state is the same, and what had failed
goes on from its own. Under the run's lock, before RESET_NODES.
"""

REOPEN_STEPS: Final = """
UPDATE workflow_step SET error = error - 'attempt' WHERE run_id = %(run)s AND status = 'failed'
"""
"""Attempts count from 1 again: a wait that has timed out before the retry is not taken for one of the new attempt's."""

_RETRYING: Final = """
FROM (SELECT set_config('workflow.retrying', pg_current_xact_id()::text, true) AS xact) AS retrying
WHERE retrying.xact IS NOT NULL"""
# Says that this is a retry, for the rest of the transaction: from nobody else a trigger takes that a node which is over
# is set back.

RESET_NODES: Final = f"""
UPDATE workflow_node
SET status = 'pending', attempt = 0, compensate_attempt = 0, progress = NULL, output = NULL, error = NULL,
    started_at = NULL, finished_at = NULL, due_at = NULL, completed_seq = NULL,
    wait_event = NULL, wait_correlation = NULL, wait_until = NULL, wait_outcome = NULL,
    parked_at = NULL, parked_xact = NULL, parked_snapshot = NULL, event_id = NULL
{_RETRYING} AND run_id = %(run)s AND (status NOT IN ('completed', 'skipped') OR path = ANY(%(paths)s::text[]))
"""
"""All that is not done, and what is to be done again. Under the run's lock, after LOCK_RUN."""

REOPEN_LAST: Final = f"""
UPDATE workflow_node
SET status = 'pending', finished_at = NULL
{_RETRYING} AND id = (SELECT n.id FROM workflow_node AS n
            WHERE n.run_id = %(run)s AND n.kind = 'pipeline' ORDER BY n.id DESC LIMIT 1)
  AND NOT EXISTS (SELECT 1 FROM workflow_node AS n
                  WHERE n.run_id = %(run)s AND n.kind = 'pipeline'
                    AND n.status NOT IN ('completed', 'skipped'))
"""
"""A run that failed although every pipeline is done: it completes by walking the last one again."""

RETRY: Final = """
WITH standing AS (
    SELECT coalesce(jsonb_object_agg(o.key, o.value ORDER BY n.completed_seq, n.id), '{}'::jsonb) AS outputs
    FROM workflow_node AS n
    CROSS JOIN LATERAL jsonb_each(
        CASE jsonb_typeof(n.output)
            WHEN 'object' THEN n.output
            ELSE jsonb_build_object(
                split_part(split_part(n.path, '.', CASE n.kind WHEN 'action' THEN 3 ELSE 2 END), '#', 1),
                n.output)
        END) AS o(key, value)
    WHERE n.run_id = %(run)s AND n.status = 'completed' AND jsonb_typeof(n.output) <> 'null'
), run AS (
    UPDATE workflow_run AS r
    SET status = 'running', finished_at = NULL, error = NULL, updated_at = now(), seq = r.seq + 1,
        state = CASE WHEN coalesce(jsonb_typeof(r.input), 'null') = 'null' THEN '{}'::jsonb
                     WHEN jsonb_typeof(r.input) = 'object' THEN r.input
                     ELSE jsonb_build_object('input', r.input) END || standing.outputs
    FROM standing
    WHERE r.id = %(run)s AND r.status = 'failed'
    RETURNING r.id, r.seq, r.queue, r.priority
), job AS (
    INSERT INTO workflow_job (id, kind, run_id, node_id, queue, priority, available_at)
    SELECT %(job)s::uuid, 'unit', run.id, n.id, run.queue, run.priority, now()
    FROM run JOIN LATERAL (
        SELECT n.id FROM workflow_node AS n
        WHERE n.run_id = run.id AND n.kind = 'pipeline' AND n.status NOT IN ('completed', 'skipped')
        ORDER BY n.id LIMIT 1
    ) AS n ON true
    ON CONFLICT (run_id, node_id) DO NOTHING
), history AS (
    INSERT INTO workflow_runevent (run_id, seq, name, at, data)
    SELECT run.id, run.seq, 'resumed', now(), %(data)s::jsonb FROM run
    RETURNING run_id, seq, name, node, at, data
)
SELECT run_id, seq, name, node, at, data FROM history
"""
"""Brings a failed run back: its state made again from the input and the outputs that stand, in the order in
which they completed (the last one wins a key); the job of its first pipeline that is not done.
"""

# --- resume -------------------------------------------------------------------------------------

RESOLVE_WAITS: Final = """
WITH wait AS (
    UPDATE workflow_node
    SET wait_outcome = %(outcome)s::jsonb, wait_event = NULL, wait_correlation = NULL, wait_until = NULL
    WHERE run_id = %(run)s AND kind = 'stage' AND status = 'waiting' AND wait_outcome IS NULL
    RETURNING id, path, unit
)
SELECT path, unit FROM wait ORDER BY id
"""
"""Gives every parked wait its outcome, unless an event or the timeout was first."""

WAKE: Final = """
WITH run AS (
    UPDATE workflow_run
    SET status = 'running', updated_at = now(), seq = seq + cardinality(%(paths)s::text[])
    WHERE id = %(run)s AND status IN ('running', 'waiting')
    RETURNING id, seq - cardinality(%(paths)s::text[]) AS seq, queue, priority
), job AS (
    INSERT INTO workflow_job (id, kind, run_id, node_id, queue, priority, available_at)
    SELECT u.id, 'unit', run.id, u.node, run.queue, run.priority, now()
    FROM run CROSS JOIN unnest(%(jobs)s::uuid[], %(units)s::uuid[]) AS u(id, node)
    ON CONFLICT (run_id, node_id) DO UPDATE SET available_at = least(workflow_job.available_at, now())
    WHERE workflow_job.lease_token IS NULL
), history AS (
    INSERT INTO workflow_runevent (run_id, seq, name, node, at, data)
    SELECT run.id, run.seq + h.position, 'resumed', h.path, now(), %(data)s::jsonb
    FROM run CROSS JOIN unnest(%(paths)s::text[]) WITH ORDINALITY AS h(path, position)
    RETURNING run_id, seq, name, node, at, data
)
SELECT run_id, seq, name, node, at, data,
       pg_notify('workflow_signal', run_id::text), pg_notify('workflow_job', '')
FROM history ORDER BY seq
"""
"""The units of those waits go on: a job that is there is due now, one that is at work is due at once when it lets go
(see `workflow.sql.settle.READY_JOBS`), else there is a new one. One history entry for each wait.
"""

RESOLVE_STEPS: Final = f"""
WITH answered AS (
    UPDATE workflow_step AS s
    SET status = 'completed', value = %(payload)s::jsonb, finished_at = clock_timestamp(),
        wait_event = NULL, wait_correlation = NULL, next_poll_at = NULL
    FROM workflow_node AS n
    WHERE s.run_id = %(run)s AND n.id = s.node_id AND n.run_id = %(run)s
      AND {SUSPENDED}
    RETURNING s.id, s.node_id, s.phase, s.key, n.path, n.unit
), due AS (
    UPDATE workflow_node AS n SET due_at = now() FROM answered WHERE n.id = answered.node_id AND n.due_at > now()
)
SELECT path, CASE phase WHEN 'run' THEN unit ELSE 0 END, key FROM answered ORDER BY id
"""
"""Settles the ledger rows on which handlers are suspended, `wait_event` and `wait_for`, unless an event, an answer or
the timeout was first: with the payload, and with the ordinal of whose job goes on (0: the compensation's).

Guard: the row waits, and so does its node. A handler that has been called again since decides by itself, from rows
that it has read already.
"""

WAKE_HANDLERS: Final = """
WITH run AS (
    UPDATE workflow_run SET updated_at = now(), seq = seq + cardinality(%(paths)s::text[])
    WHERE id = %(run)s
    RETURNING id, seq - cardinality(%(paths)s::text[]) AS seq
), job AS (
    UPDATE workflow_job AS j SET available_at = least(j.available_at, now())
    FROM run WHERE j.run_id = run.id AND j.node_id = ANY(%(units)s::uuid[]) AND j.lease_token IS NULL
), history AS (
    INSERT INTO workflow_runevent (run_id, seq, name, node, at, data)
    SELECT run.id, run.seq + h.position, 'log', h.path, now(),
           %(data)s::jsonb || jsonb_build_object('message', 'step answered', 'fields', jsonb_build_object('step', h.key))
    FROM run
    CROSS JOIN unnest(%(paths)s::text[], %(keys)s::text[]) WITH ORDINALITY AS h(path, key, position)
    RETURNING run_id, seq, name, node, at, data
)
SELECT run_id, seq, name, node, at, data,
       pg_notify('workflow_signal', run_id::text), pg_notify('workflow_job', '')
FROM history ORDER BY seq
"""
"""Their handlers are due now, those of units that are at work too, and one entry for each step says who answered it.
The run's status stays: the handler's own `resumed` follows when it is called again.
"""

# --- events -------------------------------------------------------------------------------------

PUBLISH: Final = f"""
WITH event AS (
    INSERT INTO workflow_event (id, type, correlation, payload, event_id, xact, at)
    SELECT e.id, e.type, e.correlation, e.payload, e.event_id, e.xact, clock_timestamp()
    FROM (SELECT %s::uuid AS id, %s::text AS type, %s::text AS correlation, %s::jsonb AS payload, %s::text AS event_id,
                 pg_current_xact_id()::text::bigint AS xact OFFSET 0) AS e
    ON CONFLICT (event_id) WHERE event_id IS NOT NULL DO NOTHING
    RETURNING id
)
INSERT INTO workflow_job (id, kind, node_id, queue, priority, available_at)
SELECT %s::uuid, 'deliver', event.id, {events.QUEUE}, {events.PRIORITY}, now() FROM event
"""
"""Adds an event and the job that delivers it; nothing when its event_id is there already.

Inserting an event_id that an open transaction holds waits for its end.
"""

# --- prune --------------------------------------------------------------------------------------

PRUNE_CUTOFF: Final = """
SELECT (statement_timestamp() - %(seconds)s * interval '1 second')::text,
       coalesce((SELECT min(created_at) FROM workflow_run WHERE finished_at IS NULL), 'infinity')::text
"""
"""What is old, fixed at the start, and since when there are live runs.

`now()` would stand at the beginning of the caller's transaction, and what it has published since would not be old yet.
"""

PRUNE_RUNS: Final = """
WITH old AS MATERIALIZED (
    SELECT id FROM workflow_run WHERE finished_at <= %(cutoff)s::timestamptz
    ORDER BY finished_at LIMIT %(batch)s
    FOR UPDATE SKIP LOCKED
), history AS (
    DELETE FROM workflow_runevent AS h USING old WHERE h.run_id = old.id
), step AS (
    DELETE FROM workflow_step AS s USING old WHERE s.run_id = old.id
), job AS (
    DELETE FROM workflow_job AS j USING old WHERE j.run_id = old.id
), node AS (
    DELETE FROM workflow_node AS n USING old WHERE n.run_id = old.id
)
DELETE FROM workflow_run AS r USING old WHERE r.id = old.id
"""
"""One batch of finished runs with all that is theirs. What a retry or another prune holds is left alone."""

PRUNE_EVENTS: Final = """
WITH old AS MATERIALIZED (
    SELECT e.id FROM workflow_event AS e
    WHERE e.at <= %(cutoff)s::timestamptz AND e.id > %(after)s
      AND (e.correlation IS NULL OR e.at < %(oldest_run)s::timestamptz)
      AND NOT (
          EXISTS (SELECT 1 FROM workflow_job AS j WHERE j.run_id IS NULL AND j.node_id = e.id)
          AND (EXISTS (SELECT 1 FROM workflow_node AS n WHERE n.wait_event = e.type)
               OR EXISTS (SELECT 1 FROM workflow_step AS s WHERE s.wait_event = e.type))
      )
    ORDER BY e.id LIMIT %(batch)s
    FOR UPDATE SKIP LOCKED
), job AS (
    DELETE FROM workflow_job AS j USING old WHERE j.run_id IS NULL AND j.node_id = old.id
)
DELETE FROM workflow_event AS e USING old WHERE e.id = old.id RETURNING e.id
"""
"""One batch of events that nobody can take any more, in the order of their ids.

Two kinds stay, however old: a correlated event that a live run is older than, for a wait of that run
that has yet to park counts it, and an event that is still to be delivered to somebody who waits.
"""
