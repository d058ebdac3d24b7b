"""The workflows that this process knows, drawn."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from workflow import states
from workflow.dashboard import drawing, reading
from workflow.dashboard.access import page
from workflow.dashboard.views.runs import OVERVIEW_AGE
from workflow.definitions import Workflow
from workflow.errors import WorkflowUnknown
from workflow.registry import registry


@page
def definitions(request: HttpRequest) -> HttpResponse:
    """All of them, by name."""
    known = [_summary(workflow) for workflow in registry.all()]
    return render(request, "workflow/dashboard/definitions.html", {"definitions": known})


@page
def definition(request: HttpRequest, name: str) -> HttpResponse:
    """One of them, with all that it declares."""
    try:
        workflow = registry.get(name)
    except WorkflowUnknown:
        raise Http404("no such workflow") from None
    context = {
        **_summary(workflow),
        "on_failure": workflow.on_failure,
        "input": getattr(workflow.input, "__qualname__", "") if workflow.input is not None else "",
        "compatible": ", ".join(map(str, workflow.compatible_versions)),
        "pipelines": drawing.of_definition(workflow),
        "servers": _servers(workflow),
    }
    return render(request, "workflow/dashboard/definition.html", context)


def _summary(workflow: Workflow) -> dict[str, object]:
    nodes = workflow.tree.nodes[1:]
    return {
        "name": workflow.name,
        "version": workflow.version,
        "stages": sum(node.kind == states.STAGE for node in nodes),
        "actions": sum(node.kind == states.ACTION for node in nodes),
    }


def _servers(workflow: Workflow) -> int:
    """How many of the workers alive serve it."""
    wanted = (workflow.name, workflow.version)
    known = reading.kept("workers", OVERVIEW_AGE, reading.workers)
    alive = [worker for worker in known if reading.silence(worker) is None]
    return sum(
        any(
            isinstance(one, dict) and (one.get("name"), one.get("version")) == wanted for one in worker.serves
        )
        for worker in alive
    )
