"""Who may see a page, and what a browser may do with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_http_methods, require_safe

from workflow import viewing

VIEW: Final = "workflow.view_run"
MANAGE: Final = "workflow.manage_run"

View = Callable[..., HttpResponse]


def may_manage(request: HttpRequest) -> bool:
    """Whether this user gets buttons."""
    return request.user.has_perm(MANAGE)


def page(view: View) -> View:
    """A page that staff with `view_run` may read. GET and HEAD only."""
    return _answered(require_safe(_guarded(view, VIEW)))


def command(view: View) -> View:
    """A form, and what it does: for staff with `manage_run`. GET shows it, POST does it."""
    # Exempt from the middleware alone, whose refusal could not be sealed: the decorator makes the same check.
    checked = csrf_protect(_guarded(view, MANAGE))
    return csrf_exempt(_answered(require_http_methods(["GET", "HEAD", "POST"])(checked)))


def _answered(view: View) -> View:
    """Whatever comes of it, a wrong method or a run that is not there too, is a sealed page that nobody keeps."""

    @never_cache
    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            response = view(request, *args, **kwargs)
        except Http404 as missing:
            response = _missing(request, str(missing))
        return _sealed(response, request)

    return answered


def _guarded(view: View, permission: str) -> View:
    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        refused = _refused(request, permission)
        if refused is not None:
            return refused
        if "run_id" in kwargs and not viewing.may_view(request.user, kwargs["run_id"]):
            raise Http404("no such run")
        return view(request, *args, **kwargs)

    return guarded


def _missing(request: HttpRequest, what: str) -> HttpResponse:
    if not wants_page(request):
        return HttpResponse(what, status=404, content_type="text/plain")
    return render(request, "workflow/dashboard/missing.html", {"what": what}, status=404)


def wants_page(request: HttpRequest) -> bool:
    """False for what a script of ours fetches: it can't use a page to log in at."""
    return request.headers.get("X-Requested-With") != "fetch"


def _refused(request: HttpRequest, permission: str) -> HttpResponse | None:
    user: Any = getattr(request, "user", None)
    if user is None or not user.is_authenticated or not user.is_active:
        if wants_page(request):
            return redirect_to_login(request.get_full_path())
        return HttpResponse("log in first", status=401, content_type="text/plain")
    if not user.is_staff or not user.has_perm(VIEW) or not user.has_perm(permission):
        if not wants_page(request):
            return HttpResponse("you may not do that", status=403, content_type="text/plain")
        needed = VIEW if not user.has_perm(VIEW) else permission
        return render(request, "workflow/dashboard/refused.html", {"needed": needed}, status=403)
    return None


def _sealed(response: HttpResponse, request: HttpRequest) -> HttpResponse:
    """Scripts, styles and connections of this site alone, none of them inside the page; no frames around it."""
    static = urlsplit(settings.STATIC_URL or "")
    files = f"'self' {static.scheme}://{static.netloc}" if static.netloc else "'self'"
    host = request.get_host()
    response["Content-Security-Policy"] = "; ".join(
        (
            "default-src 'none'",
            f"script-src {files}",
            f"style-src {files}",
            f"img-src {files} data:",
            # Some browsers do not take sockets of the same host for 'self'.
            f"connect-src 'self' ws://{host} wss://{host}",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )
    response["X-Content-Type-Options"] = "nosniff"
    response["Referrer-Policy"] = "same-origin"
    response["X-Frame-Options"] = "DENY"
    return response
