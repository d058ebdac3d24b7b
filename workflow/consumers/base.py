"""What both sockets have in common: who may open one, what goes out, and when it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs
from uuid import UUID

from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.utils import await_many_dispatch

from workflow.consumers import access
from workflow.consumers.hub import end, hub
from workflow.consumers.reading import Frame

logger = logging.getLogger("workflow")

RECHECK_INTERVAL: float = 10.0
"""Seconds between two looks at whether the user may still watch."""
SEND_TIMEOUT: float = 15.0
"""Seconds that a client gets to take a frame, or to say that it took the last ones."""
OUTBOX: Final = 1_000
OUTBOX_CHARACTERS: Final = 4 * 2**20
"""Frames, and characters of them, that wait for a client; one that lets more pile up is dropped."""
INBOX: Final = 2_000
"""Messages of the hub that wait to be made frames of."""
WINDOW: Final = 200
"""Frames on their way to a client that says what it takes (`?flow=1`, then `{"type": "ack", "n": ...}`): some
servers swallow whatever they are given, so only the client's own word tells how slow it is."""

Message = Mapping[str, Any]


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Subclasses write `relay`, which makes frames of what the hub tells."""

    scope: Mapping[str, Any]
    run_id: UUID | None = None

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        # Not Channels' own: that reads the layer here, and ends the socket when the layer has gone away.
        self.scope = scope
        self.base_send = send
        self.channel_layer = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        try:
            await await_many_dispatch([receive], self.dispatch)
        except StopConsumer:
            pass
        finally:
            await self._end()

    # --- opening and closing --------------------------------------------------------------------

    async def connect(self) -> None:
        kwargs = self.scope.get("url_route", {}).get("kwargs", {})
        self.run_id = kwargs.get("run_id")
        self.query = parse_qs(self.scope.get("query_string", b"").decode("latin1"))
        refused = await access.refusal(self.scope, self.run_id)
        if refused is not None:
            await self.close(refused)
            return
        self._inbox: list[Frame] = []
        self._told = asyncio.Event()
        self.has_lost = False
        self._outbox: deque[str] = deque()
        self._outbox_characters = 0
        self._filled = asyncio.Event()
        self._flow = self.query.get("flow") == ["1"]
        self._on_their_way = 0
        self._acked = asyncio.Event()
        await self.accept()
        hub().watch(self.run_id, self)
        for work in (self.relay(), self._write(), self._keep_checking()):
            self._tasks.append(asyncio.get_running_loop().create_task(self._guarded(work)))

    async def relay(self) -> None:
        """Sends the first frames, then what is told, until cancelled."""
        raise NotImplementedError

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Whatever goes wrong ends the socket: the client comes again, and goes on where it was."""
        try:
            await work
        except Exception:
            logger.warning("a live page is disconnected", exc_info=True)
            await self.drop(1011)

    async def _end(self) -> None:
        if not self._tasks:
            return
        await hub().leave(self.run_id, self)
        await end(self._tasks)

    async def drop(self, code: int) -> None:
        """Closes the socket from this side."""
        if not self._closing:
            self._closing = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SEND_TIMEOUT):
                    await self.close(code)

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_INTERVAL)
            refused = await access.refusal(self.scope, self.run_id)
            if refused is not None:
                await self.drop(refused)
                return

    # --- what comes in --------------------------------------------------------------------------

    def tell(self, messages: Sequence[Frame]) -> None:
        if len(self._inbox) + len(messages) > INBOX:
            self.lost()
        else:
            self._inbox.extend(messages)
        self._told.set()

    def lost(self) -> None:
        self.has_lost = True
        self._told.set()

    async def told(self, until: float | None = None) -> list[Frame]:
        """What the hub has told since the last time. Waits until there is something, or something was lost, or
        until that moment of the loop's clock.
        """
        try:
            async with asyncio.timeout_at(until):
                await self._told.wait()
        except TimeoutError:
            return []
        self._told.clear()
        messages, self._inbox = self._inbox, []
        return messages

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """A client may say `{"type": "refresh"}` or `{"type": "ack", "n": ...}`; nothing else is heard."""
        if self._closing or not text_data or len(text_data) > 1_000:
            return
        try:
            said = json.loads(text_data)
        except (ValueError, RecursionError):  # nested too deep
            return
        if not isinstance(said, dict):
            return
        taken = said.get("n")
        if said.get("type") == "refresh":
            self.lost()
        elif said.get("type") == "ack" and isinstance(taken, int) and taken > 0:
            self._on_their_way = max(self._on_their_way - taken, 0)
            self._acked.set()

    # --- what goes out --------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Frames that wait to be sent."""
        return len(self._outbox)

    async def put(self, frame: Frame) -> None:
        """Queues a frame; a client that has too many of them waiting is dropped."""
        text = json.dumps(frame, ensure_ascii=False, separators=(",", ":"))
        if self._outbox and (
            len(self._outbox) >= OUTBOX or self._outbox_characters + len(text) > OUTBOX_CHARACTERS
        ):
            await self.drop(access.TOO_SLOW)
            return
        self._outbox.append(text)
        self._outbox_characters += len(text)
        self._filled.set()

    async def _write(self) -> None:
        while not self._closing:
            await self._filled.wait()
            self._filled.clear()
            while self._outbox and not self._closing:
                try:
                    async with asyncio.timeout(SEND_TIMEOUT):
                        await self._window()
                        text = self._outbox.popleft()
                        self._outbox_characters -= len(text)
                        await self.send(text_data=text)
                except TimeoutError:
                    await self.drop(access.TOO_SLOW)
                    return

    async def _window(self) -> None:
        if not self._flow:
            return
        while self._on_their_way >= WINDOW:
            self._acked.clear()
            await self._acked.wait()
        self._on_their_way += 1
