"""Who is alive, and whom nobody serves. Nothing here locks or writes; everything is bounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from workflow.conf import conf
from workflow.definitions import Workflow
from workflow.sql import workers as sql
from workflow.sql.arrays import plain, texts
from workflow.store.claims import misfit
from workflow.store.drive import drive
from workflow.store.ports import DjangoPort, Port
from workflow.texts import one_line

MOST_RUNS: Final = 10_000
"""Live runs that one look takes from either end of their order: some 30 ms on a table of any size."""
MOST_MATCHED: Final = 2_000
"""Of these, how many one look reads the nodes of."""
SILENT_AT_LEAST: Final = 10.0
"""Seconds: where heartbeats follow each other fast, a busy machine may be late with several."""


def silent_after() -> float:
    """Seconds without a heartbeat after which people are told that a worker is silent: two were due by then.

    It still holds its leases, and counts as alive for them, until `STALE_LEASE_THRESHOLD`: it may come back.
    """
    return min(max(2 * conf.HEARTBEAT_INTERVAL, SILENT_AT_LEAST), conf.STALE_LEASE_THRESHOLD)


@dataclass(frozen=True, slots=True)
class Unserved:
    """Live runs of one workflow and version that no live worker would go on with.

    `queue` is None where no live worker serves the version at all, else the queue that none of those takes.
    `runs` is how many were found, `more` whether there may be others; `oldest` is the first of them.
    """

    workflow: str
    version: int
    queue: str | None
    runs: int
    more: bool
    oldest: UUID
    created_at: datetime

    @property
    def reason(self) -> str:
        """What is missing, in one printable line."""
        place = "" if self.queue is None else f' in the queue "{one_line(self.queue, 100)}"'
        return f"no live worker serves {self.workflow} v{self.version}{place}"

    def __str__(self) -> str:
        return f"{self.reason}, which has {_count(self.runs, self.more)} (the oldest: {self.oldest})"


async def unserved(port: Port) -> list[Unserved]:
    """The live runs that no live worker serves, by workflow and version (and queue, where that is all that keeps them).

    A worker is alive until it signs off or misses its heartbeats for `STALE_LEASE_THRESHOLD` seconds. It
    serves a run whose version is its definition's own or one of its `compatible_versions`; whether the
    tree still fits is found out node by node when the run is claimed.
    """
    parameters = (conf.STALE_LEASE_THRESHOLD, MOST_RUNS, MOST_RUNS)
    return [_unserved(row) for row in (await port.run([(sql.UNSERVED, parameters)]))[0]]


def unserved_run(run_id: UUID) -> Unserved | None:
    """The same for one run, on Django's connection; None for one that is served, is over, or is not there."""
    parameters = (conf.STALE_LEASE_THRESHOLD, str(run_id))
    rows = DjangoPort().run_now([(sql.UNSERVED_RUN, parameters)])[0]
    return _unserved(rows[0]) if rows else None


def unserved_now() -> list[Unserved]:
    """`unserved`, on Django's connection."""
    return drive(unserved(DjangoPort()))


@dataclass(frozen=True, slots=True)
class Changed:
    """Live runs that were dispatched with another tree than this code has for their workflow and version.

    `runs` is how many were found, `more` whether there may be others; `oldest` is the first of them.
    """

    workflow: str
    version: int
    runs: int
    more: bool
    oldest: UUID

    def __str__(self) -> str:
        count = _count(self.runs, self.more)
        have = "has" if self.runs == 1 else "have"
        return (
            f"{count} of {self.workflow} v{self.version} {have} another tree than this code "
            f"(the oldest: {self.oldest})"
        )


def changed_now(definitions: Iterable[Workflow]) -> list[Changed]:
    """The live runs whose tree is not that of the definition of their name and version, on Django's connection."""
    known = list(definitions)
    parameters = (
        MOST_RUNS,
        MOST_RUNS,
        texts([each.name for each in known]),
        plain([each.version for each in known]),
        texts([each.tree.fingerprint for each in known]),
    )
    rows = DjangoPort().run_now([(sql.CHANGED, parameters)])[0]
    return [
        Changed(workflow, version, runs, looked_at >= 2 * MOST_RUNS, UUID(oldest))
        for workflow, version, runs, oldest, looked_at in rows
    ]


@dataclass(frozen=True, slots=True)
class Misfits:
    """Live runs of a version that this code's definition takes on, but with whose trees it cannot go on.

    `reason` is that of `oldest`, in one line; `taken_on_by` the definition's own version.
    """

    workflow: str
    version: int
    taken_on_by: int
    runs: int
    more: bool
    oldest: UUID
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.workflow} v{self.taken_on_by} cannot go on with {_count(self.runs, self.more)} of v{self.version} "
            f"(the oldest: {self.oldest}): {self.reason}"
        )


def misfits_now(definitions: Iterable[Workflow]) -> list[Misfits]:
    """The live runs of versions that these definitions take on and whose trees they do not fit, on Django's connection.

    Matched as a worker does when it claims them; how far they will have got by then is not known.
    """
    takes = {
        (each.name, version): each
        for each in definitions
        for version in each.compatible_versions
        if version != each.version
    }
    parameters = (
        MOST_RUNS,
        MOST_RUNS,
        texts([name for name, _ in takes]),
        plain([version for _, version in takes]),
        texts([each.tree.fingerprint for each in takes.values()]),
        MOST_MATCHED,
    )
    found: dict[tuple[str, int], Misfits] = {}
    for name, version, paths, live, runs, oldest, looked_at, matched in (
        DjangoPort().run_now([(sql.TREES, parameters)])[0] if takes else ()
    ):
        definition = takes[name, version]
        if (reason := misfit(definition.tree, set(paths or ()), live or ())) is None:
            continue
        first = found.get((name, version))
        if first is not None:
            found[name, version] = replace(first, runs=first.runs + runs)
        else:
            more = looked_at >= 2 * MOST_RUNS or matched >= MOST_MATCHED
            found[name, version] = Misfits(
                name, version, definition.version, runs, more, UUID(oldest), reason
            )
    return [found[key] for key in sorted(found)]


def _count(runs: int, more: bool) -> str:
    return f"{runs}{' or more' if more else ''} live run{'' if runs == 1 and not more else 's'}"


def _unserved(row: tuple[Any, ...]) -> Unserved:
    workflow, version, queue, runs, oldest, created_at, looked_at = row
    return Unserved(workflow, version, queue, runs, looked_at >= 2 * MOST_RUNS, UUID(oldest), created_at)
