"""The Celery app of the tests, as a project would have it: `celery -A tests.crash_app worker`."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.crash_app.settings")

app = Celery("crash")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
