"""Durable workflows and sagas for Django.

All that an application imports: ``from workflow import Stage, Workflow, action, workflows``. That imports no
model, so a ``models.py`` may do it.
"""

from typing import TYPE_CHECKING, Any

from workflow import errors
from workflow.definitions import Action, Pipeline, Stage, WaitFor, Workflow, action, parallel
from workflow.errors import (
    Aborted,
    Fatal,
    InputInvalid,
    NodeUnknown,
    PayloadInvalid,
    Retry,
    RunConflict,
    RunNotFound,
    StepKeyReused,
    VersionConflict,
    WaitTimeout,
    WorkflowError,
    WorkflowInvalid,
    WorkflowUnknown,
)

if TYPE_CHECKING:
    from workflow.manager import workflows

__all__ = [
    "Aborted",
    "Action",
    "Fatal",
    "InputInvalid",
    "NodeUnknown",
    "PayloadInvalid",
    "Pipeline",
    "Retry",
    "RunConflict",
    "RunNotFound",
    "Stage",
    "StepKeyReused",
    "VersionConflict",
    "WaitFor",
    "WaitTimeout",
    "Workflow",
    "WorkflowError",
    "WorkflowInvalid",
    "WorkflowUnknown",
    "action",
    "errors",
    "parallel",
    "workflows",
]


def __getattr__(name: str) -> Any:
    if name == "workflows":  # on first use: the manager stands on all that imports this module
        from workflow.manager import workflows

        globals()["workflows"] = workflows
        return workflows
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
