"""Pushing history to the channel layer from a worker: in order, batched, and never in anybody's way.

Messages go into a bounded queue that one coroutine empties. A layer that is slow, broken or gone
costs what the queue holds and a log line a minute, not a transition: clients see the gap in `seq`
and fetch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from channels.layers import get_channel_layer

from workflow.progress import BOUND, GROUP, run_group
from workflow.store.settle import HistoryRow, Settlement, history_rows

logger = logging.getLogger("workflow")

CAPACITY = 10_000
LOG_INTERVAL = 60.0
"""Seconds between two log lines about a layer that does not take messages."""


class Pusher:
    """`announce` and `announce_rows` may be called from any thread and return at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._layer = get_channel_layer()
        self._queue: deque[dict[str, Any]] = deque(maxlen=CAPACITY)
        self._filled = asyncio.Event()
        self._logged = -LOG_INTERVAL

    def announce(self, settlements: Sequence[Settlement]) -> None:
        """What settled boundaries appended."""
        if self._layer is not None:
            self.announce_rows([row for settlement in settlements for row in history_rows(settlement)])

    def announce_rows(self, rows: Sequence[HistoryRow]) -> None:
        """What was appended to histories."""
        if self._layer is None or not rows:
            return
        for row in rows:
            self._put(*row)
        self._ring()

    def _put(
        self, run_id: str, seq: int, name: str, node: str | None, at: Any, data: dict[str, Any] | None
    ) -> None:
        when = at.isoformat() if isinstance(at, datetime) else at
        fixed = {
            "type": "workflow.event",
            "name": name,
            "run_id": run_id,
            "seq": seq,
            "node": node,
            "at": when,
        }
        self._queue.append({**(data or {}), **fixed})

    def _ring(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._filled.set)
        except RuntimeError:
            logger.debug("the loop has ended; what is left is not pushed")

    async def run(self) -> None:
        """Empties the queue until cancelled."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._queue:
                await self._send(self._queue.popleft())

    async def drained(self, seconds: float) -> None:
        """Gives what is queued so many seconds to go out."""
        end = self._loop.time() + seconds
        while self._queue and self._loop.time() < end:
            await asyncio.sleep(0.02)

    async def _send(self, message: dict[str, Any]) -> None:
        layer = self._layer
        assert layer is not None
        try:
            async with asyncio.timeout(BOUND):
                await layer.group_send(GROUP, message)
                await layer.group_send(run_group(message["run_id"]), message)
        except Exception as error:
            lost = 1 + len(self._queue)
            self._queue.clear()  # all of it is as old as the layer is slow; clients fetch what they miss
            now = self._loop.time()
            if now - self._logged >= LOG_INTERVAL:
                self._logged = now
                logger.warning("the channel layer takes no messages, %d are dropped: %r", lost, error)
