"""Who may: before anything is looked up, and for reads and writes alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware

from workflow.api import refusals, wire
from workflow.api.refusals import Refused

Authorize = Callable[[HttpRequest], bool]

VIEW: Final = "workflow.view_run"
MANAGE: Final = "workflow.manage_run"


class Gate:
    """Lets requests through, or raises ``Refused``.

    ``authorize`` decides alone if it is given; without it a request needs a logged-in staff user with the
    permission for a read or a write. Raises ``TypeError`` for what can't be asked: a coroutine would be
    as good as true.
    """

    def __init__(self, authorize: Authorize | None) -> None:
        if authorize is not None and (not callable(authorize) or _is_async(authorize)):
            raise TypeError(f"authorize must be a plain function of the request, not {authorize!r}")
        self._authorize = authorize

    @property
    def by_session(self) -> bool:
        """Whether it is Django's sessions that tell who asks; with an ``authorize`` nobody here knows."""
        return self._authorize is None

    def check(self, request: HttpRequest, method: str, *, writes: bool) -> None:
        """401 for nobody, 405 for another method, 403 for a missing permission or a failed CSRF check."""
        user = getattr(request, "user", None)
        known = user is not None and user.is_authenticated
        if self._authorize is None:
            if not known:
                raise _nobody("log in first", "Session")
        elif not self._allows(request):
            raise _forbidden() if known else _nobody("not allowed by this project's own rule", "Custom")
        if request.method != method and not (request.method == "HEAD" and method == "GET"):
            allowed = "GET, HEAD" if method == "GET" else method
            message = f"the method {request.method} is not allowed here, only {allowed}"
            raise Refused(refusals.METHOD_NOT_ALLOWED, message, headers={"Allow": allowed})
        if self._authorize is None and not _permitted(user, MANAGE if writes else VIEW):
            raise _forbidden()
        if method != "GET" and (known or request.COOKIES):
            _check_csrf(request)

    def _allows(self, request: HttpRequest) -> bool:
        assert self._authorize is not None
        try:
            allowed: object = self._authorize(request)
        except PermissionDenied:
            return False
        if inspect.isawaitable(allowed):
            if inspect.iscoroutine(allowed):
                allowed.close()
            raise TypeError(f"authorize must be a plain function, not {self._authorize!r}")
        return bool(allowed)


def _is_async(function: Any) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  it may be an object with an async one
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _permitted(user: Any, permission: str) -> bool:
    return bool(user.is_active and user.is_staff and user.has_perm(permission))


def _nobody(message: str, scheme: str) -> Refused:
    headers = {"WWW-Authenticate": f'{scheme} realm="workflow"'}
    return Refused(refusals.UNAUTHENTICATED, message, headers=headers)


def _forbidden() -> Refused:
    return Refused(refusals.FORBIDDEN, "you are not allowed to do this")


class _CsrfCheck(CsrfViewMiddleware):
    """Django's own check, which tells the reason instead of answering with a page."""

    def _reject(self, request: HttpRequest, reason: str) -> Any:
        return reason


def _check_csrf(request: HttpRequest) -> None:
    """Where a browser may have added what identifies the user: a session, or any other cookie.

    The views are exempt from the middleware, so that a client without either, which an ``authorize`` knows
    by a header, needs no token, and a failed check is answered in JSON. The check looks for a token among the
    fields of a form, so the body is read first, or it would be used up.
    """
    wire.read(request)
    check = _CsrfCheck(lambda _: HttpResponse())
    check.process_request(request)
    reason: Any = check.process_view(request, _view, (), {})
    if reason is not None:
        raise Refused(refusals.CSRF_FAILED, f"CSRF verification failed: {reason}")


def _view(request: HttpRequest) -> HttpResponse:
    """Stands for the view in Django's check, which asks whether it is exempt."""
    return HttpResponse()
