"""What the log says of runs that fail: one line for each outcome, after it was settled and never before."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from workflow import states
from workflow.failures import told
from workflow.plan import Boundary
from workflow.redact import redact_text, secrets_of

logger = logging.getLogger("workflow")

LONGEST: Final = 500
"""Characters of a message; the whole of it is on the run."""


def tell(run_id: str, workflow: str, input: Any, state: Any, boundary: Boundary) -> None:  # noqa: A002
    """Says that a run has failed or turns back, and which compensations have failed for good.

    `input` and `state` are the run's: what is secret in them is masked in the message, as it is everywhere.
    """
    if boundary.run_error is not None and boundary.run_target in (states.FAILED, states.COMPENSATING):
        error = json.loads(boundary.run_error)
        end = "failed" if boundary.run_target == states.FAILED else "turns back"
        _say(run_id, workflow, input, state, f"{end}: {error['node'] or 'the run'}", error)
    for entry in boundary.history:
        if entry.name == states.EVENT_ACTION_COMPENSATION_FAILED:
            data = json.loads(entry.data or "{}")
            step = f", step {data['step']!r}" if "step" in data else ""
            _say(run_id, workflow, input, state, f"cannot undo {entry.node}{step}", data["error"])


def _say(
    run_id: str,
    workflow: str,
    input: Any,  # noqa: A002
    state: Any,
    what: str,
    error: dict[str, Any],
) -> None:
    secrets = secrets_of({"input": input}, state, workflow=workflow)
    message = redact_text(told(error), secrets=secrets, workflow=workflow).strip()
    first = message.splitlines()[0] if message else ""
    shown = "".join(char if char.isprintable() else " " for char in first)[:LONGEST]
    logger.warning("run %s of %s %s: %s: %s", run_id, workflow, what, error["code"], shown)
