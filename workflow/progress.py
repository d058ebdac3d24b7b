"""Pushes history to the channel groups, after the commit that wrote it: a hint, never the truth.

A layer that is missing, broken or slow costs a log line at most, and never more than `BOUND` seconds.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final
from zoneinfo import ZoneInfo

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import connections, transaction
from django.utils import timezone

logger = logging.getLogger("workflow")

BOUND: Final = 2.0
"""Seconds that one push may take."""
GROUP: Final = "workflow"


HistoryRow = tuple[uuid.UUID, int, str, str | None, datetime, dict[str, Any] | None]
"""One entry of a run's history as it was written: run id, seq, name, the node's path, when, and its data."""


def run_group(run_id: object) -> str:
    """The channel group of one run."""
    return f"{GROUP}.run.{run_id}"


def announce(rows: Sequence[HistoryRow], using: str) -> None:
    """Pushes the rows once the transaction of that connection is committed; now, when there is none."""
    if rows:
        messages = [(str(row[0]), _message(row, using)) for row in rows]
        transaction.on_commit(partial(push, messages), using=using, robust=True)


def _message(row: HistoryRow, using: str) -> dict[str, Any]:
    run_id, seq, name, node, at, data = row
    if timezone.is_naive(at):  # USE_TZ=False
        at = timezone.make_aware(at, ZoneInfo(connections[using].timezone_name))
    return {
        **(data or {}),
        "type": "workflow.event",
        "name": name,
        "run_id": str(run_id),
        "seq": seq,
        "node": node,
        "at": at.isoformat(),
    }


def push(messages: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Sends each (run id, message) to the group of all runs and to the run's own. Never raises."""
    try:
        layer = get_channel_layer()
        if layer is not None:
            async_to_sync(_send)(layer, messages)
    except Exception:
        logger.warning("history was not pushed to the channel layer", exc_info=True)


async def _send(layer: Any, messages: Sequence[tuple[str, dict[str, Any]]]) -> None:
    async with asyncio.timeout(BOUND):
        for run_id, message in messages:
            await layer.group_send(GROUP, message)
            await layer.group_send(run_group(run_id), message)
