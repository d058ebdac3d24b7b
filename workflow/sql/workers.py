"""Who is alive, for people and pages. Nothing about a lease depends on these rows."""

from __future__ import annotations

from typing import Final

REGISTER: Final = """
INSERT INTO workflow_worker (id, hostname, pid, queues, serves, concurrency, threads, started_at, seen_at)
VALUES (%s::uuid, %s, %s, %s::jsonb, %s::jsonb, %s, %s, now(), now())
"""

SEEN: Final = """
UPDATE workflow_worker SET seen_at = now(), units = %s, abandoned_threads = %s WHERE id = %s::uuid
"""

STOPPED: Final = """
UPDATE workflow_worker SET stopped_at = now(), seen_at = now(), units = 0 WHERE id = %s::uuid
"""

FORGET: Final = """
DELETE FROM workflow_worker WHERE seen_at < now() - interval '1 day' RETURNING id
"""
