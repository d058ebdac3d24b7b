"""Where a worker process is on its way: at work, retiring, stopping, in a hurry."""

from __future__ import annotations

import asyncio


class Course:
    """Shared by the parts of one process; made on its event loop."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        """It claims nothing more, and lets handlers finish."""
        self.hurry = asyncio.Event()
        """It gives everything back now."""
        self.retiring = False
        """It has done its share: it finishes what it has in hand, and leaves."""
        self.outgrown = False
        """It retires because it has become too big."""
        self.bell = asyncio.Event()
        """There may be something to claim."""

    @property
    def leaving(self) -> bool:
        """Whether nothing more is to be claimed."""
        return self.retiring or self.stopping.is_set()

    async def wait_for_bell(self, seconds: float) -> bool:
        """Returns when it rings, or after so many seconds; whether it rang."""
        try:
            async with asyncio.timeout(seconds):
                return await self.bell.wait()
        except TimeoutError:
            return False
