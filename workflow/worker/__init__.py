"""The worker: processes that claim due jobs and drive them."""

from workflow.worker.supervisor import run

__all__ = ["run"]
