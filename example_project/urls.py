"""Addresses of the example project."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

from workflow.api import workflow_routes

urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/", admin.site.urls),
    path("workflow/", include(workflow_routes())),
    path("dashboard/", include("workflow.dashboard.urls")),
]
