"""How busy everything is at this moment: queues, rates, workers, runs that nobody serves, and pauses. Values only.

Reading it costs the same whatever lies in the tables: each part has a limit, named below.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.contrib.postgres.functions import TransactionNow
from django.db.models import Min, Q
from pydantic import BaseModel, ConfigDict

from workflow import states, workflows
from workflow.conf import conf
from workflow.models import Job, PausedQueue, Run
from workflow.results import PausedQueueInfo
from workflow.sql import overview as sql
from workflow.sql.arrays import plain
from workflow.store.pipeline import Rows, Statement
from workflow.store.ports import DjangoPort
from workflow.store.workers import Unserved, silent_after, unserved_now
from workflow.times import FOR_EVER

WINDOWS: Final = (60.0, 300.0)
"""Seconds over which rates are taken."""
MOST_PAIRS: Final = 1_000
"""Pairs of queue and priority that are looked at."""
MOST_JOBS: Final = 50_000
"""Up to where the jobs of such a pair are counted."""
MOST_ENDS: Final = 20_000
"""Runs that ended, and runs that were dispatched, from which rates are taken."""
MOST_STARTS: Final = 5_000
"""Live runs of each status that are asked when they started: the newest."""
MOST_WORKERS: Final = 1_000
MOST_PAUSED: Final = 1_000


class QueueInfo(BaseModel):
    """Jobs of one queue; with ``more`` there are more than was counted.

    ``oldest_due`` is for how many seconds the oldest job has been due, None when none is. ``workers`` is how many
    live workers take jobs of the queue, silent ones left out.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    due: int
    leased: int
    later: int
    more: bool
    oldest_due: float | None
    workers: int


class Rates(BaseModel):
    """Runs per minute, as the last ``seconds`` were."""

    model_config = ConfigDict(frozen=True)

    seconds: float
    dispatched: float
    started: float
    completed: float
    failed: float
    compensated: float
    cancelled: float


class Served(BaseModel):
    """A workflow that a worker serves: its own version, and those of older runs that it takes on."""

    model_config = ConfigDict(frozen=True)

    name: str
    version: int
    compatible: list[int] = []


class WorkerInfo(BaseModel):
    """A worker process that is alive. ``queues`` is empty for one that takes all; ``units`` is what it has in hand.

    ``silent``: it has missed its heartbeats, and may have been killed; its leases have not run out yet.
    """

    model_config = ConfigDict(frozen=True)

    id: UUID
    host: str
    pid: int
    queues: list[str]
    serves: list[Served]
    units: int
    concurrency: int
    abandoned_threads: int
    started_at: datetime
    seen_at: datetime
    seen_seconds: float
    silent: bool


class UnservedRuns(BaseModel):
    """See ``workflow.store.workers.Unserved``; ``message`` says it in one line."""

    model_config = ConfigDict(frozen=True)

    workflow: str
    version: int
    queue: str | None
    runs: int
    more: bool
    oldest: UUID
    created_at: datetime
    message: str


class Overview(BaseModel):
    """All of it, as of ``at`` on the database's clock."""

    model_config = ConfigDict(frozen=True)

    at: datetime
    queues: list[QueueInfo]
    rates: list[Rates]
    workers: list[WorkerInfo]
    unserved: list[UnservedRuns]
    paused: list[PausedQueueInfo]

    @property
    def oldest_due(self) -> float | None:
        """For how many seconds the oldest job of any queue has been due."""
        return max((queue.oldest_due for queue in self.queues if queue.oldest_due is not None), default=None)


def overview() -> Overview:
    """Reads it, on Django's connection to ``WORKFLOW["DATABASE"]``."""
    (now,), queues, workers, ended, dispatched = DjangoPort().run_now(_statements())
    alive = [_worker(row) for row in workers]
    return Overview(
        at=now[0],
        queues=[_queue(row, alive) for row in queues],
        rates=_rates(ended, dispatched),
        workers=alive,
        unserved=[_unserved(runs) for runs in unserved_now()],
        paused=workflows.paused_queues()[:MOST_PAUSED],
    )


def pause_of_run(run_id: UUID) -> PausedQueueInfo | None:
    """What keeps a live run's jobs from being claimed; None too for a run that is over, or is not there."""
    queues = Run.objects.using(conf.DATABASE).filter(pk=run_id, finished_at__isnull=True).values("queue")
    in_effect = Q(until__isnull=True) | Q(until__gt=TransactionNow())
    row = PausedQueue.objects.using(conf.DATABASE).filter(in_effect, queue__in=queues).values().first()
    return None if row is None else PausedQueueInfo(**row)


def due_of_run(run_id: UUID) -> datetime | None:
    """When a run goes on of which nothing is at work or due: after a delay, a backoff or a sleep, at its next poll."""
    jobs = Job.objects.using(conf.DATABASE).filter(run_id=run_id)
    if jobs.filter(Q(lease_token__isnull=False) | Q(available_at__lte=TransactionNow())).exists():
        return None
    # What waits for an event without an end has a time, too, but one that is not meant to come.
    in_time = jobs.filter(available_at__lt=TransactionNow() + timedelta(seconds=FOR_EVER / 2))
    found: datetime | None = in_time.aggregate(due=Min("available_at"))["due"]
    return found


def _statements() -> list[Statement]:
    sample = (max(WINDOWS), MOST_ENDS, MOST_ENDS, plain(WINDOWS))
    return [
        ("SELECT now()", ()),
        (sql.QUEUES, (MOST_PAIRS, MOST_JOBS, MOST_JOBS)),
        (sql.WORKERS, (conf.STALE_LEASE_THRESHOLD, MOST_WORKERS)),
        (sql.RATES, (*sample, MOST_STARTS, MOST_STARTS, MOST_STARTS)),
        (sql.DISPATCHED, sample),
    ]


def _queue(row: tuple[Any, ...], workers: Iterable[WorkerInfo]) -> QueueInfo:
    name, due, leased, later, largest, oldest_due = row
    takers = sum(
        name == states.EVENTS_QUEUE or not w.queues or name in w.queues for w in workers if not w.silent
    )
    more = largest >= MOST_JOBS
    return QueueInfo(
        name=name, due=due, leased=leased, later=later, more=more, oldest_due=oldest_due, workers=takers
    )


def _worker(row: tuple[Any, ...]) -> WorkerInfo:
    worker_id, host, pid, queues, serves, *counts, started_at, seen_at, seen_seconds = row
    units, concurrency, abandoned = counts
    return WorkerInfo(
        id=worker_id,
        host=host,
        pid=pid,
        queues=json.loads(queues),
        serves=[Served.model_validate(entry) for entry in json.loads(serves)],
        units=units,
        concurrency=concurrency,
        abandoned_threads=abandoned,
        started_at=started_at,
        seen_at=seen_at,
        seen_seconds=max(seen_seconds, 0.0),
        silent=seen_seconds > silent_after(),
    )


def _rates(ended: Rows, dispatched: Rows) -> list[Rates]:
    """Both have a row for each window: its seconds, how many of them were covered, and counts in these."""
    rates = []
    for (seconds, covered, *counts), (_, of_ids, count) in zip(ended, dispatched, strict=True):
        started, completed, failed, compensated, cancelled = (60.0 * n / covered for n in counts)
        rates.append(
            Rates(
                seconds=seconds,
                dispatched=60.0 * count / of_ids,
                started=started,
                completed=completed,
                failed=failed,
                compensated=compensated,
                cancelled=cancelled,
            )
        )
    return rates


def _unserved(runs: Unserved) -> UnservedRuns:
    return UnservedRuns(
        workflow=runs.workflow,
        version=runs.version,
        queue=runs.queue,
        runs=runs.runs,
        more=runs.more,
        oldest=runs.oldest,
        created_at=runs.created_at,
        message=str(runs),
    )
