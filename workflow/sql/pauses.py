"""Queues that are paused. Every claim reads these rows; nothing else of a pause is kept anywhere.

`now()` is the claim's clock, so it is the clock here too: inside a longer transaction a pause of five seconds counts
from that transaction's beginning, as a dispatch's delay does.
"""

from __future__ import annotations

from typing import Final

_IN_EFFECT: Final = "(q.until IS NULL OR q.until > now())"
_COLUMNS: Final = "q.queue, q.until, q.reason, q.by, q.paused_at"

PAUSE: Final = f"""
WITH paused AS (
    INSERT INTO workflow_pausedqueue AS q (queue, until, reason, by, paused_at)
    SELECT %(queue)s, x.until, %(reason)s, %(by)s, now()
    FROM (SELECT coalesce(%(until)s::timestamptz, now() + %(seconds)s::float8 * interval '1 second')) AS x(until)
    WHERE x.until IS NULL OR x.until > now()
    ON CONFLICT (queue) DO UPDATE
    SET until = excluded.until, reason = excluded.reason, by = excluded.by,
        paused_at = CASE WHEN {_IN_EFFECT} THEN q.paused_at ELSE excluded.paused_at END
    RETURNING {_COLUMNS}
)
SELECT queue, until, reason, by, paused_at, pg_notify('workflow_job', '') FROM paused
"""
"""Adds the row, or replaces what it says: since when the queue is paused stays. No row comes back, and nothing is
changed, for an end that is not in the future. Rings: an idle worker has to learn of the moment at which to look again."""

RESUME: Final = f"""
WITH resumed AS (
    DELETE FROM workflow_pausedqueue AS q WHERE q.queue = %(queue)s RETURNING {_IN_EFFECT} AS was_paused
)
SELECT was_paused, pg_notify('workflow_job', '') FROM resumed
"""
"""Drops the row and rings; whether the pause was still in effect."""

LIST: Final = f"SELECT {_COLUMNS} FROM workflow_pausedqueue AS q WHERE {_IN_EFFECT} ORDER BY q.queue"
"""The queues that are paused now."""


def _forget(which: str) -> str:
    return f"""
DELETE FROM workflow_pausedqueue AS q WHERE q.queue IN (
    SELECT o.queue FROM workflow_pausedqueue AS o WHERE o.until <= now(){which} FOR UPDATE SKIP LOCKED
)
RETURNING q.queue, true
"""


FORGET_OVER: Final = _forget(" LIMIT %s")
"""Pauses whose time is over. Never waits; one that is being prolonged at this moment is left alone."""

FORGET_THESE: Final = _forget(" AND o.queue = ANY(%s::text[])")

OVER: Final = "SELECT o.queue, false FROM workflow_pausedqueue AS o WHERE o.until <= now() LIMIT %s"
"""Those that FORGET_OVER would drop, looked at only."""
