"""Domain events meeting parked waits. All of it under the lock of the runs concerned, taken in id order."""

from __future__ import annotations

from typing import Final

from workflow.sql.ledger import AWAITED

QUEUE: Final = "'#events'"
PRIORITY: Final = "1000"
"""Of deliveries and checks, as SQL: `states.EVENTS_QUEUE`, which every worker serves and nobody can pause."""

UNIT_NODE: Final = "(left({run}::text, 31) || lpad(to_hex({ordinal}), 5, '0'))::uuid"
"""SQL for the node id of an ordinal (see `workflow.ids`)."""


def _find(waits: str) -> str:
    return f"""
WITH asked AS MATERIALIZED (
    SELECT e.type, e.correlation FROM unnest(%s::uuid[]) AS x(id) JOIN workflow_event AS e ON e.id = x.id
)
SELECT found.id::text, found.run_id::text FROM (
    SELECT w.id, w.run_id
    FROM (SELECT DISTINCT type, correlation FROM asked WHERE correlation IS NOT NULL) AS e CROSS JOIN LATERAL (
        {waits.format(correlation="= e.correlation")} OFFSET 0
    ) AS w
    UNION ALL
    SELECT w.id, w.run_id FROM (SELECT DISTINCT type FROM asked) AS e CROSS JOIN LATERAL (
        {waits.format(correlation="IS NULL")} OFFSET 0
    ) AS w
) AS found
WHERE found.id > %s::uuid ORDER BY found.id LIMIT %s
"""


FIND_WAITS: Final = _find("""SELECT n.id, n.run_id FROM workflow_node AS n
        WHERE n.wait_event = e.type AND n.wait_correlation {correlation}
          AND n.status = 'waiting' AND n.wait_outcome IS NULL""")
"""A page of the parked waits that these events may concern, before any lock. Those of a correlation and those without
one are looked for apart: either by what they wait for, and not among all that wait for that type."""

FIND_STEPS: Final = _find(f"""SELECT s.id, s.run_id FROM workflow_step AS s JOIN workflow_node AS n ON n.id = s.node_id
        WHERE s.wait_event = e.type AND s.wait_correlation {{correlation}}
          AND s.status = 'waiting' AND {AWAITED}""")
"""The same for durable steps that wait for an event, and whose handlers are not over."""

WAITS: Final = """
SELECT n.id::text, n.run_id::text FROM workflow_node AS n
WHERE n.id = ANY(%s::uuid[]) AND n.status = 'waiting' AND n.wait_outcome IS NULL AND n.id > %s::uuid
ORDER BY n.id LIMIT %s
"""
"""Of these waits, a page of those that are still parked."""

EVENTS_FOR: Final = """
SELECT e.id::text, n.id::text
FROM workflow_event AS e
JOIN workflow_node AS n ON n.wait_event = e.type AND (n.wait_correlation IS NULL OR n.wait_correlation = e.correlation)
WHERE e.id = ANY(%s::uuid[]) AND n.id = ANY(%s::uuid[])
UNION
SELECT e.id::text, s.id::text
FROM workflow_event AS e
JOIN workflow_step AS s ON s.wait_event = e.type AND (s.wait_correlation IS NULL OR s.wait_correlation = e.correlation)
WHERE e.id = ANY(%s::uuid[]) AND s.id = ANY(%s::uuid[])
"""
"""Which of these events may concern which of these waits (nodes, or ledger rows), after some were passed by."""

LOCKED_RUNS: Final = """
WITH asked AS MATERIALIZED (
    SELECT %s::uuid[] AS runs, %s::uuid[] AS waits
), runs AS MATERIALIZED (
    SELECT r.id FROM workflow_run AS r WHERE r.id = ANY((SELECT runs FROM asked)::uuid[])
    ORDER BY r.id FOR NO KEY UPDATE SKIP LOCKED
), jobs AS MATERIALIZED (
    SELECT j.id FROM workflow_job AS j WHERE j.run_id = ANY((SELECT runs FROM asked)::uuid[])
    ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED
), steps AS MATERIALIZED (
    SELECT s.id, s.run_id, s.node_id FROM workflow_step AS s WHERE s.id = ANY((SELECT waits FROM asked)::uuid[])
), waits AS MATERIALIZED (
    SELECT (SELECT waits FROM asked) || ARRAY(SELECT node_id FROM steps) AS nodes
), nodes AS MATERIALIZED (
    SELECT n.id FROM workflow_node AS n WHERE n.id = ANY((SELECT nodes FROM waits)::uuid[])
    ORDER BY n.id FOR NO KEY UPDATE SKIP LOCKED
), free AS MATERIALIZED (
    SELECT s.id FROM workflow_step AS s WHERE s.id = ANY((SELECT waits FROM asked)::uuid[])
    ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED
)
SELECT r.id::text FROM workflow_run AS r
WHERE r.id = ANY((SELECT runs FROM asked)::uuid[]) AND r.id NOT IN (SELECT id FROM runs)
UNION
SELECT j.run_id::text FROM workflow_job AS j
WHERE j.run_id = ANY((SELECT runs FROM asked)::uuid[]) AND j.id NOT IN (SELECT id FROM jobs)
UNION
SELECT n.run_id::text FROM workflow_node AS n
WHERE n.id = ANY((SELECT nodes FROM waits)::uuid[]) AND n.id NOT IN (SELECT id FROM nodes)
UNION
SELECT s.run_id::text FROM steps AS s WHERE s.id NOT IN (SELECT id FROM free)
"""
"""Those of these runs of which somebody else has locked what resolving these waits (nodes, or ledger rows) would
touch: the run, its jobs, the waits. Never waits; what it locks itself ends with the statement."""

FENCE_WAITS: Final = """
UPDATE workflow_node AS n SET parked_xact = pg_current_xact_id()::text::bigint
WHERE n.id = ANY(%s::uuid[]) AND n.status = 'waiting' AND n.wait_event IS NOT NULL AND n.wait_correlation IS NULL
"""
"""Every transaction that began before these waits had parked is older than the one that runs this: see `_OPEN`. The one
that parked them is not quite that: others may have begun between its beginning and its snapshot."""

FENCE_STEPS: Final = """
UPDATE workflow_step AS s SET parked_xact = pg_current_xact_id()::text::bigint
WHERE s.id = ANY(%s::uuid[]) AND s.status = 'waiting' AND s.wait_event IS NOT NULL AND s.wait_correlation IS NULL
"""

STEPS: Final = """
SELECT s.id::text, s.run_id::text FROM workflow_step AS s
WHERE s.id = ANY(%s::uuid[]) AND s.status = 'waiting' AND (s.wait_event IS NOT NULL)::int = 1 AND s.id > %s::uuid
ORDER BY s.id LIMIT %s
"""

_WAKE: Final = f"""
woken AS (
    INSERT INTO workflow_job (id, kind, run_id, node_id, queue, priority, available_at)
    SELECT DISTINCT ON (x.run_id, x.unit)
           gen_random_uuid(), 'unit', x.run_id, {UNIT_NODE.format(run="x.run_id", ordinal="x.unit")},
           x.queue, x.priority, now()
    FROM x
    ON CONFLICT (run_id, node_id) DO UPDATE SET available_at = least(workflow_job.available_at, now())
    WHERE workflow_job.lease_token IS NULL
)
"""

_RESOLVED: Final = """
    wait_event = NULL, wait_correlation = NULL, wait_until = NULL
"""

_STEP_RESOLVED: Final = """
    wait_event = NULL, wait_correlation = NULL
"""

_RESUMED: Final = """
resumed AS (
    UPDATE workflow_run AS r SET status = 'running', seq = r.seq + c.entries, updated_at = now()
    FROM (SELECT x.run_id, count(*)::int AS entries FROM x GROUP BY x.run_id) AS c
    WHERE r.id = c.run_id
    RETURNING r.id, r.seq, c.entries
), told AS (
    INSERT INTO workflow_runevent (run_id, seq, name, node, at, data)
    SELECT r.id, r.seq - r.entries + row_number() OVER (PARTITION BY x.run_id ORDER BY x.id), 'resumed', x.path,
           now(), x.told
    FROM x JOIN resumed AS r ON r.id = x.run_id
    RETURNING run_id, seq, name, node, at, data
)
"""

_AFTER: Final = """
(e.xact = {w}.parked_xact OR NOT pg_visible_in_snapshot(e.xact::text::xid8, {w}.parked_snapshot::pg_snapshot)
 OR pg_snapshot_xmin({w}.parked_snapshot::pg_snapshot) > pg_snapshot_xmax(pg_current_snapshot()))
"""
# Of those since `parked_at`, which is a moment before the snapshot: not what was committed in between. A snapshot from
# the future is another server's, whose dump was restored here: transactions are numbered anew, and the time has to do.

_OPEN: Final = """
        (SELECT e.* FROM (
             SELECT e.* FROM pg_snapshot_xip({w}.parked_snapshot::pg_snapshot) AS o(xid) CROSS JOIN LATERAL (
                 SELECT e.* FROM workflow_event AS e
                 WHERE e.type = {w}.wait_event AND e.xact = o.xid::text::bigint OFFSET 0
             ) AS e
             UNION ALL
             (SELECT e.* FROM workflow_event AS e
              WHERE e.type = {w}.wait_event AND e.xact < {w}.parked_xact
                AND e.xact >= pg_snapshot_xmax({w}.parked_snapshot::pg_snapshot)::text::bigint OFFSET 0)
         ) AS e
         WHERE {in_time}
           AND {matches}
         ORDER BY e.at, e.id LIMIT 1)
"""
# What transactions published that were open when the wait parked: to the world that was after it. A snapshot lists those
# that are older than some transaction which is over; the others lie between that and `parked_xact`. OFFSET keeps the
# planner from any other index than that of (type, xact): each of these few transactions is a descent.

_UNUSED: Final = """
NOT EXISTS (SELECT 1 FROM workflow_node AS m WHERE m.run_id = {w}.run_id AND m.event_id = e.id)
           AND NOT EXISTS (SELECT 1 FROM workflow_step AS m WHERE m.run_id = {w}.run_id AND m.event_id = e.id)
"""

_IN_TIME: Final = """
e.at < CASE WHEN {w}.{until} <= now() THEN {w}.{until} ELSE 'infinity' END
"""
# Before the deadline, once that has passed: until then whatever can be seen is in time, by this transaction's clock.

_CANDIDATE: Final = """
        SELECT e.* FROM (
        (SELECT e.* FROM workflow_event AS e
         WHERE {w}.wait_correlation IS NOT NULL
           AND e.correlation = {w}.wait_correlation AND e.type = {w}.wait_event AND e.at >= r.created_at
           AND {in_time}
           AND {unused}
         ORDER BY e.at, e.id LIMIT 1)
        UNION ALL
        (SELECT e.* FROM workflow_event AS e
         WHERE {w}.wait_correlation IS NULL AND e.type = {w}.wait_event AND e.at >= {w}.parked_at
           AND {in_time}
           AND {after}
         ORDER BY e.at, e.id LIMIT 1)
        UNION ALL
{open}        ) AS e ORDER BY e.at, e.id LIMIT 1
"""
# The oldest event that a wait (a node or a ledger row, `w`) of the run `r` may take: of a correlation, then without one.
# Either is read off an index in its order, so that many waits for many events cost a descent each.

_MATCHES: Final = """
({w}.wait_correlation IS NULL OR e.correlation = {w}.wait_correlation
           AND {unused})
"""


def _candidate(w: str) -> str:
    until = {"n": "wait_until", "s": "deadline"}[w]
    unused = _UNUSED.format(w=w).strip()
    in_time = _IN_TIME.format(w=w, until=until).strip()
    matches = _MATCHES.format(w=w, unused=unused).strip()
    opened = _OPEN.format(w=w, in_time=in_time, matches=matches).strip("\n") + "\n"
    after = _AFTER.format(w=w).strip()
    return _CANDIDATE.format(w=w, unused=unused, in_time=in_time, after=after, open=opened)


RESOLVE_BY_EVENT: Final = f"""
WITH matched AS MATERIALIZED (
    SELECT n.id, n.run_id, n.unit, n.path, n.wait_correlation, r.queue, r.priority,
           e.id AS event, e.type, e.payload, e.correlation, e.at
    FROM workflow_node AS n
    JOIN workflow_run AS r ON r.id = n.run_id AND r.status IN ('running', 'waiting')
    CROSS JOIN LATERAL (
{_candidate("n")}    ) AS e
    WHERE n.id = ANY(%s::uuid[]) AND n.status = 'waiting' AND n.wait_outcome IS NULL
), x AS MATERIALIZED (
    SELECT DISTINCT ON (m.run_id, CASE WHEN m.wait_correlation IS NULL THEN m.id ELSE m.event END)
           m.*, jsonb_build_object('event_id', m.event) AS told
    FROM matched AS m
    ORDER BY m.run_id, CASE WHEN m.wait_correlation IS NULL THEN m.id ELSE m.event END, m.id
), resolved AS (
    UPDATE workflow_node AS n
    SET wait_outcome = jsonb_build_object('event', jsonb_build_object(
            'id', x.event, 'type', x.type, 'payload', x.payload, 'correlation', x.correlation, 'at', x.at)),
        event_id = x.event, {_RESOLVED}
    FROM x WHERE n.id = x.id
), taken AS (
    UPDATE workflow_event AS e SET taken = true FROM (SELECT DISTINCT x.event FROM x) AS t
    WHERE e.id = t.event AND NOT e.taken
), {_RESUMED}, {_WAKE}
SELECT run_id::text, seq, name, node, at, data::text FROM told ORDER BY run_id, seq
"""
"""Gives each of these waits the oldest event that it may take. Guard: still parked, and the run still goes forward.

A correlated wait may take any event since its run was created that no other wait of the run has had; an
uncorrelated one only what was published after it parked. Either may take what became visible after it parked, and
neither what was published after its deadline, whoever comes first then: its delivery or a sweep. Two waits of a run
never share a correlated event: the second gets the next one, on the caller's next round.
"""

_DUE: Final = """
    FROM workflow_node AS n
    WHERE n.wait_until IS NOT NULL AND n.wait_until <= now() AND n.status = 'waiting'"""
_PAGE: Final = """ AND n.id > %s::uuid
    ORDER BY n.id LIMIT %s"""
_UNIT_OF_DUE: Final = (
    f"j.run_id = due.run_id AND j.node_id = {UNIT_NODE.format(run='due.run_id', ordinal='due.unit')}"
)


def _expire(which: str) -> str:
    return f"""
WITH due AS MATERIALIZED (
    SELECT n.id, n.run_id, n.unit{_DUE}{which}
), locked AS MATERIALIZED (
    SELECT r.id FROM workflow_run AS r
    WHERE r.id IN (SELECT run_id FROM due) ORDER BY r.id FOR NO KEY UPDATE SKIP LOCKED
), free AS MATERIALIZED (
    SELECT j.id FROM due JOIN locked ON locked.id = due.run_id JOIN workflow_job AS j ON {_UNIT_OF_DUE}
    ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
), mine AS MATERIALIZED (
    SELECT n.id FROM due JOIN locked ON locked.id = due.run_id JOIN workflow_node AS n ON n.id = due.id
    WHERE NOT EXISTS (SELECT FROM workflow_job AS j WHERE {_UNIT_OF_DUE} AND j.id NOT IN (SELECT id FROM free))
    ORDER BY n.id FOR NO KEY UPDATE OF n SKIP LOCKED
), looked AS MATERIALIZED (
    SELECT due.id, due.run_id, r.queue, r.priority, e.id IS NOT NULL AS answered,
           due.id IN (SELECT id FROM mine) AS ours
    FROM due JOIN workflow_node AS n ON n.id = due.id LEFT JOIN workflow_run AS r ON r.id = due.run_id
    LEFT JOIN LATERAL (
{_candidate("n")}    ) AS e ON r.status IN ('running', 'waiting')
), x AS (
    UPDATE workflow_node AS n SET wait_outcome = jsonb_strip_nulls(
        jsonb_build_object('timeout', true, 'correlation', n.wait_correlation)), {_RESOLVED}
    FROM looked AS l
    WHERE n.id = l.id AND l.ours AND NOT l.answered
      AND n.status = 'waiting' AND n.wait_outcome IS NULL AND n.wait_until <= now()
    RETURNING n.id, n.run_id, n.unit, l.queue, l.priority
), {_WAKE}
SELECT l.id::text, l.run_id::text, l.id IN (SELECT id FROM x), l.ours AND l.answered FROM looked AS l ORDER BY l.id
"""


EXPIRE_WAITS: Final = _expire(_PAGE)
"""A page of waits whose absolute deadline has passed; whether each has timed out, and whether there is an event for it.

One that may take an event which was published in time (workers were away, or are behind with deliveries) is left to
RESOLVE_BY_EVENT. A run of which another has locked what this would touch (the run, the wait, the job of its unit) is
left for the next pass. The run's status is the waking unit's to change."""

EXPIRE_THESE: Final = _expire(" AND n.id = ANY(%s::uuid[])")
"""The same for some of a page."""

DUE_WAITS: Final = f"SELECT n.id::text, n.run_id::text, false, false{_DUE}{_PAGE}"
"""The same page, looked at only: none of them has timed out here."""

RESOLVE_STEPS: Final = f"""
WITH matched AS MATERIALIZED (
    SELECT s.id, s.run_id, s.node_id, s.phase, s.wait_correlation, n.unit, r.queue, r.priority,
           e.id AS event, e.payload
    FROM workflow_step AS s
    JOIN workflow_node AS n ON n.id = s.node_id
    JOIN workflow_run AS r ON r.id = s.run_id AND r.finished_at IS NULL
    CROSS JOIN LATERAL (
{_candidate("s")}
    ) AS e
    WHERE s.id = ANY(%s::uuid[]) AND s.status = 'waiting' AND (s.wait_event IS NOT NULL)::int = 1 AND {AWAITED}
), x AS MATERIALIZED (
    SELECT DISTINCT ON (m.run_id, CASE WHEN m.wait_correlation IS NULL THEN m.id ELSE m.event END)
           m.*, CASE WHEN m.phase = 'compensate' THEN m.run_id
                     ELSE {UNIT_NODE.format(run="m.run_id", ordinal="m.unit")} END AS job_node
    FROM matched AS m
    ORDER BY m.run_id, CASE WHEN m.wait_correlation IS NULL THEN m.id ELSE m.event END, m.id
), resolved AS (
    UPDATE workflow_step AS s
    SET status = 'completed', value = x.payload, event_id = x.event, finished_at = now(), {_STEP_RESOLVED}
    FROM x WHERE s.id = x.id
), taken AS (
    UPDATE workflow_event AS e SET taken = true FROM (SELECT DISTINCT x.event FROM x) AS t
    WHERE e.id = t.event AND NOT e.taken
), due AS (
    UPDATE workflow_node AS n SET due_at = now() FROM x WHERE n.id = x.node_id AND n.due_at > now()
), woken AS (
    UPDATE workflow_job AS j SET available_at = least(j.available_at, now())
    FROM x
    WHERE j.run_id = x.run_id AND (j.lease_token IS NULL)::int = 1 AND j.node_id = x.job_node
    RETURNING j.run_id, j.node_id
)
SELECT x.run_id::text, pg_notify('workflow_job', ''),
       CASE WHEN w.run_id IS NULL THEN pg_notify('workflow_signal', x.run_id::text) END
FROM x LEFT JOIN woken AS w ON w.run_id = x.run_id AND w.node_id = x.job_node
"""
"""The same for ledger rows: the row is settled with the payload, and its suspended handler is due. A unit that is at
work, with a mate of that handler, is told to look. Guard: the handler is not over, else it would take the event from a
later wait."""

STEPS_IN_TIME: Final = f"""
WITH x AS MATERIALIZED (
    SELECT s.id, e.id AS event, e.payload
    FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::text[]) AS b(boundary, run, node, phase, key)
    JOIN workflow_run AS r ON r.id = b.run AND r.boundary = b.boundary
    JOIN workflow_step AS s ON s.run_id = b.run AND s.node_id = b.node AND s.phase = b.phase AND s.key = b.key
    CROSS JOIN LATERAL (
{_candidate("s")}    ) AS e
    WHERE s.status = 'waiting' AND (s.wait_event IS NOT NULL)::int = 1
), resolved AS (
    UPDATE workflow_step AS s
    SET status = 'completed', value = x.payload, event_id = x.event, finished_at = now(), {_STEP_RESOLVED}
    FROM x WHERE s.id = x.id
)
UPDATE workflow_event AS e SET taken = true FROM (SELECT DISTINCT x.event FROM x) AS t WHERE e.id = t.event AND NOT e.taken
"""
"""Before a batch of boundaries writes down that these ledger rows have timed out: one that may take an event that was
published in time is settled with it, and stays so. Guard: the boundary's stamp, under the run's lock; a boundary has one
such row at most."""
