"""Pausing queues. Takes part in the caller's transaction; in effect, for workers, once that is committed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import connections

from workflow.results import PausedQueueInfo
from workflow.sql import pauses as sql


def pause(
    using: str, queue: str, until: datetime | None, seconds: float | None, reason: str, by: str | None
) -> PausedQueueInfo | None:
    """Pauses the queue until a moment, for so many seconds, or until it is resumed; replaces an earlier pause.

    None, and nothing is written, when that moment is not in the future by the database's clock.
    """
    parameters = {"queue": queue, "until": until, "seconds": seconds, "reason": reason, "by": by}
    found = _rows(using, sql.PAUSE, parameters)
    return _info(found[0]) if found else None


def resume(using: str, queue: str) -> bool:
    """Ends the queue's pause; False when it was not paused."""
    return any(row[0] for row in _rows(using, sql.RESUME, {"queue": queue}))


def paused(using: str) -> list[PausedQueueInfo]:
    """The queues that are paused now, by name."""
    return [_info(row) for row in _rows(using, sql.LIST, {})]


def _rows(using: str, statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _info(row: tuple[Any, ...]) -> PausedQueueInfo:
    queue, until, reason, by, paused_at = row[:5]
    return PausedQueueInfo(queue=queue, until=until, reason=reason, by=by, paused_at=paused_at)
