"""How busy everything is, read along existing indexes. Nothing here locks or writes; every part has a limit.

With a million finished runs, 400,000 live ones, 320,000 jobs and every limit reached: queues 13 ms, rates 20 ms,
dispatches 6 ms, workers 1 ms on an idle machine; a few milliseconds in all where less is going on.
"""

from __future__ import annotations

from typing import Final

from workflow.sql.claim import PAIRS
from workflow.sql.workers import ALIVE

_PAIR: Final = "j.lease_token IS NULL AND j.queue = p.queue AND j.priority = p.priority"

QUEUES: Final = f"""
WITH RECURSIVE {PAIRS},
looked_at AS MATERIALIZED (SELECT p.queue, p.priority FROM pairs AS p LIMIT %s),
leased AS MATERIALIZED (
    SELECT j.queue, count(*) AS jobs FROM workflow_job AS j WHERE j.lease_token IS NOT NULL GROUP BY j.queue
), left_over AS MATERIALIZED (
    SELECT p.queue, due.jobs AS due, later.jobs AS later, oldest.available_at
    FROM looked_at AS p
    CROSS JOIN LATERAL (SELECT count(*) AS jobs FROM (
        SELECT FROM workflow_job AS j WHERE {_PAIR} AND j.available_at <= now() LIMIT %s) AS counted) AS due
    CROSS JOIN LATERAL (SELECT count(*) AS jobs FROM (
        SELECT FROM workflow_job AS j WHERE {_PAIR} AND j.available_at > now() LIMIT %s) AS counted) AS later
    LEFT JOIN LATERAL (
        SELECT j.available_at FROM workflow_job AS j WHERE {_PAIR} AND j.available_at <= now()
        ORDER BY j.available_at LIMIT 1
    ) AS oldest ON true
)
SELECT queue, coalesce(sum(o.due), 0)::bigint, coalesce(max(l.jobs), 0), coalesce(sum(o.later), 0)::bigint,
       coalesce(max(greatest(o.due, o.later)), 0), extract(epoch FROM now() - min(o.available_at))::float8
FROM left_over AS o FULL JOIN leased AS l USING (queue)
GROUP BY queue ORDER BY queue
"""
"""By queue: jobs that are due, leased and due later; the largest of the counts that were added up, to be compared
with the limit; and for how many seconds the oldest job has been due.

Walks through `workflow_job_due` as the claim does, pair by pair of queue and priority, and counts so many entries of
each; what is leased is no more than the workers' slots."""

_GOING: Final = " UNION ALL ".join(
    f"(SELECT r.started_at FROM workflow_run AS r WHERE r.status = '{status}' ORDER BY r.id DESC LIMIT %s)"
    for status in ("running", "waiting", "compensating")
)
# The statuses stand in the text: as parameters they would keep the planner from `workflow_run_status`.

_WINDOWS: Final = """
windows AS MATERIALIZED (
    SELECT c.seconds, c.covered, now() - c.covered * interval '1 second' AS since
    FROM (SELECT w.seconds,
                 CASE WHEN s.runs < %s THEN w.seconds ELSE least(w.seconds, greatest(s.age, 0.001)) END AS covered
          FROM unnest(%s::float8[]) AS w(seconds), sample AS s) AS c
)
"""

RATES: Final = f"""
WITH ended AS MATERIALIZED (
    SELECT r.status, r.started_at, r.finished_at FROM workflow_run AS r
    WHERE r.finished_at > now() - %s * interval '1 second'
    ORDER BY r.finished_at DESC LIMIT %s
), sample AS (SELECT count(*) AS runs, extract(epoch FROM now() - min(finished_at))::float8 AS age FROM ended),
{_WINDOWS}, going AS MATERIALIZED ({_GOING})
SELECT w.seconds, w.covered, e.started + g.started, e.completed, e.failed, e.compensated, e.cancelled
FROM windows AS w
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE started_at > w.since) AS started,
           count(*) FILTER (WHERE status = 'completed') AS completed,
           count(*) FILTER (WHERE status = 'failed') AS failed,
           count(*) FILTER (WHERE status = 'compensated') AS compensated,
           count(*) FILTER (WHERE status = 'cancelled') AS cancelled
    FROM ended WHERE finished_at > w.since
) AS e
CROSS JOIN LATERAL (
    SELECT count(*) AS started FROM going WHERE started_at > w.since
) AS g
ORDER BY w.seconds
"""
"""For each window of seconds: how many of them the counts cover, and how many runs started and ended in these.

Ends are read along `workflow_run_finished`, the latest first; past the limit the window shrinks to what was read, so
a rate stays right. Starts are those of the same runs and of the newest live runs of each status, along
`workflow_run_status`."""


def _first_id(since: str) -> str:
    """The least id that a run can have which was dispatched no earlier than that."""
    return f"(lpad(to_hex((extract(epoch FROM {since}) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid"


DISPATCHED: Final = f"""
WITH newest AS MATERIALIZED (
    SELECT r.id FROM workflow_run AS r WHERE r.id >= {_first_id("now() - %s * interval '1 second'")}
    ORDER BY r.id DESC LIMIT %s
), sample AS (
    SELECT count(*) AS runs, extract(epoch FROM now() - to_timestamp(
        ('x' || lpad(left(replace((SELECT id::text FROM newest ORDER BY id LIMIT 1), '-', ''), 12), 16, '0'))
        ::bit(64)::bigint / 1000.0))::float8 AS age
    FROM newest
), {_WINDOWS}, firsts AS MATERIALIZED (
    SELECT w.seconds, w.covered, {_first_id("w.since")} AS id FROM windows AS w
)
SELECT f.seconds, f.covered, (SELECT count(*) FROM newest AS n WHERE n.id >= f.id)
FROM firsts AS f ORDER BY f.seconds
"""
"""The same for dispatches. A run's id begins with the milliseconds of its dispatch, by the clock of whoever
dispatched it; only the primary key is read."""

WORKERS: Final = f"""
WITH leased AS MATERIALIZED (
    SELECT j.worker_id, count(*) AS units FROM workflow_job AS j WHERE j.lease_token IS NOT NULL GROUP BY j.worker_id
)
SELECT a.id, a.hostname, a.pid, a.queues::text, a.serves::text, coalesce(l.units, 0), a.concurrency,
       a.abandoned_threads, a.started_at, a.seen_at, extract(epoch FROM now() - a.seen_at)::float8
FROM ({ALIVE}) AS a LEFT JOIN leased AS l ON l.worker_id = a.id
ORDER BY a.hostname, a.pid, a.id LIMIT %s
"""
"""Workers alive. What they have in hand is counted: the number in their row is as old as their last heartbeat."""
