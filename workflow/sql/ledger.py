"""Reading the ledger of durable steps. Its rows are written by settling (see `workflow.sql.settle`)."""

from __future__ import annotations

from typing import Final

LOAD_STEPS: Final = """
SELECT s.key, s.kind, s.status, s.attempt, s.value::text,
       extract(epoch FROM s.deadline - now())::float8, s.error::text, s.wait_correlation,
       extract(epoch FROM s.next_poll_at - now())::float8
FROM workflow_step AS s
WHERE s.run_id = %s::uuid AND s.node_id = %s::uuid AND s.phase = %s
ORDER BY s.created_at, s.id
"""
"""All steps of one execution, the oldest first, in one read however many there are."""

LOAD_UNDOABLE: Final = """
SELECT s.run_id::text, s.node_id::text, s.key, s.completed_seq, coalesce(u.attempt, 0), coalesce(u.status = 'failed', false)
FROM workflow_step AS s
LEFT JOIN workflow_step AS u ON u.run_id = s.run_id AND u.node_id = s.node_id AND u.phase = 'undo' AND u.key = s.key
WHERE s.run_id = ANY(%s::uuid[]) AND s.phase = 'run' AND s.status = 'completed' AND s.completed_seq IS NOT NULL
  AND u.status IS DISTINCT FROM 'completed'
ORDER BY s.completed_seq, s.finished_at, s.key
"""
"""The steps of these runs that a walk back is to undo, or could not, in the order in which they were completed."""

_CUT_SHORT: Final = """status = 'failed', finished_at = now(), lease_token = NULL, lease_until = NULL,
        next_poll_at = NULL, wait_event = NULL, wait_correlation = NULL,
        error = jsonb_build_object('code', 'ACTION_FAILED', 'message', 'the {}')"""

INTERRUPTED: Final = _CUT_SHORT.format("run was over before this step was")
"""Set on rows whose body can store nothing any more: the lease that it worked under is gone."""

CANCELLED: Final = _CUT_SHORT.format("run was cancelled before this step was over")
"""The same where a person has taken the lease away."""

LEFT_BEHIND: Final = _CUT_SHORT.format("action was over before this step was")
"""Set on rows that their handler has left behind: nobody comes back to them."""

AWAITED: Final = """CASE s.phase WHEN 'run' THEN n.status IN ('pending', 'running', 'waiting')
          ELSE n.status = 'completed' AND n.error ->> 'code' IS DISTINCT FROM 'COMPENSATION_FAILED' END"""
"""The handler of the node `n` of the ledger row `s`, or that one's compensation, is not over for good: it may come back
to the row. Where an action has failed for good only a retry brings it back, and then its handler looks for events."""

SUSPENDED: Final = """s.status = 'waiting' AND s.kind IN ('event', 'poll')
      AND CASE s.phase WHEN 'run' THEN n.status = 'waiting' ELSE n.status = 'completed' AND n.due_at IS NOT NULL END"""
"""The ledger row `s` is one on which the handler of its node `n`, or that one's compensation, is suspended until an answer
comes: what a command may settle, and a page offers to. A sleep is none."""

LOAD_STEP: Final = LOAD_STEPS.replace("ORDER BY s.created_at, s.id", "AND s.key = %s")
