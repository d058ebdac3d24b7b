"""Runs, nodes, jobs, events and workers in Django's admin: to look at, to find, and to steer runs by."""

from workflow.admin.nodes import NodeAdmin
from workflow.admin.queue import EventAdmin, JobAdmin, WorkerAdmin
from workflow.admin.runs import RunAdmin

__all__ = ["EventAdmin", "JobAdmin", "NodeAdmin", "RunAdmin", "WorkerAdmin"]
