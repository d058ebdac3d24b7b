"""The socket of all runs."""

from __future__ import annotations

import asyncio

from channels.db import database_sync_to_async

from workflow.consumers import reading
from workflow.consumers.base import LiveConsumer

RATE = 200
"""Entries that one client gets in a second; more than that nobody can see."""
RESYNC_INTERVAL = 2.0
"""Seconds between two times that one client is told to look again: when many runs are busy, something is left
out all the time."""


class RunsConsumer(LiveConsumer):
    """The newest runs, then what happens in any run, and `resync` for what was left out."""

    async def relay(self) -> None:
        await self.put(await database_sync_to_async(reading.recent)())
        loop = asyncio.get_running_loop()
        allowed, since, resync_at = float(RATE), loop.time(), loop.time()
        while True:
            messages = await self.told(resync_at if self.has_lost else None)
            now = loop.time()
            allowed = min(float(RATE), allowed + (now - since) * RATE)
            since = now
            take = int(min(allowed, len(messages)))
            allowed -= take
            for message in messages[:take]:
                await self.put(reading.brief(message))
            self.has_lost = self.has_lost or take < len(messages)
            if self.has_lost and now >= resync_at:
                self.has_lost = False
                resync_at = now + RESYNC_INTERVAL
                await self.put({"type": "resync"})
