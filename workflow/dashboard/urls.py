"""Addresses of the dashboard; reverse them as ``workflow_dashboard:run`` and so on."""

from __future__ import annotations

from django.urls import path

from workflow.dashboard.views import commands, definitions, run, runs

app_name = "workflow_dashboard"

urlpatterns = [
    path("", runs.runs, name="runs"),
    path("definitions/", definitions.definitions, name="definitions"),
    path("definitions/<str:name>/", definitions.definition, name="definition"),
    path("<uuid:run_id>/", run.run, name="run"),
    path("<uuid:run_id>/state/", run.state, name="state"),
    path("<uuid:run_id>/timeline/", run.timeline, name="timeline"),
    path("<uuid:run_id>/node/", run.node, name="node"),
    path("<uuid:run_id>/data/", run.data, name="data"),
    path("<uuid:run_id>/history/", run.history, name="history"),
    path("<uuid:run_id>/retry/", commands.retry, name="retry"),
    path("<uuid:run_id>/cancel/", commands.cancel, name="cancel"),
    path("<uuid:run_id>/resume/", commands.resume, name="resume"),
]
