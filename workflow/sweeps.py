"""What time alone changes: stale leases, absolute caps and waits past their deadline. Bounded and re-entrant.

Sweeps run in every worker and in `workflow:sweep`; any number of them may run at once. Each looks
at the state of the tables, never at a list of its own, so whatever one pass could not do the next
one finds again; an error in one sweep does not keep the others from running. A row that somebody has
locked, or that the database refuses to change, does not keep the others of its page.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

from workflow import failpoints
from workflow.conf import conf
from workflow.errors import FailureCode
from workflow.plan import compact, fault
from workflow.progress import announce
from workflow.sql import pauses as pauses_sql
from workflow.sql import sweeps as sql
from workflow.sql import workers as workers_sql
from workflow.sql.arrays import plain, texts
from workflow.store.drive import drive
from workflow.store.events import expire_waits
from workflow.store.pieces import a_page
from workflow.store.pipeline import Rows
from workflow.store.ports import LOCK_PATIENCE, DjangoPort, Port
from workflow.store.settle import Tell, nobody
from workflow.store.trouble import is_connection_lost, is_in_the_way
from workflow.store.workers import unserved

logger = logging.getLogger("workflow")

BATCH = 500
IDLE_AFTER = 60.0
"""Seconds without any change after which a run without a job is given the one that comes next."""
NAME_EVERY = 60.0
"""Seconds between two complaints of this process about the same runs."""
_next_naming = float("-inf")


async def reap_leases(port: Port) -> int:
    """Frees jobs whose worker missed its heartbeats, or that are over the absolute cap. Their attempt stays spent."""
    threshold, cap = conf.STALE_LEASE_THRESHOLD, conf.JOB_ABSOLUTE_TIMEOUT
    guard = (threshold, cap, cap)
    reaped, after = 0, str(UUID(int=0))
    while True:
        page = await a_page(
            port,
            (sql.REAP_LEASES, (*guard, after, BATCH, cap, cap, *guard)),
            (sql.STALE_LEASES, (*guard, after, BATCH)),
            lambda part: (sql.REAP_THESE, (*guard, _ids(part), cap, cap, *guard)),
            "free the job",
        )
        for job_id, run_id, reason in page:
            if reason is not None:
                reaped += 1
                logger.warning("job %s of run %s was taken from its worker: %s", job_id, run_id, reason)
        if len(page) < BATCH:
            break
        after = page[-1][0]
    deliveries = await a_page(
        port,
        (sql.REAP_DELIVERIES, (*guard, BATCH, cap, cap)),
        (sql.STALE_DELIVERIES, (*guard, BATCH)),
        lambda part: (sql.REAP_THESE_DELIVERIES, (*guard, _ids(part), cap, cap)),
        "free the job",
    )
    return reaped + _changed(deliveries)


def _ids(rows: Rows) -> str:
    return plain([row[0] for row in rows])


def _changed(rows: Rows) -> int:
    """Of a page of which each row ends with whether something was done."""
    return sum(1 for row in rows if row[-1])


async def mend_idle_runs(port: Port, tell: Tell = nobody) -> int:
    """Runs that no job, wait or timer will ever touch again: queue and crash cannot make one, but people can.

    One that is found young gets the job that its tree says comes next. One that nobody could bring on
    for `STUCK_THRESHOLD`, or whose tree says nothing, fails with STUCK_RUN_REAPED.
    """
    threshold = conf.STUCK_THRESHOLD
    young = min(IDLE_AFTER, threshold)
    mended, after = 0, str(UUID(int=0))
    while True:
        rows = (await port.run([(sql.FIND_IDLE_RUNS, (young, after, BATCH))]))[0]
        for run_id, workflow, version, status, age in rows:
            after = run_id
            try:
                mended += await _mend(port, run_id, status, age >= threshold, young, tell)
            except Exception as error:
                if is_connection_lost(error):
                    raise
                if is_in_the_way(error):
                    logger.info("run %s is not mended yet: another session has locked a part of it", run_id)
                else:
                    logger.exception("run %s (%s version %d) could not be mended", run_id, workflow, version)
        if len(rows) < BATCH:
            return mended


async def _mend(port: Port, run_id: str, status: str, old: bool, young: float, tell: Tell) -> int:
    if not old:
        locked, advanced = await port.run(
            [(sql.LOCK_IDLE_RUN, (run_id, young)), (sql.ADVANCE_RUN, (run_id,))]
        )
        if locked and advanced:
            logger.warning("run %s was %s without a job: it goes on", run_id, status)
        return len(advanced) if locked else 0
    message = f"the run was {status}, and no job, wait or timer was left to bring it on"
    error = compact(fault(FailureCode.STUCK_RUN_REAPED, message, None))
    _, failed = await port.run(
        [(sql.LOCK_IDLE_RUN, (run_id, young)), (sql.FAIL_RUN, (error, run_id, young, error))]
    )
    if failed:
        logger.error("run %s is stuck and fails: %s", run_id, message)
        tell([(*row, json.loads(data)) for *row, data in failed])
    return len(failed)


async def forget_workers(port: Port) -> int:
    """Drops the rows of worker processes that were last seen more than a day ago."""
    gone = await a_page(
        port,
        (workers_sql.FORGET, (BATCH,)),
        (workers_sql.GONE, (BATCH,)),
        lambda part: (workers_sql.FORGET_THESE, (_ids(part),)),
        "forget the worker process",
    )
    return _changed(gone)


async def forget_pauses(port: Port) -> int:
    """Drops pauses of queues whose time is over: they keep nobody any more."""
    over = await a_page(
        port,
        (pauses_sql.FORGET_OVER, (BATCH,)),
        (pauses_sql.OVER, (BATCH,)),
        lambda part: (pauses_sql.FORGET_THESE, (texts([row[0] for row in part]),)),
        "forget the pause of the queue",
    )
    return _changed(over)


async def name_unserved(port: Port) -> int:
    """Says in the log which live runs no live worker serves, at most once a minute; changes nothing."""
    global _next_naming
    now = time.monotonic()
    if now < _next_naming:
        return 0
    found = await unserved(port)
    _next_naming = now + NAME_EVERY
    for runs in found:
        logger.warning("%s", runs)
    return 0


SWEEPS: dict[str, Callable[[Port], Awaitable[int]]] = {
    "leases": reap_leases,
    "waits": expire_waits,
    "runs": mend_idle_runs,
    "workers": forget_workers,
    "pauses": forget_pauses,
    "unserved": name_unserved,
}


async def sweep(port: Port, tell: Tell = nobody) -> dict[str, int]:
    """One pass of every sweep; how many rows each one changed.

    What goes wrong in one of them is logged and keeps no other from running; only a database that is away
    ends the pass: it raises what the driver raised.
    """
    counts: dict[str, int] = {}
    telling = {"waits": partial(expire_waits, tell=tell), "runs": partial(mend_idle_runs, tell=tell)}
    for name, one in (SWEEPS | telling).items():
        try:
            failpoints.hit("sweep.before")
            counts[name] = await one(port)
            failpoints.hit("sweep.after")
        except Exception as error:
            if is_connection_lost(error):
                raise
            counts[name] = 0
            if is_in_the_way(error):
                logger.info(
                    "the sweep of %s met another session's lock; the next pass finds its work again", name
                )
            else:
                logger.exception("the sweep of %s failed; the next pass finds its work again", name)
    return counts


def run_once() -> dict[str, int]:
    """One pass on Django's connection, for `workflow:sweep`."""
    return drive(sweep(DjangoPort(patience=LOCK_PATIENCE), partial(announce, using=conf.DATABASE)))
