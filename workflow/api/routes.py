"""From the table of operations to Django's address patterns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path

from workflow import viewing
from workflow.api import openapi, refusals, wire
from workflow.api.access import Authorize, Gate
from workflow.api.endpoints import Call
from workflow.api.operations import OPERATIONS, Operation
from workflow.api.refusals import Refused
from workflow.api.schemas import NoQuery
from workflow.conf import conf
from workflow.errors import WorkflowError
from workflow.manager import arguments

View = Callable[..., HttpResponse]


def workflow_routes(authorize: Authorize | None = None) -> list[URLPattern]:
    """The API's addresses, for ``include()``; their names begin with ``workflow-api-``.

    ``authorize(request) -> bool`` decides who may, for reads and writes alike. Without it that is a logged-in
    staff user with ``workflow.view_run`` for reads and ``workflow.manage_run`` for writes. A project's own
    addresses under the same prefix go before these, whose ``<run>/`` would match them.
    """
    gate = Gate(authorize)
    patterns = [path("openapi.json", _document(gate), name="workflow-api-openapi")]
    patterns += [
        path(operation.route, _view(operation, gate), name=f"workflow-api-{operation.name}")
        for operation in OPERATIONS
    ]
    return patterns


def _view(operation: Operation, gate: Gate) -> View:
    def view(request: HttpRequest, run_id: str = "") -> HttpResponse:
        gate.check(request, operation.method, writes=operation.writes)
        query = wire.query(request, operation.query)
        given = wire.body(request) if operation.writes else {}
        call = Call(request, run_id, query, wire.validate(operation.body, given))
        try:
            if run_id:
                viewing.require(call.user, arguments.run_id(run_id))
            return operation.endpoint(call)
        except WorkflowError as error:
            raise refusals.of(error, given) from error

    return _as_view(view, alone=operation.one_by_one)


def _document(gate: Gate) -> View:
    def view(request: HttpRequest) -> HttpResponse:
        gate.check(request, "GET", writes=False)
        wire.query(request, NoQuery)
        return wire.as_json(
            openapi.text(request.path.removesuffix("openapi.json"), by_session=gate.by_session)
        )

    return _as_view(view)


def _as_view(view: View, *, alone: bool = False) -> View:
    """``view``, with refusals as answers, and marked for those of Django's middlewares that would come first."""

    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except Refused as refused:
            return wire.refusal(refused)
        except SuspiciousOperation:
            return wire.refusal(Refused(refusals.UNREADABLE, "the request could not be read"))

    wrapped.csrf_exempt = True  # type: ignore[attr-defined]  # checked by the gate, for an answer in JSON
    wrapped.login_required = False  # type: ignore[attr-defined]  # by the gate too: no redirect to a page
    if alone:
        wrapped._non_atomic_requests = _EnginesDatabase()  # type: ignore[attr-defined]
    return wrapped


class _EnginesDatabase:
    """The set of its alias alone. Looked up at a request: addresses are made before a check can tell of a setting."""

    def __contains__(self, alias: str) -> bool:
        return alias == conf.DATABASE
