"""What pages need to know of big tables without reading them: distinct values, and about how many rows there are."""

from __future__ import annotations

from typing import Final

RUN_WORKFLOWS: Final = """
WITH RECURSIVE found AS (
    (SELECT workflow AS value FROM workflow_run ORDER BY workflow LIMIT 1)
    UNION ALL
    SELECT (SELECT r.workflow FROM workflow_run AS r WHERE r.workflow > found.value ORDER BY r.workflow LIMIT 1)
    FROM found WHERE found.value IS NOT NULL
)
SELECT value FROM found WHERE value IS NOT NULL LIMIT %s
"""
"""Names of workflows that have runs, in order: one step along `workflow_run_workflow` for each name, where
DISTINCT would read every run."""

DUE_QUEUES: Final = """
WITH RECURSIVE found AS (
    (SELECT queue AS value FROM workflow_job WHERE lease_token IS NULL ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT j.queue FROM workflow_job AS j
            WHERE j.lease_token IS NULL AND j.queue > found.value ORDER BY j.queue LIMIT 1)
    FROM found WHERE found.value IS NOT NULL
)
SELECT value FROM found WHERE value IS NOT NULL LIMIT %s
"""
"""Names of queues that have jobs to be claimed, along `workflow_job_due`."""

ESTIMATE: Final = "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)"
"""About how many rows a table has, as of the last VACUUM or ANALYZE; -1 before the first."""
