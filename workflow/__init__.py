"""Durable workflows and sagas for Django.

All that an application imports: ``from workflow import Stage, Workflow, action, workflows``. That imports no
model, so a ``models.py`` may do it.
"""

from importlib import import_module
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
    from workflow.context import Context
    from workflow.executor.questions import PublishedEvent
    from workflow.manager.workflows import workflows  # the object, which mypy takes for the module otherwise
    from workflow.results import RunHandle, RunStatus

__all__ = [
    "Aborted",
    "Action",
    "Context",
    "Fatal",
    "InputInvalid",
    "NodeUnknown",
    "PayloadInvalid",
    "Pipeline",
    "PublishedEvent",
    "Retry",
    "RunConflict",
    "RunHandle",
    "RunNotFound",
    "RunStatus",
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


# Fetched on first use, because these modules stand on all that imports this one.
_LATER = {
    "Context": "workflow.context",
    "PublishedEvent": "workflow.executor.questions",
    "RunHandle": "workflow.results",
    "RunStatus": "workflow.results",
    "workflows": "workflow.manager",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value
