"""Statuses, the edges between them, and the names of history events.

This is the one table of what may happen: the database triggers, the store, the tests and the
documentation are all made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PENDING: Final = "pending"
RUNNING: Final = "running"
WAITING: Final = "waiting"
COMPENSATING: Final = "compensating"
SKIPPED: Final = "skipped"
COMPLETED: Final = "completed"
COMPENSATED: Final = "compensated"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"

RUN_STATUSES: Final = (
    PENDING,
    RUNNING,
    WAITING,
    COMPENSATING,
    COMPLETED,
    COMPENSATED,
    FAILED,
    CANCELLED,
)
NODE_STATUSES: Final = (
    PENDING,
    RUNNING,
    WAITING,
    SKIPPED,
    COMPLETED,
    FAILED,
    COMPENSATED,
    CANCELLED,
)

RUN_LIVE: Final = (PENDING, RUNNING, WAITING, COMPENSATING)
RUN_FORWARD: Final = (PENDING, RUNNING, WAITING)
"""A run that goes forward: it may still be cancelled, and its actions may still start."""
RUN_PARKED: Final = (RUNNING, WAITING, COMPENSATING)
"""A run that may be parked on something: it may be resumed."""
RUN_TERMINAL: Final = (COMPLETED, COMPENSATED, FAILED, CANCELLED)
NODE_LIVE: Final = (PENDING, RUNNING, WAITING)
NODE_DONE: Final = (SKIPPED, COMPLETED)
"""A node that lets its group go on."""

RUN_EDGES: Final[Mapping[str, tuple[str, ...]]] = {
    PENDING: (RUNNING, FAILED, CANCELLED, COMPENSATING),
    RUNNING: (WAITING, COMPENSATING, COMPLETED, FAILED, CANCELLED),
    WAITING: (RUNNING, COMPENSATING, FAILED, CANCELLED),
    COMPENSATING: (COMPENSATED, FAILED),
    FAILED: (RUNNING,),  # an explicit retry, and nothing else, brings a run back
    COMPLETED: (),
    COMPENSATED: (),
    CANCELLED: (),
}
NODE_EDGES: Final[Mapping[str, tuple[str, ...]]] = {
    PENDING: (RUNNING, WAITING, SKIPPED, COMPLETED, FAILED, CANCELLED),
    RUNNING: (PENDING, WAITING, COMPLETED, FAILED, CANCELLED),
    WAITING: (PENDING, RUNNING, COMPLETED, FAILED, CANCELLED),
    COMPLETED: (COMPENSATED, PENDING),
    SKIPPED: (PENDING,),
    FAILED: (PENDING,),
    CANCELLED: (PENDING,),
    COMPENSATED: (),
}

# Kinds of node.
PIPELINE: Final = "pipeline"
STAGE: Final = "stage"
ACTION: Final = "action"
NODE_KINDS: Final = (PIPELINE, STAGE, ACTION)

# Kinds of job.
UNIT: Final = "unit"
"""Runs a node that has a job of its own, with everything inline beneath it."""
COMPENSATE: Final = "compensate"
"""Walks a run's completed actions backwards."""
DELIVER: Final = "deliver"
"""Hands one event to the waits that are parked for it."""
CHECK: Final = "check"
"""Looks for an event that a freshly parked wait may have missed."""
EVENTS_QUEUE: Final = "#events"
"""Where deliveries wait: every worker serves it, whichever queues it was told to serve."""
JOB_KINDS: Final = (UNIT, COMPENSATE, DELIVER, CHECK)

# Names of history events: the contract, section 6.
EVENT_STARTED: Final = "started"
EVENT_STAGE_COMPLETED: Final = "stage.completed"
EVENT_STAGE_FAILED: Final = "stage.failed"
EVENT_STAGE_SKIPPED: Final = "stage.skipped"
EVENT_ACTION_STARTED: Final = "action.started"
EVENT_ACTION_COMPLETED: Final = "action.completed"
EVENT_ACTION_PROGRESS: Final = "action.progress"
EVENT_ACTION_RETRYING: Final = "action.retrying"
EVENT_ACTION_FAILED: Final = "action.failed"
EVENT_ACTION_SKIPPED: Final = "action.skipped"
EVENT_ACTION_COMPENSATED: Final = "action.compensated"
EVENT_ACTION_COMPENSATION_FAILED: Final = "action.compensation_failed"
EVENT_LOG: Final = "log"
EVENT_WAITING: Final = "waiting"
EVENT_RESUMED: Final = "resumed"
EVENT_COMPENSATING: Final = "compensating"
EVENT_COMPLETED: Final = "completed"
EVENT_COMPENSATED: Final = "compensated"
EVENT_FAILED: Final = "failed"
EVENT_CANCELLED: Final = "cancelled"
EVENTS: Final = (
    EVENT_STARTED,
    EVENT_STAGE_COMPLETED,
    EVENT_STAGE_FAILED,
    EVENT_STAGE_SKIPPED,
    EVENT_ACTION_STARTED,
    EVENT_ACTION_COMPLETED,
    EVENT_ACTION_PROGRESS,
    EVENT_ACTION_RETRYING,
    EVENT_ACTION_FAILED,
    EVENT_ACTION_SKIPPED,
    EVENT_ACTION_COMPENSATED,
    EVENT_ACTION_COMPENSATION_FAILED,
    EVENT_LOG,
    EVENT_WAITING,
    EVENT_RESUMED,
    EVENT_COMPENSATING,
    EVENT_COMPLETED,
    EVENT_COMPENSATED,
    EVENT_FAILED,
    EVENT_CANCELLED,
)


def illegal_edge(edges: Mapping[str, tuple[str, ...]]) -> str:
    """SQL that is true for an update which `edges` does not allow; for a trigger's WHEN clause.

    Written as a WHEN condition rather than a function body, because PostgreSQL evaluates it without entering
    PL/pgSQL; and as one constant, because each statement that updates such a table reads the condition anew.
    """
    legal = ",".join(f"{source} {target}" for source, targets in edges.items() for target in targets)
    return (
        "OLD.status IS DISTINCT FROM NEW.status "
        f"AND OLD.status || ' ' || NEW.status <> ALL ('{{{legal}}}'::text[])"
    )
