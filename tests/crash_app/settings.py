"""Those of the example project, and the workflows that the crash tests run."""

import os

from example_project.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "tests.crash_app"]  # noqa: F405

CELERY_BROKER_URL = os.environ.get("BROKER_URL", "")
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
