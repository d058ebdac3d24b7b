"""The JSON API: ``path("workflow/", include(workflow_routes()))`` in a project's addresses."""

from workflow.api.routes import workflow_routes

__all__ = ["workflow_routes"]
