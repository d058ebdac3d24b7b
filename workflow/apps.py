from __future__ import annotations

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured

# Makes the commands known. Here and not in ready(): Django remembers the names for good as soon as
# anybody asks for them, and another app may ask before this one is ready.
from workflow import management  # noqa: F401


class WorkflowConfig(AppConfig):
    name = "workflow"
    verbose_name = "Workflows"
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        # No system check could tell: without pgtrigger, Django refuses the triggers in the models' Meta
        # while it imports them, which is long before the first check runs.
        if not any(config.name == "pgtrigger" for config in apps.get_app_configs()):
            raise ImproperlyConfigured('Add "pgtrigger" to INSTALLED_APPS: the app "workflow" needs it.')
        super().import_models()

    def ready(self) -> None:
        # Only now: checks and registry import definitions, and users' workflows.py import models.
        from workflow import checks  # noqa: F401 - registers them
        from workflow.registry import registry

        registry.autodiscover()
