"""Jobs that are told of by messages, from the side of whoever gets the messages."""

from __future__ import annotations

from collections.abc import Iterable

from workflow.sql import rings as sql
from workflow.sql.arrays import plain
from workflow.store.ports import Port


async def unring(port: Port, jobs: Iterable[str]) -> None:
    """These jobs were not taken by whoever was told of them: somebody else is to be told."""
    await port.run([(sql.UNRING, (plain(jobs),))])


async def echo(port: Port, runs: Iterable[str]) -> None:
    """Units of these runs are over: relays look at once if they have left something to be told of."""
    await port.run([(sql.ECHO, (plain(runs),))])
