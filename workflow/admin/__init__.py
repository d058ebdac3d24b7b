"""Runs, nodes, jobs, events, workers and paused queues in Django's admin: to look at, to find, and to steer runs by."""

from workflow.admin.nodes import NodeAdmin
from workflow.admin.pauses import PausedQueueAdmin
from workflow.admin.queue import EventAdmin, JobAdmin, WorkerAdmin
from workflow.admin.runs import RunAdmin

__all__ = ["EventAdmin", "JobAdmin", "NodeAdmin", "PausedQueueAdmin", "RunAdmin", "WorkerAdmin"]
