"""The task that Celery workers run: one message, one job's id."""

from __future__ import annotations

import logging
import uuid
from typing import Any

from celery import shared_task

from workflow.celery import wiring
from workflow.transports.celery import TASK

logger = logging.getLogger("workflow")


def run_job(job_id: str, queue: str = "", priority: int = 0, **more: Any) -> None:
    """Runs the unit of a job, if there is something to do. `queue` and `priority` are for routes: the row counts.

    A message that comes twice, too late or for a job that is gone does nothing. Acknowledged late, so that a message is
    with its worker for as long as the unit is; if that is lost, the lease runs out, and the job is rung again.
    """
    try:
        known = str(uuid.UUID(job_id))
    except (ValueError, AttributeError, TypeError):
        logger.warning("a message for the job %.100r: that is no id", job_id)
        return
    wiring.serve(known)


job = shared_task(name=TASK, ignore_result=True, acks_late=True, reject_on_worker_lost=False)(run_job)
