"""What a wait stage parks for, and what its outcome says. Pure functions of the definition and the rows."""

from __future__ import annotations

import json
from typing import Any

from workflow.definitions import WaitFor
from workflow.definitions.rules import MAX_EVENT, did_you_mean
from workflow.errors import FailureCode
from workflow.plan.boundary import Park
from workflow.plan.faults import Unfit, compact, fault


def park(wait: WaitFor, state: dict[str, Any], answered: str | None, path: str) -> Park:
    """What to wait for. `answered` is what a `correlate` function returned. Raises `Unfit`."""
    if not isinstance(wait.correlate, str):
        return Park(wait.event, answered, wait.timeout)
    try:
        correlation = correlation_of(value_at(wait.correlate, state))
    except ValueError as error:
        message = f'correlate="{wait.correlate}" in the state: {error}'
        raise Unfit(fault(FailureCode.ACTION_FAILED, message, path)) from None
    return Park(wait.event, correlation, wait.timeout)


def value_at(key: object, state: dict[str, Any]) -> Any:
    """What stands under a key of the state. Raises ValueError when there is none."""
    if key in state:
        return state[key]
    hint = did_you_mean(key, state)
    if isinstance(key, str) and "." in key:
        names = "".join(f'["{name}"]' for name in key.split("."))
        hint = f"; nested values need a function: lambda state: state{names}"
    raise ValueError(f"there is no such key{hint}")


def correlation_of(value: Any) -> str:
    """What a wait is to match: a string that `publish` takes, or the JSON text of a number or a boolean.

    Raises ValueError for what no event could ever have.
    """
    if value is None or isinstance(value, dict | list):
        raise ValueError(f"a value of type {type(value).__name__} cannot be the correlation of an event")
    return published_text(value if isinstance(value, str) else compact(value), "a correlation")


def published_text(value: str, what: str) -> str:
    """A text that `publish` takes, as an event's type or its correlation. Raises ValueError for any other."""
    if not value:
        raise ValueError(f"{what} must not be empty")
    if len(value) > MAX_EVENT:
        raise ValueError(f"{what} must have at most {MAX_EVENT} characters, not {len(value):,}")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{what} must not hold a NUL character or half a surrogate pair: {value!a}")
    return value


def missed(event: str, correlate: object, correlation: str | None, timeout: float | None) -> str:
    """What a wait says whose time was up. The correlation stands under its key of the state, where it has one: so
    whoever masks that key in texts masks it here too.
    """
    about = ""
    if correlation is not None:
        key = f"{correlate}=" if isinstance(correlate, str) else ""
        about = f" about {key}{json.dumps(correlation, ensure_ascii=False)}"
    within = "in time" if timeout is None else f"within {timeout:g} s"
    return f'no event "{event}"{about} {within}'


def output_of(wait: WaitFor, outcome: dict[str, Any], path: str) -> Any:
    """What a wait without `pick` gives. Raises `Unfit` when the time was up."""
    if outcome.get("timeout"):
        message = missed(wait.event, wait.correlate, outcome.get("correlation"), wait.timeout)
        raise Unfit(fault(FailureCode.WAIT_TIMEOUT, message, path))
    return outcome["event"]["payload"] if "event" in outcome else outcome.get("payload")
