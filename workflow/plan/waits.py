"""What a wait stage parks for, and what its outcome says. Pure functions of the definition and the rows."""

from __future__ import annotations

from typing import Any

from workflow.definitions import WaitFor
from workflow.errors import FailureCode
from workflow.plan.boundary import Park
from workflow.plan.faults import Unfit, compact, fault


def park(wait: WaitFor, state: dict[str, Any], answered: str | None, path: str) -> Park:
    """What to wait for. `answered` is what a `correlate` function returned. Raises `Unfit`."""
    correlation = answered
    if isinstance(wait.correlate, str):
        value = state.get(wait.correlate)
        if value is None or value == "" or isinstance(value, dict | list):  # nothing that could be published
            message = f'correlate="{wait.correlate}": the state has no such scalar value'
            raise Unfit(fault(FailureCode.ACTION_FAILED, message, path))
        correlation = value if isinstance(value, str) else compact(value)
    return Park(wait.event, correlation, wait.timeout)


def output_of(wait: WaitFor, outcome: dict[str, Any], path: str) -> Any:
    """What a wait without `pick` gives. Raises `Unfit` when the time was up."""
    if outcome.get("timeout"):
        message = f'no event "{wait.event}" within {wait.timeout or 0:g} s'
        raise Unfit(fault(FailureCode.WAIT_TIMEOUT, message, path))
    return outcome["event"]["payload"] if "event" in outcome else outcome.get("payload")
