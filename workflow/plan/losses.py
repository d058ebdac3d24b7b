"""Units that lose their worker although none of their attempts is at work.

An attempt is written down when it starts, so one that kills its worker is bounded like one that fails. Gates,
picks and validators run outside of attempts; what bounds them is how often their job was claimed.
"""

from __future__ import annotations

from typing import Final

from workflow.definitions import Tree
from workflow.errors import FailureCode
from workflow.plan.faults import loss
from workflow.plan.snapshot import RunSnapshot
from workflow.states import ACTION, COMPLETED, NODE_LIVE, RUNNING

MAX_CLAIMS: Final = 10
"""Claims that a unit may lose with nothing at work, before what it asks is not asked again."""


def verdict(tree: Tree, unit: int, run: RunSnapshot) -> FailureCode | None:
    """How the unit's lease was lost, if that is to fail what it asks outside of attempts; else None."""
    code = loss(run.last_error)
    if code not in (FailureCode.LEASE_HEARTBEAT_LOST, FailureCode.LEASE_ABSOLUTE_CAP):
        return None
    own = [n for n in range(unit, tree.nodes[unit].end) if tree.nodes[n].unit == unit]
    if any(run.nodes[n].status == RUNNING and tree.nodes[n].kind == ACTION for n in own):
        return None  # that attempt is what was lost
    if code == FailureCode.LEASE_ABSOLUTE_CAP:
        return code
    return (
        FailureCode.LEASE_HEARTBEAT_LOST
        if run.job_attempt - _accounted(tree, unit, run) > MAX_CLAIMS
        else None
    )


def _accounted(tree: Tree, unit: int, run: RunSnapshot) -> int:
    """How many of the job's claims, at most, have something to show for them: an attempt that failed, or a queued
    child that was over when the unit let go to await it."""
    count = 0
    for ordinal in range(unit, tree.nodes[unit].end):
        node, row = tree.nodes[ordinal], run.nodes[ordinal]
        if node.unit == unit:
            count += row.attempt - (row.attempt > 0 and row.status == COMPLETED)
        elif node.own_job:
            count += row.status not in NODE_LIVE
    return count
