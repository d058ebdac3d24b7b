"""Errors that the engine itself raises, as the plain data that a node's or a run's `error` holds."""

from __future__ import annotations

import json
from typing import Any, Final

from workflow.errors import FailureCode


def compact(value: Any) -> str:
    """JSON text of a value that is already plain JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def fault(code: str, message: str, node: str | None) -> dict[str, Any]:
    """An error that the engine itself raises: it has no exception type and no traceback.

    `node` is a path; None for what befalls the run as a whole.
    """
    return {"code": code, "message": message, "node": node, "type": None, "traceback": None}


class Unfit(Exception):
    """Something about a node is not as it has to be; `error` is for the node."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error


_LOSSES: Final = (
    FailureCode.LEASE_HEARTBEAT_LOST,
    FailureCode.LEASE_ABSOLUTE_CAP,
    FailureCode.UNIT_TIMEOUT,
)


def loss(last_error: str) -> FailureCode | None:
    """How a lease was lost, from what stands on the job ("<code>: <what was seen>"); None when it was not."""
    if not last_error:  # as nearly always
        return None
    return next((code for code in _LOSSES if last_error.startswith(code)), None)


def seen(last_error: str) -> str:
    """The same in brackets, without the code of a loss, which the error of the attempt has already; or nothing."""
    code, _, what = last_error.partition(": ")
    told = last_error if loss(code) is None else what
    return f" ({told})" if told else ""


UNBEGUN: Final = "UNBEGUN"
"""What a job says first that was given back with its run begun, but none of its handlers."""


def is_unbegun(last_error: str) -> bool:
    """Whether the attempts that are `running` have not begun: nothing of them is lost, and they count as they are."""
    return last_error.startswith(UNBEGUN)


def reason(error: dict[str, Any]) -> str:
    """What a job says of the attempt that it has failed last."""
    return f"{error.get('code')}: {error.get('message')}"[:1000]
