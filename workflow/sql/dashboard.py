"""What the dashboard's pages ask: each statement reads a bounded number of rows, however many there are."""

from __future__ import annotations

from typing import Final

from workflow.sql.claim import PAIRS

RUNS: Final = """
SELECT r.id, r.workflow, r.version, r.status, r.correlation_id, r.created_at, r.started_at, r.finished_at,
       r.error->>'code' AS code, r.error->>'node' AS failed_node
FROM workflow_run AS r
WHERE true{conditions}
ORDER BY r.id {direction} LIMIT %(limit)s
"""
"""One page of runs; `conditions` are made of RUN_CONDITIONS alone. Ids ascend with time."""

RUN_CONDITIONS: Final = {
    "workflow": " AND r.workflow = %(workflow)s",
    "status": " AND r.status = %(status)s",
    "live": " AND r.finished_at IS NULL",
    "correlation": " AND r.correlation_id = %(correlation)s",
    "since": " AND r.id >= %(since)s::uuid",
    "until": " AND r.id < %(until)s::uuid",
    "exact": " AND r.correlation_id = %(text)s",
    "keyed": " AND r.idempotency_key = %(text)s AND r.workflow = ANY(%(names)s::text[])",
    "within": " AND r.id >= %(low)s::uuid AND r.id <= %(high)s::uuid",
    "older": " AND r.id < %(older)s::uuid",
    "newer": " AND r.id > %(newer)s::uuid",
}

SEARCHES: Final = {"words": ("exact", "keyed"), "id": ("exact", "keyed", "within")}
"""What a text that somebody looks for may be. `names` are the workflows there are: the index of keys begins with them."""

EITHER: Final = """
SELECT * FROM ({lists}) AS r ORDER BY r.id {direction} LIMIT %(limit)s
"""
"""One page of the runs that some lists have together. With OR in one list the planner would walk along the ids of all
runs, and look for the few that are meant from the newest on."""

COUNTS: Final = """
SELECT s.status, (
    SELECT count(*) FROM (
        SELECT FROM workflow_run AS r WHERE r.status >= s.status AND r.status <= s.status
        ORDER BY r.status, r.id LIMIT %(cap)s
    ) AS few)
FROM unnest(%(statuses)s::text[]) AS s(status)
"""
"""How many runs have each status, counted up to a bound along `workflow_run_status`. The planner takes a status that it
does not know for a frequent one, and would look for a rare one through the whole table: a range and an order that no
other index serves keep it from that."""

ESTIMATES: Final = """
SELECT v.status, (v.share * c.reltuples)::bigint
FROM pg_stats AS s
JOIN pg_class AS c ON c.oid = to_regclass('workflow_run')
CROSS JOIN unnest(s.most_common_vals::text::text[], s.most_common_freqs) AS v(status, share)
WHERE s.tablename = 'workflow_run' AND s.attname = 'status' AND c.reltuples > 0
  AND s.schemaname = (SELECT nspname FROM pg_namespace WHERE oid = c.relnamespace)
"""
"""The same as the planner believes since the last ANALYZE; no row for what it has not seen."""

ENDINGS: Final = """
SELECT extract(epoch FROM b.at)::float8, c.ended, c.failed
FROM generate_series(
    date_bin(%(step)s * interval '1 second', now(), 'epoch'::timestamptz) - (%(count)s - 1) * %(step)s * interval '1 second',
    now(), %(step)s * interval '1 second') AS b(at)
CROSS JOIN LATERAL (
    SELECT count(*) AS ended, count(*) FILTER (WHERE few.status IN ('failed', 'compensated')) AS failed
    FROM (SELECT r.status FROM workflow_run AS r
          WHERE r.finished_at >= b.at AND r.finished_at < b.at + %(step)s * interval '1 second' LIMIT %(cap)s) AS few
) AS c
ORDER BY 1
"""
"""How many runs ended, and failed, in each of the last so many steps, counted up to a bound."""

OLDEST_DUE: Final = f"""
WITH RECURSIVE {PAIRS}
SELECT p.queue, extract(epoch FROM now() - j.available_at)::float8, j.kind
FROM (SELECT * FROM pairs LIMIT %(pairs)s) AS p CROSS JOIN LATERAL (
    SELECT j.available_at, j.kind FROM workflow_job AS j
    WHERE j.lease_token IS NULL AND j.queue = p.queue AND j.priority = p.priority AND j.available_at <= now()
    ORDER BY j.available_at LIMIT 1
) AS j
ORDER BY 2 DESC LIMIT 1
"""
"""The job that has been due for longest, and for how many seconds: one descent of `workflow_job_due` for each queue
and priority."""

MOVES: Final = """
SELECT h.name, h.node, extract(epoch FROM h.at)::float8, coalesce(h.data ? 'compensation', false)
FROM workflow_runevent AS h
WHERE h.run_id = %(run)s AND h.name NOT IN ('log', 'action.progress')
ORDER BY h.seq LIMIT %(limit)s
"""
"""A run's history as a timeline needs it; the last column: it is about the compensation of its node."""

NODE_HISTORY: Final = """
SELECT h.seq, h.name, h.node, h.at, h.data FROM workflow_runevent AS h
WHERE h.run_id = %(run)s AND h.node = %(node)s
ORDER BY h.seq DESC LIMIT %(limit)s
"""
"""The last entries about one node: along the run's own history, which is read through."""
