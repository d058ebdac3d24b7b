"""The worker: processes that claim due jobs and drive them."""

from workflow.worker.readiness import check, refusal
from workflow.worker.supervisor import run

__all__ = ["check", "refusal", "run"]
