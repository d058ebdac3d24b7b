"""Which jobs a worker process claims: whatever is due, or only what it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from workflow.registry import registry
from workflow.store import claims as claims_store
from workflow.store import rings
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
    """Whatever has been due for `age()` seconds in these queues, None for all."""

    def __init__(self, queues: Sequence[str] | None, age: Callable[[], float]) -> None:
        self._queues = queues
        self._age = age
        self.strangers: set[tuple[str, int]] | None = set()

    def wants(self) -> bool:
        return True

    async def claim(self, port: Port, worker_id: str, room: int, openings: Openings | None = None) -> Claimed:
        sparing = [stranger for stranger in self.strangers or () if registry.serves(*stranger) is None]
        age = self._age()
        claimed, due = await claims_store.claim(
            port, worker_id, room, self._queues, sparing=sparing, openings=openings, age=age
        )
        return claimed, None if due is None else due + age

    def launched(self, claimed: Sequence[Claim], units: Units) -> None:
        """Nobody waits for it."""

    async def background(self, port: Port) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nobody has asked for anything."""

    async def give_up(self, port: Port) -> None:
        """What is due is everybody's."""


@dataclass(slots=True)
class _Asked:
    """A job that is asked for. `answers` are those of everybody who waits for it."""

    at: float
    """When to look, on the loop's clock."""
    answers: list[asyncio.Future[bool]] = field(default_factory=list)
    looks: int = 0


class Asked:
    """Only the jobs that somebody asks for, by id. Made on the event loop; `ring` makes the claimer look."""

    LOOKS: Final = 8
    """How often a job is looked at that somebody has locked. After that, it is asked for again some time."""
    FIRST_PAUSE: Final = 0.01
    """Seconds until the second look; doubled each time."""

    strangers: set[tuple[str, int]] | None = None

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._asked: dict[str, _Asked] = {}
        self._claimed: dict[str, list[asyncio.Future[bool]]] = {}
        """By lease token: who waits for the unit."""
        self._closed = False
        self._ended: set[str] = set()
        """Runs of which a unit has ended since relays were last woken."""
        self._has_ended = asyncio.Event()
        self.refused: set[str] = set()
        """Jobs that were asked for too late: others are to be told of them."""

    async def serve(self, job_id: str) -> bool:
        """Claims a job, and returns when its unit is over. False at once where there is nothing to claim: it is gone,
        in other hands, not due or in a paused queue, or this process takes nothing more.
        """
        if self._closed:
            self.refused.add(job_id)
            return False
        answer: asyncio.Future[bool] = self._loop.create_future()
        asked = self._asked.setdefault(job_id, _Asked(self._loop.time()))
        asked.answers.append(answer)
        self._ring()
        return await answer

    def wants(self) -> bool:
        now = self._loop.time()
        return any(asked.at <= now for asked in self._asked.values())

    async def claim(self, port: Port, worker_id: str, room: int, openings: Openings | None = None) -> Claimed:
        now = self._loop.time()
        jobs = [job for job, asked in self._asked.items() if asked.at <= now][:room]
        claimed, left = await claims_store.claim_asked(port, worker_id, jobs, openings)
        for claim in claimed:
            self._claimed[claim.token] = self._asked.pop(claim.job_id).answers
        for job in set(jobs) & self._asked.keys():
            asked = self._asked[job]
            if job in left and asked.looks < self.LOOKS:
                pause = self.FIRST_PAUSE * 2**asked.looks
                asked.looks += 1
                asked.at = self._loop.time() + pause
                self._loop.call_later(pause + 0.001, self._ring)
            else:
                _tell(self._asked.pop(job).answers, False)
        return claimed, 0.0 if self.wants() else None

    def launched(self, claimed: Sequence[Claim], units: Units) -> None:
        for claim in claimed:
            driving = units.driving(claim.token)
            if driving is None:
                self._over(claim)
            else:
                driving.add_done_callback(partial(self._driven, claim))

    def _driven(self, claim: Claim, driving: asyncio.Task[None]) -> None:
        self._over(claim)

    def _over(self, claim: Claim) -> None:
        if claim.run_id is not None:
            self._ended.add(claim.run_id)
            self._has_ended.set()
        _tell(self._claimed.pop(claim.token, []), True)

    async def background(self, port: Port) -> None:
        """A worker that claims what is due looks again whenever a unit has ended; here relays are told to look."""
        while True:
            await self._has_ended.wait()
            runs, self._ended = self._ended, set()
            self._has_ended.clear()
            await rings.echo(port, runs)

    def close(self) -> None:
        """Nothing more is claimed; whoever waits for what was not taken is told."""
        self._closed = True
        for job, asked in self._asked.items():
            self.refused.add(job)
            _tell(asked.answers, False)
        self._asked.clear()

    async def give_up(self, port: Port) -> None:
        """Has others told of what was refused."""
        refused, self.refused = self.refused, set()
        if refused:
            await rings.unring(port, refused)


def _tell(answers: Sequence[asyncio.Future[bool]], taken: bool) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_result(taken)
