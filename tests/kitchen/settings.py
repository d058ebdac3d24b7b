"""The example project's settings, with the kitchen in it."""

from example_project.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "tests.kitchen"]  # noqa: F405

# A busy machine may keep a customer waiting.
SHOP_PAYMENT_TIMEOUT = 600.0
