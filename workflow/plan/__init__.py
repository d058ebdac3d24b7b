"""Which boundary comes next: a pure function of the definition, the node snapshots and what just happened.

No ORM, no clock, no I/O. `Unit` goes forward, `Undo` compensates; both take facts and return a
`Move`: one boundary to settle, and what to start once it is settled.
"""

from workflow.plan.backward import Undo
from workflow.plan.boundary import (
    Answered,
    Ask,
    Boundary,
    Change,
    Checked,
    Completed,
    Due,
    Fact,
    Failed,
    HistoryEntry,
    HistoryRow,
    Move,
    NewJob,
    Notes,
    Park,
    Refused,
    Start,
    StepWrite,
    Suspended,
    Timer,
    Wake,
    is_start,
)
from workflow.plan.faults import compact, fault
from workflow.plan.forward import Unit
from workflow.plan.opening import opening
from workflow.plan.snapshot import NodeSnapshot, RunSnapshot, fold, nest, seed

__all__ = [
    "Answered",
    "Ask",
    "Boundary",
    "Change",
    "Checked",
    "Completed",
    "Due",
    "Fact",
    "Failed",
    "HistoryEntry",
    "HistoryRow",
    "Move",
    "NewJob",
    "NodeSnapshot",
    "Notes",
    "Park",
    "Refused",
    "RunSnapshot",
    "Start",
    "StepWrite",
    "Suspended",
    "Timer",
    "Undo",
    "Unit",
    "Wake",
    "compact",
    "fault",
    "fold",
    "is_start",
    "nest",
    "opening",
    "seed",
]
