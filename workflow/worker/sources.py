"""Which jobs a worker process claims: whatever is due, or only what it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from workflow.registry import registry
from workflow.store import claims as claims_store
from workflow.store.claims import Claim
from workflow.store.openings import Openings
from workflow.store.ports import Port
from workflow.worker.units import Units

Claimed = tuple[list[Claim], float | None]
"""What was claimed, and in how many seconds to look again (None: when the bell rings)."""


class Source(Protocol):
    """All methods are called on the process's event loop."""

    strangers: set[tuple[str, int]] | None
    """Versions of workflows that were met and are not served here, where their jobs are left to other workers."""

    def wants(self) -> bool:
        """Whether there may be something to claim."""
        ...

    async def claim(self, port: Port, worker_id: str, room: int, openings: Openings | None = None) -> Claimed:
        """Claims up to `room` jobs."""
        ...

    def launched(self, claimed: Sequence[Claim], units: Units) -> None:
        """What was claimed has been sorted: `units` drive what is driven, the rest is over."""
        ...

    async def background(self, port: Port) -> None:
        """Runs beside the claiming."""
        ...

    def close(self) -> None:
        """Nothing more is claimed."""
        ...

    async def give_up(self, port: Port) -> None:
        """The process leaves: what was wanted and not claimed is others' to do."""
        ...


class Due:
    """Whatever is due in these queues, None for all."""

    def __init__(self, queues: Sequence[str] | None) -> None:
        self._queues = queues
        self.strangers: set[tuple[str, int]] | None = set()

    def wants(self) -> bool:
        return True

    async def claim(self, port: Port, worker_id: str, room: int, openings: Openings | None = None) -> Claimed:
        sparing = [stranger for stranger in self.strangers or () if registry.serves(*stranger) is None]
        return await claims_store.claim(
            port, worker_id, room, self._queues, sparing=sparing, openings=openings
        )

    def launched(self, claimed: Sequence[Claim], units: Units) -> None:
        """Nobody waits for it."""

    async def background(self, port: Port) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nobody has asked for anything."""

    async def give_up(self, port: Port) -> None:
        """What is due is everybody's."""
