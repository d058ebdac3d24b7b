"""What time alone changes: stale leases, absolute caps and waits past their deadline. Bounded and re-entrant.

Sweeps run in every worker and in `workflow:sweep`; any number of them may run at once. Each looks
at the state of the tables, never at a list of its own, so whatever one pass could not do the next
one finds again; an error in one sweep does not keep the others from running.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from workflow.conf import conf
from workflow.sql import sweeps as sql
from workflow.store.drive import drive
from workflow.store.events import expire_waits
from workflow.store.ports import DjangoPort, Port

logger = logging.getLogger("workflow")

BATCH = 500


async def reap_leases(port: Port) -> int:
    """Frees jobs whose worker missed its heartbeats, or that are over the absolute cap. Their attempt stays spent."""
    threshold, cap = conf.STALE_LEASE_THRESHOLD, conf.JOB_ABSOLUTE_TIMEOUT
    guard = (threshold, cap, cap)
    units = (await port.run([(sql.REAP_LEASES, (*guard, BATCH, cap, cap, *guard))]))[0]
    for job_id, run_id, reason in units:
        logger.warning("job %s of run %s was taken from its worker: %s", job_id, run_id, reason)
    deliveries = (await port.run([(sql.REAP_DELIVERIES, (*guard, BATCH, cap, cap))]))[0]
    return len(units) + len(deliveries)


SWEEPS: dict[str, Callable[[Port], Awaitable[int]]] = {"leases": reap_leases, "waits": expire_waits}


async def sweep(port: Port) -> dict[str, int]:
    """One pass of every sweep; how many rows each one changed."""
    counts: dict[str, int] = {}
    for name, one in SWEEPS.items():
        try:
            counts[name] = await one(port)
        except Exception:
            logger.exception("the sweep of %s failed; the next pass finds its work again", name)
            counts[name] = 0
    return counts


def run_once() -> dict[str, int]:
    """One pass on Django's connection, for `workflow:sweep`."""
    return drive(sweep(DjangoPort()))
