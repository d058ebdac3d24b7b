"""Addresses of the example project."""

from django.contrib import admin
from django.templatetags.static import static
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

from workflow.api import workflow_routes

urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/", admin.site.urls),
    path("workflow/", include(workflow_routes())),
    # Browsers ask for it on pages that name no icon, such as the log-in.
    path("favicon.ico", RedirectView.as_view(url=static("workflow/dashboard/icon.svg"))),
    path("", RedirectView.as_view(pattern_name="workflow_dashboard:runs")),
    path("dashboard/", include("workflow.dashboard.urls")),
]
