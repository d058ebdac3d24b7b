"""The example project's settings with the benchmarks' definitions, and the channel layer off."""

import os

from example_project.settings import *  # noqa: F403
from example_project.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [app for app in _APPS if app != "example_project.shop"] + ["bench"]
ROOT_URLCONF = "bench.settings"
urlpatterns: list[object] = []
CHANNEL_LAYERS: dict[str, object] = {}
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "100"))
WORKFLOW = {"CONCURRENCY": CONCURRENCY, "THREADS": 16}
