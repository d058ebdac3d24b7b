"""One process's ear: hears that runs have new history, reads it, and tells the sockets that watch them.

What is heard is a hint only, whoever says it: a message of the channel layer, a notification of PostgreSQL's,
or the clock, which has every watched run looked at again after a while. What is told is the history itself: a
message that is next in its run's order goes straight on, anything else is read from the table. So nothing is
told twice or left out, however many hints are lost, repeated or late.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Sequence
from itertools import groupby
from typing import Any, Final, Protocol
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
from django.db import connections

from workflow import progress
from workflow.conf import conf
from workflow.consumers.reading import Frame, parsed
from workflow.sql import live as sql
from workflow.sql.arrays import plain
from workflow.store.poolers import ais_direct
from workflow.store.ports import AsyncPort, parameters_of

logger = logging.getLogger("workflow")

FLOOR: Final = 5.0
"""Seconds after which every watched run is looked at though nothing was heard of it."""
POLL: Final = 1.0
"""The same while nothing can be heard: a pooler takes LISTEN and stays silent."""
PACE: Final = 0.05
"""Seconds between two readings."""
BATCH: Final = 500
"""Runs of one reading, and entries of one run in it."""
SEEN: Final = 10_000
"""Runs that the socket of all runs remembers where it is in."""
REJOIN: Final = 3_600.0
"""Seconds after which the layer's groups are joined again; they forget members after a day."""


class Watcher(Protocol):
    """What the hub tells. Both return at once."""

    def tell(self, messages: Sequence[Frame]) -> None:
        """Entries of one run, in order. A watcher of one run may get some that it has had already."""

    def lost(self) -> None:
        """There may have been others. Only a watcher of all runs is told so."""


class Hub:
    """Of one event loop. It works, and holds connections, while somebody watches."""

    def __init__(self) -> None:
        self._watchers: dict[str, set[Watcher]] = {}
        self._watchers_of_all: set[Watcher] = set()
        self._cursors: dict[str, int] = {}
        """Of watched runs: up to which entry their watchers were told."""
        self._seen: OrderedDict[str, int] = OrderedDict()
        """The same for the watchers of all."""
        self._wanted: dict[str, int] = {}
        """Runs to be read, and after which entry."""
        self._wake = asyncio.Event()
        self._regroup = asyncio.Event()
        self._ears: set[asyncio.Task[Any] | None] = set()
        """Tasks that hear whatever anybody says."""
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving = asyncio.Event()
        self._port = AsyncPort(_parameters, "workflow live")

    @property
    def hears(self) -> bool:
        """Whether somebody would tell of what is new; else the clock has to."""
        return bool(self._ears)

    # --- watchers -------------------------------------------------------------------------------

    def watch(self, run_id: UUID | None, watcher: Watcher) -> None:
        """From now on the watcher is told of what happens in the run; None is all runs."""
        if run_id is None:
            self._watchers_of_all.add(watcher)
        else:
            self._watchers.setdefault(str(run_id), set()).add(watcher)
        self._regroup.set()
        if not self._tasks:
            self._start()

    async def leave(self, run_id: UUID | None, watcher: Watcher) -> None:
        """The opposite of `watch`."""
        self._watchers_of_all.discard(watcher)
        watchers = self._watchers.get(str(run_id), set())
        watchers.discard(watcher)
        if not watchers:
            self._watchers.pop(str(run_id), None)
            self._cursors.pop(str(run_id), None)
        if not self._watchers_of_all:
            self._seen.clear()
        self._regroup.set()
        if not self._watchers and not self._watchers_of_all:
            await self._stop()

    def missing(self, run_id: UUID, after: int) -> None:
        """A watcher of the run has its entries up to `after`, and needs the next ones."""
        key = str(run_id)
        if (
            key not in self._watchers
        ):  # it has just left, and nobody would ever take the run off the list again
            return
        self._cursors[key] = min(self._cursors.get(key, after), after)
        self._want(key, after)

    # --- hearing --------------------------------------------------------------------------------

    def heard(self, run_id: str, first: int, last: int, message: Frame | None = None) -> None:
        """The run has entries from `first` to `last`; `message` is that entry, when it is only one."""
        known = []
        if run_id in self._watchers and run_id in self._cursors:
            known.append(self._cursors[run_id])
        if self._watchers_of_all and run_id in self._seen:
            known.append(self._seen[run_id])
        if run_id not in self._watchers and not self._watchers_of_all:
            return
        after = min(known, default=first - 1)
        if last <= after:
            return
        if message is not None and run_id not in self._wanted and first == after + 1:
            self._tell(run_id, [message])
        else:
            self._want(run_id, after)

    def _heard_payload(self, payload: str) -> None:
        ranges = progress.parse(payload)
        if ranges is None:
            self._look_at_all()
            return
        for run_id, (first, last) in ranges.items():
            self.heard(run_id, first, last)

    def _heard_message(self, message: Frame) -> None:
        run_id, seq = message.get("run_id"), message.get("seq")
        if isinstance(run_id, str) and isinstance(seq, int):
            self.heard(run_id, seq, seq, message)

    def _look_at_all(self) -> None:
        """Whatever may have happened unheard."""
        for run_id, after in self._cursors.items():
            self._want(run_id, after)
        for watcher in list(self._watchers_of_all):
            watcher.lost()

    def _want(self, run_id: str, after: int) -> None:
        self._wanted[run_id] = min(self._wanted.get(run_id, after), after)
        self._wake.set()

    # --- telling --------------------------------------------------------------------------------

    def _tell(self, run_id: str, messages: Sequence[Frame]) -> None:
        last: int = messages[-1]["seq"]
        if run_id in self._watchers:
            self._cursors[run_id] = max(self._cursors.get(run_id, 0), last)
            for watcher in list(self._watchers[run_id]):
                watcher.tell(messages)
        if self._watchers_of_all:
            seen = self._seen.get(run_id, 0)
            new = [message for message in messages if message["seq"] > seen]
            if new:
                self._seen[run_id] = last
                self._seen.move_to_end(run_id)
                while len(self._seen) > SEEN:
                    self._seen.popitem(last=False)
                for watcher in list(self._watchers_of_all):
                    watcher.tell(new)

    async def _read(self) -> None:
        """Reads what is wanted from the table, as much as one reading takes."""
        wanted = dict(list(self._wanted.items())[:BATCH])
        for run_id in wanted:
            del self._wanted[run_id]
        parameters = (plain(wanted), plain(wanted.values()), BATCH)
        try:
            rows = (await self._port.run([(sql.TAIL, parameters)]))[0]
        except BaseException:
            for run_id, after in wanted.items():
                self._want(run_id, after)
            raise
        for run_id, entries in groupby(rows, key=lambda row: row[0]):
            messages = [_message(row) for row in entries]
            if len(messages) == BATCH:
                self._want(run_id, messages[-1]["seq"])
            self._tell(run_id, messages)

    async def _read_on(self, leaving: asyncio.Event) -> None:
        pause = 0.5
        while not leaving.is_set():
            try:
                async with asyncio.timeout(FLOOR if self.hears else POLL):
                    await self._wake.wait()
            except TimeoutError:
                for run_id, after in self._cursors.items():
                    self._want(run_id, after)
            self._wake.clear()
            try:
                while self._wanted and not leaving.is_set():
                    await self._read()
                    await asyncio.sleep(PACE)
                pause = 0.5
            except Exception as error:
                unforeseen = not isinstance(error, psycopg.Error | OSError)
                log = logger.error if unforeseen else logger.info
                log("history can't be read, trying again in %.1f s: %s", pause, error, exc_info=unforeseen)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 30.0)

    # --- the background -------------------------------------------------------------------------

    def _start(self) -> None:
        layer = progress.layer()
        self._leaving = asyncio.Event()
        work: list[Coroutine[Any, Any, None]] = [self._read_on(self._leaving)]
        if layer is not None:
            work += [self._hear_layer(layer)]
        if not progress.reaches_others(layer):
            work += [self._hear_postgres()]
        self._tasks = [asyncio.get_running_loop().create_task(each) for each in work]

    async def _stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        # The reader is let finish: cancelled while it connects, it would leave a connection behind.
        self._leaving.set()
        self._wake.set()
        await asyncio.wait(tasks[:1], timeout=2.0)
        await end(tasks)
        if not self._tasks:  # nobody came meanwhile
            self._wanted.clear()
            await self._port.close()

    async def _hear_postgres(self) -> None:
        """Listens until cancelled; connects again, with a growing pause, whenever the connection is lost."""
        pause = 0.5
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    **{"application_name": "workflow live listener", **_parameters()},
                    autocommit=True,
                )
                async with connection:
                    if not await ais_direct(connection):
                        logger.warning("a pooler stands before PostgreSQL: live pages look every %g s", POLL)
                        return
                    await connection.execute(f"LISTEN {progress.CHANNEL}")
                    self._ears.add(asyncio.current_task())
                    self._look_at_all()
                    pause = 0.5
                    while True:
                        async for notification in connection.notifies(timeout=30.0):
                            self._heard_payload(notification.payload)
                        await connection.execute("SELECT 1")  # notices a peer that vanished without a word
            except (psycopg.Error, OSError) as error:
                logger.info("not listening for history, trying again in %.1f s: %s", pause, error)
            finally:
                self._ears.discard(asyncio.current_task())
            await asyncio.sleep(pause)
            pause = min(pause * 2, 30.0)

    async def _hear_layer(self, layer: Any) -> None:
        """Reads one channel of the layer, which is a member of the groups that are watched."""
        pause = 1.0
        outside = progress.reaches_others(layer)
        while True:
            grouping: asyncio.Task[None] | None = None
            try:
                # Of this task alone: one that leaves and one that comes may be at work side by side for a moment.
                channel: str = await layer.new_channel("workflow")
                joined: set[str] = set()
                await self._group(layer, channel, joined)
                grouping = asyncio.get_running_loop().create_task(self._keep_grouped(layer, channel, joined))
                if outside:
                    self._ears.add(asyncio.current_task())
                self._look_at_all()
                while True:
                    self._heard_message(await _either(layer.receive(channel), grouping))
                    pause = 1.0
            except Exception as error:
                progress.gate_of(layer).failed(error, 0)
            finally:
                self._ears.discard(asyncio.current_task())
                if grouping is not None:
                    await end([grouping])
            await asyncio.sleep(pause)
            pause = min(pause * 2, 30.0)

    async def _keep_grouped(self, layer: Any, channel: str, joined: set[str]) -> None:
        try:
            while True:
                try:
                    async with asyncio.timeout(REJOIN):
                        await self._regroup.wait()
                except TimeoutError:
                    joined.clear()
                await self._group(layer, channel, joined)
        finally:
            for group in joined:
                async with asyncio.timeout(progress.BOUND):
                    await layer.group_discard(group, channel)

    async def _group(self, layer: Any, channel: str, joined: set[str]) -> None:
        """Joins the groups of what is watched, and leaves the others."""
        self._regroup.clear()
        wished = {progress.run_group(run_id) for run_id in self._watchers}
        if self._watchers_of_all:
            wished.add(progress.GROUP)
        for group in wished - joined:
            await layer.group_add(group, channel)
            joined.add(group)
        for group in joined - wished:
            await layer.group_discard(group, channel)
            joined.discard(group)


def _message(row: tuple[Any, ...]) -> Frame:
    run, seq, name, node, at, data = row
    return progress.message(run, seq, name, node, at, parsed(data))


async def end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancels tasks and waits for their end; again and again, since a client of Redis may swallow the first."""
    left = list(tasks)
    for _ in range(10):
        for task in left:
            task.cancel()
        left = [task for task in left if not task.done()]
        if not left:
            return
        await asyncio.wait(left, timeout=0.5)


async def _either(receiving: Coroutine[Any, Any, Frame], other: asyncio.Task[None]) -> Frame:
    """What is received; what the other task, which never ends by itself, raises."""
    task = asyncio.get_running_loop().create_task(receiving)
    try:
        await asyncio.wait([task, other], return_when=asyncio.FIRST_COMPLETED)
        if other.done():
            other.result()
        return task.result()
    finally:
        task.cancel()


def _parameters() -> dict[str, Any]:
    return parameters_of(connections[conf.DATABASE])


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    """The hub of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _hubs.get(loop)
    if found is None:
        found = _hubs[loop] = Hub()
    return found


def texts_in(messages: Iterable[Frame]) -> bool:
    """Whether any of the messages carries something that somebody wrote."""
    return any(key in message for message in messages for key in ("error", "message", "reason", "fields"))
