"""Errors that the engine itself raises, as the plain data that a node's or a run's `error` holds."""

from __future__ import annotations

import json
from typing import Any

from workflow.errors import FailureCode


def compact(value: Any) -> str:
    """JSON text of a value that is already plain JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def fault(code: str, message: str, node: str) -> dict[str, Any]:
    """An error that the engine itself raises: it has no exception type and no traceback."""
    return {"code": code, "message": message, "node": node, "type": None, "traceback": None}


class Unfit(Exception):
    """Something about a node is not as it has to be; `error` is for the node."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error


def loss(last_error: str) -> str:
    """The code of a lost lease, from what the sweep wrote on the job: "<code>: <what it saw>"."""
    code = last_error.split(":", 1)[0].strip()
    if code in (FailureCode.LEASE_ABSOLUTE_CAP, FailureCode.UNIT_TIMEOUT):
        return code
    return FailureCode.LEASE_HEARTBEAT_LOST
