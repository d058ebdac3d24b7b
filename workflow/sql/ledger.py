"""Reading the ledger of durable steps. Its rows are written by settling (see `workflow.sql.settle`)."""

from __future__ import annotations

from typing import Final

LOAD_STEPS: Final = """
SELECT s.key, s.kind, s.status, s.attempt, s.value::text,
       extract(epoch FROM s.deadline - now())::float8, extract(epoch FROM s.next_poll_at - now())::float8
FROM workflow_step AS s
WHERE s.run_id = %s::uuid AND s.node_id = %s::uuid AND s.phase = %s
"""
"""All steps of one execution, in one read however many there are."""

LOAD_STEP: Final = LOAD_STEPS.rstrip() + " AND s.key = %s\n"
