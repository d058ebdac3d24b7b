"""The socket of one run."""

from __future__ import annotations

import asyncio

from channels.db import database_sync_to_async

from workflow import history
from workflow.consumers import access, reading
from workflow.consumers.base import LiveConsumer
from workflow.consumers.hub import hub, texts_in
from workflow.consumers.reading import Frame
from workflow.errors import RunNotFound
from workflow.redact import masks

REFRESH_INTERVAL: float = 1.0
"""Seconds between two snapshots that one client gets."""
MAX_SEQ = history.MAX_SEQ


class RunConsumer(LiveConsumer):
    """A snapshot, or what came after `?after=SEQ`; then every entry, in order, each once."""

    async def relay(self) -> None:
        assert self.run_id is not None
        self._secrets: frozenset[str] = frozenset()
        self._secrets_at = -1
        loop = asyncio.get_running_loop()
        last = await self._begin()
        hub().missing(self.run_id, last)  # looks once by itself: the hub may have been deaf until now
        refresh_at = loop.time()
        while True:
            messages = await self.told(refresh_at if self.has_lost else None)
            last = await self._send_on(messages, last)
            if self.has_lost and loop.time() >= refresh_at:
                self.has_lost = False
                last = max(last, await self._snapshot())
                refresh_at = loop.time() + REFRESH_INTERVAL

    async def _send_on(self, messages: list[Frame], last: int) -> int:
        """Sends what is next in order; the last entry that was sent."""
        assert self.run_id is not None
        for message in messages:
            seq: int = message["seq"]
            if seq > last + 1:
                hub().missing(self.run_id, last)
                break
            if seq == last + 1:
                await self.put(await self._masked(message))
                last = seq
        return last

    async def _begin(self) -> int:
        after = self._after()
        if after is None:
            return await self._snapshot()
        assert self.run_id is not None
        try:
            frames = await database_sync_to_async(reading.replay)(self.run_id, after)
        except RunNotFound:
            frames = None
        if frames is None:
            return await self._snapshot()
        for frame in frames:
            await self.put(frame)
        last: int = frames[-1]["seq"] if frames else after
        return last

    def _after(self) -> int | None:
        return history.place(self.query.get("after", [""])[0])

    async def _snapshot(self) -> int:
        assert self.run_id is not None
        frame = await database_sync_to_async(reading.snapshot)(self.run_id)
        if frame is None:
            await self.drop(access.NO_SUCH_RUN)
            return 0
        await self.put(frame)
        seq: int = frame["seq"]
        return seq

    async def _masked(self, message: Frame) -> Frame:
        """The message as it may be shown. A text may quote what has come into the run's data since."""
        if not masks():
            return message
        assert self.run_id is not None
        if texts_in([message]) and self._secrets_at < message["seq"]:
            self._secrets = await database_sync_to_async(history.secrets_of_run)(self.run_id)
            self._secrets_at = message["seq"]
        return reading.masked(message, self._secrets)
