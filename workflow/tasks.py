"""What Celery's autodiscovery imports. Other task queues do so too: without Celery this is empty."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("celery") is not None:
    from workflow.celery.jobs import job

    __all__ = ["job"]
