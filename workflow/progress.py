"""Tells people of history, after the commit that wrote it: a hint, never the truth.

Two ways. A channel layer that other processes read (Redis) gets every entry as a message. Without one,
PostgreSQL's own channel `workflow_history` is told which runs have new entries, and the web processes
read those from the table (see docs/decisions/live-without-redis.md). A layer that is missing, broken or
slow costs a log line a minute and nothing else: whoever misses an entry sees the gap in `seq`, or looks
by itself after a few seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from asgiref.sync import async_to_sync
from channels.layers import InMemoryChannelLayer, get_channel_layer
from django.db import DatabaseError, connections, transaction

from workflow import transitions
from workflow.plan import HistoryRow
from workflow.times import aware

logger = logging.getLogger("workflow")

BOUND: Final = 1.0
"""Seconds that a layer gets to take what it is given."""
FIRST_REST: Final = 5.0
LONGEST_REST: Final = 60.0
"""Seconds that a layer which did not take a message is left alone for; doubled each time."""
LOG_INTERVAL: Final = 60.0
"""Seconds between two log lines about a layer."""
GROUP: Final = "workflow"

CHANNEL: Final = "workflow_history"
"""PostgreSQL's channel. A payload is `<run id>:<first seq>-<last seq>`, several with blanks between, or `*`."""
NOTIFY: Final = f"SELECT set_config('synchronous_commit', 'off', true), pg_notify('{CHANNEL}', %s)"
"""One statement, one transaction. It waits for no disk: whoever notifies holds, until its commit is done, a lock
that every other notifying transaction of the database needs, those that add jobs among them."""
MANY: Final = "*"
"""More runs than a few notifications can name."""
MAX_NOTIFICATIONS: Final = 4
_MAX_PAYLOAD: Final = 7_900
"""Bytes; PostgreSQL takes less than 8,000."""

Range = tuple[int, int]
"""First and last seq of what was appended."""


def run_group(run_id: object) -> str:
    """The channel group of one run."""
    return f"{GROUP}.run.{run_id}"


def message(
    run_id: object, seq: int, name: str, node: str | None, at: object, data: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A history entry as it is pushed: the contract's names, and beside them what the entry's data hold."""
    return {
        **(data or {}),
        "type": "workflow.event",
        "name": name,
        "run_id": str(run_id),
        "seq": seq,
        "node": node,
        "at": at.isoformat() if isinstance(at, datetime) else at,
    }


# --- the channel layer --------------------------------------------------------------------------


def layer() -> Any:
    """The default channel layer, or None when there is none, or none that could be made."""
    try:
        return get_channel_layer()
    except Exception as error:  # a backend that can't be imported or configured
        gate_of(_unusable).failed(error, 0)
        return None


def reaches_others(channel_layer: Any) -> bool:
    """Whether a layer is there and other processes can read from it."""
    return channel_layer is not None and not isinstance(channel_layer, InMemoryChannelLayer)


def has_readers(channel_layer: Any) -> bool:
    """False when nobody can be there to read. The in-memory layer knows its readers; it costs one look."""
    if isinstance(channel_layer, InMemoryChannelLayer):
        return bool(channel_layer.groups)
    return channel_layer is not None


class Gate:
    """Keeps a layer that takes nothing from being asked again and again, and its failures out of the log."""

    def __init__(self) -> None:
        self._shut_until = 0.0
        self._rest = FIRST_REST
        self._logged = -LOG_INTERVAL
        self.lost = 0

    @property
    def open(self) -> bool:
        return time.monotonic() >= self._shut_until

    def passed(self) -> None:
        """The layer took something."""
        self._rest = FIRST_REST

    def failed(self, error: BaseException, lost: int) -> None:
        """The layer did not take `lost` messages; it is left alone for a while."""
        now = time.monotonic()
        self._shut_until = now + self._rest
        self._rest = min(self._rest * 2, LONGEST_REST)
        self.lost += lost
        if now - self._logged >= LOG_INTERVAL:
            self._logged = now
            why = repr(error) if str(error) else f"{type(error).__name__} (no answer in {BOUND:g} s)"
            logger.warning("the channel layer takes no messages, %d were dropped: %s", self.lost, why)
            self.lost = 0


class _Unusable:
    """Stands for a layer that could not even be made."""


_unusable: Final = _Unusable()
_gates: WeakKeyDictionary[Any, Gate] = WeakKeyDictionary()


def gate_of(channel_layer: Any) -> Gate:
    """The gate of a layer in this process."""
    gate = _gates.get(channel_layer)
    if gate is None:
        gate = _gates[channel_layer] = Gate()
    return gate


async def send(channel_layer: Any, messages: Iterable[dict[str, Any]]) -> None:
    """Sends messages, in order, to the group of all runs and to the run's own. Raises what the layer raises,
    and TimeoutError once `BOUND` is over.
    """
    async with asyncio.timeout(BOUND):
        for one in messages:
            await channel_layer.group_send(GROUP, one)
            await channel_layer.group_send(run_group(one["run_id"]), one)


# --- PostgreSQL's channel -----------------------------------------------------------------------


def payloads(ranges: Mapping[str, Range]) -> list[str]:
    """What to notify of runs and their new entries: a few payloads at most, or that there are many."""
    found: list[str] = []
    line = ""
    for run_id, (first, last) in ranges.items():
        part = f"{run_id}:{first}-{last}"
        if len(line) + len(part) + 1 > _MAX_PAYLOAD:
            found.append(line)
            if len(found) == MAX_NOTIFICATIONS:
                return [MANY]
            line = part
        else:
            line = f"{line} {part}" if line else part
    return [*found, line] if line else found


def parse(payload: str) -> dict[str, Range] | None:
    """The other way round; None for many. What can't be read counts as many."""
    ranges: dict[str, Range] = {}
    try:
        for part in payload.split():
            run_id, _, numbers = part.partition(":")
            first, _, last = numbers.partition("-")
            ranges[str(uuid.UUID(run_id))] = (int(first), int(last))
    except ValueError:
        return None
    return ranges


def ranges_of(rows: Iterable[HistoryRow]) -> dict[str, Range]:
    """Which runs the rows belong to, and their first and last seq."""
    ranges: dict[str, Range] = {}
    for row in rows:
        run_id, seq = str(row[0]), row[1]
        first, last = ranges.get(run_id, (seq, seq))
        ranges[run_id] = (min(first, seq), max(last, seq))
    return ranges


# --- what commands call -------------------------------------------------------------------------


def announce(rows: Sequence[HistoryRow], using: str) -> None:
    """Tells of the rows once the transaction of that connection is committed; now, when there is none."""
    if rows:
        transaction.on_commit(partial(_announce_now, list(rows), using), using=using, robust=True)


def _announce_now(rows: list[HistoryRow], using: str) -> None:
    channel_layer = layer()
    if has_readers(channel_layer):
        push([message(*row[:4], aware(row[4], using), _plain(row[5])) for row in rows], channel_layer)
    if not reaches_others(channel_layer):
        _notify(ranges_of(rows), using)
    if transitions.has_receivers():
        transitions.send([(*row[:5], _plain(row[5])) for row in rows], using)


def push(messages: Sequence[dict[str, Any]], channel_layer: Any) -> None:
    """Hands messages to the layer. Never raises; takes `BOUND` seconds at most, and none while the layer rests."""
    gate = gate_of(channel_layer)
    if not gate.open:
        gate.lost += len(messages)
        return
    try:
        async_to_sync(send)(channel_layer, messages)
    except Exception as error:
        gate.failed(error, len(messages))
    else:
        gate.passed()


def _notify(ranges: Mapping[str, Range], using: str) -> None:
    try:
        with connections[using].cursor() as cursor:
            for payload in payloads(ranges):
                cursor.execute(NOTIFY, [payload])
    except DatabaseError as error:
        logger.info("nobody was told of new history: %s", error)


def _plain(data: Any) -> dict[str, Any] | None:
    plain: dict[str, Any] | None = json.loads(data) if isinstance(data, str | bytes) else data
    return plain
