"""Retry, cancel, resume: a form that says what will happen, and the POST that does it. Nothing else changes a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from workflow import terminal, viewing, workflows
from workflow.conf import conf
from workflow.dashboard.access import command
from workflow.errors import NodeUnknown, PayloadInvalid, RunNotFound, WorkflowError
from workflow.models import Run

MAX_REASON = 500


@command
def retry(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """A failed run goes on, from its failure or from the node that the form names."""
    given = request.POST if request.method == "POST" else request.GET
    path = given.get("from_node", "").strip() or None

    def act(by: str | None) -> None:
        workflows.retry(run_id, path, by=by)

    return _handle(request, run_id, "retry", act, from_node=path or "")


@command
def cancel(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """The run ends at once."""
    reason = request.POST.get("reason", "").strip()

    def act(by: str | None) -> None:
        if len(reason) > MAX_REASON:
            raise ValueError(f"a reason has at most {MAX_REASON} characters")
        workflows.cancel(run_id, reason or None, by=by)

    return _handle(request, run_id, "cancel", act, reason=reason)


@command
def resume(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """What the run waits for is taken as having come, with the payload that the form has."""
    text = request.POST.get("payload", "").strip()

    def act(by: str | None) -> None:
        workflows.resume(run_id, _payload(text), by=by)

    return _handle(request, run_id, "resume", act, payload=text)


def _handle(
    request: HttpRequest, run_id: UUID, name: str, act: Callable[[str | None], None], **values: str
) -> HttpResponse:
    run = Run.objects.using(conf.DATABASE).filter(pk=run_id).values("id", "workflow", "status").first()
    if run is None:
        raise Http404("no such run")
    context: dict[str, Any] = {"command": name, "run": run, "values": values}
    context["from_node"] = terminal.one_line(values.get("from_node", ""), 255)
    if request.method != "POST":
        return render(request, "workflow/dashboard/command.html", context)
    try:
        act(viewing.who(request))
    except RunNotFound:
        raise Http404("no such run") from None
    except WorkflowError as error:
        context["refused"] = terminal.one_line(error, 500)
        status = 422 if isinstance(error, PayloadInvalid | NodeUnknown) else 409
        return render(request, "workflow/dashboard/command.html", context, status=status)
    except (ValueError, TypeError) as error:
        context["refused"] = terminal.one_line(error, 500)
        return render(request, "workflow/dashboard/command.html", context, status=422)
    return HttpResponseRedirect(f"{reverse('workflow_dashboard:run', args=[run_id])}?notice={name}")


def _payload(text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the payload is no JSON: {error}") from None
