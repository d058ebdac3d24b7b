"""Every error that the package raises on purpose, and the codes that a failed run or node carries.

``WorkflowError`` and its leaves are for callers; each has a stable ``code``. ``Fatal`` and ``Retry`` are for
handlers to raise; ``Aborted`` is raised for them. These three are no ``WorkflowError``: they are outcomes,
and ``except WorkflowError`` around a dispatch inside a handler must not swallow them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pydantic import ValidationError


class FailureCode(StrEnum):
    """What a run's or a node's ``error["code"]`` can be."""

    ACTION_FAILED = "ACTION_FAILED"
    ACTION_TIMEOUT = "ACTION_TIMEOUT"
    PRECHECK_FAILED = "PRECHECK_FAILED"
    INPUT_INVALID = "INPUT_INVALID"
    OUTPUT_INVALID = "OUTPUT_INVALID"
    PAYLOAD_INVALID = "PAYLOAD_INVALID"
    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    COMPENSATION_FAILED = "COMPENSATION_FAILED"
    LEASE_HEARTBEAT_LOST = "LEASE_HEARTBEAT_LOST"
    LEASE_ABSOLUTE_CAP = "LEASE_ABSOLUTE_CAP"
    STUCK_RUN_REAPED = "STUCK_RUN_REAPED"
    UNIT_TIMEOUT = "UNIT_TIMEOUT"


class WorkflowError(Exception):
    """Base of all errors that callers may want to catch."""

    code: ClassVar[str] = "WORKFLOW_ERROR"


class WorkflowInvalid(WorkflowError):
    """A definition breaks a rule; the message starts with the place and goes on with the rule."""

    code = "WORKFLOW_INVALID"


class InputInvalid(WorkflowError):
    """The input of a dispatch does not fit the workflow's ``input=``. Nothing was created."""

    code = "WORKFLOW_INPUT_INVALID"

    def __init__(self, message: str, errors: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(message)
        self._errors = list(errors)

    @classmethod
    def of(cls, place: str, error: ValidationError) -> InputInvalid:
        """From pydantic's error; ``place`` says whose input it is."""
        return cls(f"{place}: {validation_summary(error)}", validation_errors(error))

    def errors(self) -> list[dict[str, Any]]:
        """pydantic's list (``type``, ``loc``, ``msg``), without the values: they may be secret."""
        return list(self._errors)


class WorkflowUnknown(WorkflowError):
    """No workflow of that name is registered in this process."""

    code = "WORKFLOW_UNKNOWN"


class VersionConflict(WorkflowError):
    """The run belongs to a version that this process does not serve."""

    code = "WORKFLOW_VERSION_CONFLICT"


class RunNotFound(WorkflowError):
    """There is no such run; also for what is no run id at all."""

    code = "RUN_NOT_FOUND"


class RunConflict(WorkflowError):
    """The run's status does not allow what was asked. Nothing was changed."""

    code = "RUN_STATE_CONFLICT"


class NodeUnknown(WorkflowError):
    """The run has no node of that path."""

    code = "NODE_UNKNOWN"


class StepKeyReused(WorkflowError):
    """One execution used a step key twice, so a replay cannot tell them apart. Fails the action for good."""

    code = "STEP_KEY_REUSED"


class PayloadInvalid(WorkflowError):
    """A value cannot be kept as JSON; the message names where it is and the rule that it breaks."""

    code = "PAYLOAD_INVALID"


class WaitTimeout(WorkflowError):
    """What a step waited for did not come in time."""

    code = "WAIT_TIMEOUT"


class Fatal(Exception):
    """Raised by a handler: fail now, whatever attempts are left."""


class Retry(Exception):
    """Raised by a handler: this attempt failed, try again after ``delay``.

    ``delay`` is in seconds or a ``timedelta``; None leaves it to the action's backoff. The attempt counts.
    Raises ``TypeError`` or ``ValueError`` for a delay that is no such thing, or is negative or not finite.
    """

    # Of the class too: a subclass may not call `super().__init__()`.
    delay: float | None = None
    message: str = ""

    def __init__(self, delay: float | timedelta | None = None, message: str = "") -> None:
        super().__init__(delay, message)
        self.message = message
        self.delay = None
        if delay is None:
            return
        if isinstance(delay, timedelta):
            self.delay = delay.total_seconds()
        elif isinstance(delay, int | float) and not isinstance(delay, bool):
            try:
                self.delay = float(delay)
            except OverflowError:  # a whole number beyond the floats
                self.delay = math.inf if delay > 0 else -math.inf
        else:
            raise TypeError(f"delay is a number of seconds or a timedelta, not a {type(delay).__name__}")
        if not math.isfinite(self.delay) or self.delay < 0:
            raise ValueError(f"delay must be a finite number of seconds, 0 or more, not {self.delay}")

    def __str__(self) -> str:
        if self.message:
            return self.message
        return "asked for a retry" if self.delay is None else f"asked for a retry in {self.delay:g} s"


class Aborted(Exception):
    """Raised by ``ctx.signal.raise_if_aborted()``; ``reason`` says why the handler should stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"aborted: {self.reason}"


def validation_errors(error: ValidationError) -> list[dict[str, Any]]:
    """pydantic's list of errors as plain data: no input values (maybe secret), no links, no exceptions."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [dict(entry) for entry in found]


def validation_summary(error: ValidationError) -> str:
    """pydantic's error in one line, without input values: ``order_id: Field required; lines.0: ...``."""
    entries = validation_errors(error)
    shown = []
    for entry in entries[:10]:
        place = ".".join(str(part) for part in entry["loc"])
        shown.append(f"{place}: {entry['msg']}" if place else str(entry["msg"]))
    if len(entries) > 10:
        shown.append(f"and {len(entries) - 10} more")
    return "; ".join(shown)
