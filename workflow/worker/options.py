"""How a worker process works, as `workflow:worker` was told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workflow.conf import conf


@dataclass(frozen=True, slots=True)
class Options:
    """How a process works. `queues` None: all of them. `burst`: it leaves once nothing is due and nothing at work.

    After `max_jobs` units, or once more than `max_rss` megabytes are resident, it finishes what it has
    in hand and leaves with `RETIRED` or `OUTGROWN`. `parent` is the process that started it, None for one that nobody
    keeps: it stops when that is gone. Into the descriptor `tell` it writes its id then, a line, before it leaves.
    """

    concurrency: int
    queues: tuple[str, ...] | None = None
    burst: bool = False
    max_jobs: int | None = None
    max_rss: int | None = None
    parent: int | None = None
    tell: int | None = None


def options_of(
    concurrency: int | None,
    queues: Sequence[str] | None,
    burst: bool,
    max_jobs: int | None,
    max_rss: int | None,
) -> Options:
    """Options with their defaults."""
    return Options(
        concurrency=concurrency or conf.CONCURRENCY,
        queues=tuple(queues) if queues else None,
        burst=burst,
        max_jobs=max_jobs,
        max_rss=max_rss,
    )
