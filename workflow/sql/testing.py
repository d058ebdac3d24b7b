"""Moving time, for `workflow.testing.advance`: every time that a decision is made of goes back."""

from __future__ import annotations

from typing import Final

_BACK: Final = "{column} = {column} - %(seconds)s * interval '1 second'"


def _move(table: str, where: str, *columns: str) -> str:
    return f"UPDATE {table} SET {', '.join(_BACK.format(column=c) for c in columns)} WHERE {where}"


ADVANCE: Final = (
    _move("workflow_run", "finished_at IS NULL", "created_at", "updated_at", "started_at"),
    _move("workflow_job", "true", "available_at", "locked_at", "started_at", "rung_at"),
    _move(
        "workflow_node", "status IN ('pending', 'running', 'waiting')", "due_at", "wait_until", "parked_at"
    ),
    _move("workflow_step", "status <> 'completed'", "lease_until", "next_poll_at", "deadline", "parked_at"),
    _move("workflow_event", "true", "at"),
    _move("workflow_pausedqueue", "true", "until", "paused_at"),
    _move("workflow_run", "finished_at IS NOT NULL", "created_at", "updated_at", "started_at", "finished_at"),
)
"""Touches every live row, and finished runs too, so that `prune` sees them age."""
