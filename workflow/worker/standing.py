"""Which of several like processes takes up what comes due one by one.

If each of them claims whatever it hears of, runs are spread thinly: every process commits two or three boundaries at a
time, and each commit costs as much as a dozen boundaries. So one process of those that serve the same goes first, and
the others leave it a little time. They take what it has left then: it may be full, at work on something that wants the
interpreter for itself, stopped or dead.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from workflow.conf import conf
from workflow.sql import workers as sql
from workflow.store.ports import Port
from workflow.store.workers import silent_after

YIELD: Final = 0.015
"""Seconds for which a process leaves what comes due to the one that goes first: that one claims once in five
milliseconds while it is at work."""
BEHIND: Final = 0.02
"""Seconds for which the first does, while its handlers want a whole CPU: the others come before it then."""
HOT: Final = 0.9
"""From so much of one CPU on a process counts as wanting a whole one: its threads share one interpreter."""
WINDOW: Final = 0.05
"""Seconds, at least, over which that is measured."""
SETTLED: Final = 1.0
"""Seconds after which a process looks again that has just started: others may have started with it."""


class Standing:
    """`before` and `beside`: how many live processes that serve the same queues and workflows go first, and how many
    there are besides. Without any, or if it does not share, nothing is left to anybody.
    """

    def __init__(self, worker_id: str, *, shares: bool = True) -> None:
        self._worker_id = worker_id
        self.shares = shares
        self.before = 0
        self.beside = 0
        self._hot = False
        self._since = (time.monotonic(), time.process_time())
        """When the CPU's clock was last read, and what it said."""

    async def keep(self, port: Port) -> None:
        """Looks who else is there, as often as processes show that they are alive."""
        if not self.shares:
            return
        await self._look(port)
        await asyncio.sleep(min(SETTLED, conf.HEARTBEAT_INTERVAL))
        while True:
            await self._look(port)
            await asyncio.sleep(conf.HEARTBEAT_INTERVAL)

    def age(self) -> float:
        """Seconds for which what comes due is left to the process that goes first; 0 in that one."""
        return YIELD if self.before else 0.0

    def pause(self) -> float:
        """Seconds to wait before a claim, when something has just come due."""
        if self.beside and not self.before and self._is_hot():
            return BEHIND
        return self.age()

    async def _look(self, port: Port) -> None:
        (rows,) = await port.run([(sql.STANDING, (self._worker_id, silent_after()))])
        ((self.before, self.beside),) = rows

    def _is_hot(self) -> bool:
        then, used = self._since
        now = time.monotonic()
        if now - then >= WINDOW:
            self._since = now, time.process_time()
            self._hot = self._since[1] - used > HOT * (now - then)
        return self._hot
