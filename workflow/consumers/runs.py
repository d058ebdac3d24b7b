"""The socket of all runs."""

from __future__ import annotations

import asyncio
from uuid import UUID

from channels.db import database_sync_to_async

from workflow.conf import conf
from workflow.consumers import access, base, reading
from workflow.consumers.base import LiveConsumer
from workflow.consumers.reading import Frame

RATE = 200
"""Entries that one client gets in a second; more than that nobody can see."""
RESYNC_INTERVAL = 2.0
"""Seconds between two times that one client is told to look again: when many runs are busy, something is left
out all the time."""


class RunsConsumer(LiveConsumer):
    """The newest runs, then what happens in any run, and `resync` for what was left out."""

    async def relay(self) -> None:
        self._known: dict[str, bool] = {}
        self._known_until = 0.0
        await self._snapshot()
        loop = asyncio.get_running_loop()
        allowed, since, resync_at = float(RATE), loop.time(), loop.time()
        while True:
            messages = await self.told(resync_at if self.has_lost else None)
            now = loop.time()
            allowed = min(float(RATE), allowed + (now - since) * RATE)
            since = now
            take = int(min(allowed, len(messages)))
            allowed -= take
            for message in await self._seen(messages[:take]):
                await self.put(reading.brief(message))
            self.has_lost = self.has_lost or take < len(messages)
            if self.has_lost and now >= resync_at:
                self.has_lost = False
                resync_at = now + RESYNC_INTERVAL
                await self.put({"type": "resync"})

    async def _snapshot(self) -> None:
        frame = await database_sync_to_async(reading.recent)()
        seen = await access.viewable(self.scope, [UUID(run["id"]) for run in frame["runs"]])
        frame["runs"] = [run for run in frame["runs"] if UUID(run["id"]) in seen]
        await self.put(frame)

    async def _seen(self, messages: list[Frame]) -> list[Frame]:
        """Those of runs that the user may see; asked once a run, and again after as long as the rest is."""
        if conf.CAN_VIEW_RUN is None:
            return messages
        now = asyncio.get_running_loop().time()
        if now >= self._known_until:
            self._known.clear()
            self._known_until = now + base.RECHECK_INTERVAL
        unknown = {message["run_id"] for message in messages} - self._known.keys()
        seen = await access.viewable(self.scope, map(UUID, unknown))
        self._known.update((run_id, UUID(run_id) in seen) for run_id in unknown)
        return [message for message in messages if self._known[message["run_id"]]]
