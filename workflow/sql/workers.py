"""Who is alive, for people and pages. Nothing about a lease depends on these rows."""

from __future__ import annotations

from typing import Final

from workflow import states
from workflow.sql.arrays import words

REGISTER: Final = """
INSERT INTO workflow_worker (id, hostname, pid, queues, serves, concurrency, threads, started_at, seen_at)
VALUES (%s::uuid, %s, %s, %s::jsonb, %s::jsonb, %s, %s, now(), now())
"""
"""`serves` is a list of {"name", "version", "fingerprint", "compatible": [other versions that it takes on]}, and of
{"shares": false} in them where it claims only what it is asked for, or only for a while;
`queues` is empty for a worker that takes all of them."""

STOPPED: Final = """
UPDATE workflow_worker SET stopped_at = now(), seen_at = now(), units = 0 WHERE id = %s::uuid
RETURNING pg_notify('workflow_job', '')
"""
"""And wakes the others: what it has given back, or would have gone on with later (a retry, a sleep), was told to nobody,
as it has added no job."""

STANDING: Final = """
SELECT count(*) FILTER (WHERE w.id < me.id), count(*) FILTER (WHERE w.id <> me.id)
FROM workflow_worker AS me
JOIN workflow_worker AS w ON w.queues = me.queues AND w.serves = me.serves
WHERE me.id = %s::uuid AND w.stopped_at IS NULL AND w.seen_at > now() - %s * interval '1 second'
"""
"""How many live processes that serve the same as this one go before it, and how many there are besides."""

_GONE: Final = """FROM workflow_worker AS g WHERE g.seen_at < now() - interval '1 day'"""


def _forget(which: str) -> str:
    return f"""
DELETE FROM workflow_worker AS w WHERE w.id IN (SELECT g.id {_GONE}{which} FOR UPDATE SKIP LOCKED)
RETURNING w.id::text, true
"""


FORGET: Final = _forget(" LIMIT %s")
"""Rows of processes that are long gone. Never waits for a lock."""

FORGET_THESE: Final = _forget(" AND g.id = ANY(%s::uuid[])")

GONE: Final = f"SELECT g.id::text, false {_GONE} LIMIT %s"
"""Those that FORGET would drop, looked at only."""

ALIVE: Final = """
SELECT w.id, w.hostname, w.pid, w.queues, w.serves, w.concurrency, w.threads, w.abandoned_threads,
       w.started_at, w.seen_at
FROM workflow_worker AS w
WHERE w.stopped_at IS NULL AND w.seen_at > now() - %s * interval '1 second'
"""
"""A worker that was killed counts as alive for as long as its leases do."""

_UNSERVED: Final = f"""
WITH alive AS MATERIALIZED ({ALIVE}),
served AS MATERIALIZED (
    SELECT DISTINCT s.entry->>'name' AS workflow, v.version, alive.queues
    FROM alive
    CROSS JOIN LATERAL jsonb_array_elements(alive.serves) AS s(entry)
    CROSS JOIN LATERAL jsonb_array_elements_text(
        jsonb_build_array(s.entry->'version') || coalesce(s.entry->'compatible', '[]')
    ) AS v(version)
), looked_at AS MATERIALIZED ({{looked_at}})
SELECT l.workflow, l.version, p.queue, count(*), min(l.id::text), min(l.created_at), (SELECT count(*) FROM looked_at)
FROM looked_at AS l
LEFT JOIN (SELECT DISTINCT workflow, version FROM served) AS elsewhere
    ON elsewhere.workflow = l.workflow AND elsewhere.version = l.version::text
CROSS JOIN LATERAL (SELECT CASE WHEN elsewhere.workflow IS NOT NULL THEN l.queue END AS queue) AS p
GROUP BY l.workflow, l.version, p.queue
HAVING p.queue IS NULL OR NOT EXISTS (
    SELECT FROM served AS s WHERE s.workflow = l.workflow AND s.version = l.version::text
    AND (s.queues = '[]' OR s.queues @> to_jsonb(p.queue))
)
ORDER BY l.workflow, l.version, p.queue
"""

_RUN: Final = """
SELECT r.id, r.workflow, r.version, r.fingerprint, r.queue, r.created_at
FROM workflow_run AS r WHERE r.finished_at IS NULL"""

_BOTH_ENDS: Final = f"({_RUN} ORDER BY r.id LIMIT %s) UNION ({_RUN} ORDER BY r.id DESC LIMIT %s)"

UNSERVED: Final = _UNSERVED.format(looked_at=_BOTH_ENDS)
"""Live runs that no live worker would go on with, by workflow and version: how many, and the oldest. Where workers of
the version are alive but not in the runs' queue, by queue too; else the queue is NULL.

Looks at so many of the oldest and of the newest live runs, along `workflow_run_live`: what nobody serves was either
dispatched just now, or is left over from a release that is gone."""

UNSERVED_RUN: Final = _UNSERVED.format(looked_at=f"{_RUN} AND r.id = %s::uuid")
"""The same for one run."""

CHANGED: Final = f"""
WITH looked_at AS MATERIALIZED ({_BOTH_ENDS})
SELECT l.workflow, l.version, count(*), min(l.id::text), (SELECT count(*) FROM looked_at)
FROM looked_at AS l
JOIN unnest(%s::text[], %s::int[], %s::text[]) AS x(workflow, version, fingerprint) USING (workflow, version)
WHERE l.fingerprint <> x.fingerprint
GROUP BY l.workflow, l.version
ORDER BY l.workflow, l.version
"""
"""Live runs of these workflows, in these versions, that have another tree than these fingerprints stand for. Looks at
the same runs as UNSERVED."""

TREES: Final = f"""
WITH looked_at AS MATERIALIZED ({_BOTH_ENDS}),
other AS MATERIALIZED (
    SELECT l.id, l.workflow, l.version
    FROM looked_at AS l
    JOIN unnest(%s::text[], %s::int[], %s::text[]) AS x(workflow, version, fingerprint) USING (workflow, version)
    WHERE l.fingerprint <> x.fingerprint
    ORDER BY row_number() OVER (PARTITION BY l.workflow, l.version, l.fingerprint ORDER BY l.id) LIMIT %s
)
SELECT o.workflow, o.version, n.paths, n.live, count(*), min(o.id::text),
       (SELECT count(*) FROM looked_at), (SELECT count(*) FROM other)
FROM other AS o
CROSS JOIN LATERAL (
    SELECT array_agg(n.path ORDER BY n.id) AS paths,
           array_agg(n.path ORDER BY n.id) FILTER (WHERE n.status = ANY ('{words(states.NODE_LIVE)}')) AS live
    FROM workflow_node AS n WHERE n.run_id = o.id
) AS n
GROUP BY o.workflow, o.version, n.paths, n.live
ORDER BY 6
"""
"""The paths of all nodes and of the live ones of such runs: for each different set how many have it, and the oldest.
Looks at the same runs, and at the nodes of so many of them: some of each tree."""
