"""Those of the example project, and the workflows that the crash tests run."""

from example_project.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "tests.crash_app"]  # noqa: F405
