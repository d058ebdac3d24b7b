"""Who may watch: asked when a socket opens, and again while it is open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit
from uuid import UUID

from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth import (
    BACKEND_SESSION_KEY,
    HASH_SESSION_KEY,
    SESSION_KEY,
    get_user_model,
    load_backend,
)
from django.core.exceptions import ValidationError
from django.http.request import validate_host
from django.utils.crypto import constant_time_compare
from django.utils.http import is_same_domain

from workflow import viewing
from workflow.conf import conf
from workflow.models import Run

NOT_LOGGED_IN: Final = 4401
NOT_ALLOWED: Final = 4403
NO_SUCH_RUN: Final = 4404
TOO_SLOW: Final = 4408

PERMISSION: Final = "workflow.view_run"

Scope = Mapping[str, Any]


def same_site(scope: Scope) -> bool:
    """Whether the page that opens the socket is one of this site's; true when no page does.

    Browsers send the cookies of this site along with a socket that any other site opens, and always say
    in Origin which one it is. A project may forget to check it, so this does.
    """
    headers = {name.lower(): value.decode("latin1") for name, value in scope.get("headers", ())}
    given = headers.get(b"origin")
    if given is None:
        return True
    try:
        origin = urlsplit(given)
        name = origin.hostname
    except ValueError:
        return False
    if not name:
        return False
    if any(_matches(trusted, given, origin) for trusted in settings.CSRF_TRUSTED_ORIGINS):
        return True
    allowed = settings.ALLOWED_HOSTS or ([".localhost", "127.0.0.1", "[::1]"] if settings.DEBUG else [])
    if "*" in allowed:  # says nothing of who we are; the address that was asked does
        host = headers.get(b"host")
        return host is None or host.lower() == origin.netloc.lower()
    return validate_host(f"[{name}]" if ":" in name else name, allowed)


def _matches(trusted: str, given: str, origin: SplitResult) -> bool:
    """As Django's CSRF check reads `CSRF_TRUSTED_ORIGINS`, where `https://*.example.com` are all hosts of a domain."""
    if "*" not in trusted:
        return given == trusted
    wanted = urlsplit(trusted)
    return origin.scheme == wanted.scheme and is_same_domain(origin.netloc, wanted.netloc.lstrip("*"))


async def refusal(scope: Scope, run_id: UUID | None) -> int | None:
    """The code to close the socket with; None for those who may watch, and go on watching."""
    if not same_site(scope):
        return NOT_ALLOWED
    refused: int | None = await database_sync_to_async(_refusal)(scope, run_id)
    return refused


def _refusal(scope: Scope, run_id: UUID | None) -> int | None:
    user = _user(scope)
    if user is None or not user.is_active:
        return NOT_LOGGED_IN
    if not user.is_staff or not user.has_perm(PERMISSION):
        return NOT_ALLOWED
    if run_id is None:
        return None
    if not Run.objects.using(conf.DATABASE).filter(pk=run_id).exists():
        # Where some runs are hidden, the code must not tell them from those that do not exist.
        return NO_SUCH_RUN if conf.CAN_VIEW_RUN is None else NOT_ALLOWED
    return None if viewing.may_view(user, run_id) else NOT_ALLOWED


async def viewable(scope: Scope, run_ids: Iterable[UUID]) -> set[UUID]:
    """Those of the runs that may be told of; `refusal` has let the user in."""
    wanted = set(run_ids)
    if conf.CAN_VIEW_RUN is None or not wanted:
        return wanted
    seen: set[UUID] = await database_sync_to_async(_viewable)(scope, wanted)
    return seen


def _viewable(scope: Scope, run_ids: set[UUID]) -> set[UUID]:
    user = _user(scope)
    return set() if user is None else viewing.viewable(user, run_ids)


def _user(scope: Scope) -> Any:
    """Who it is by now: a fresh object, whose permissions nobody has cached; None for nobody."""
    user = scope.get("user")
    if user is None or not user.is_authenticated:
        return None
    session = scope.get("session")
    if session is not None and SESSION_KEY in session:
        return _user_of_session(session.session_key)
    return get_user_model()._default_manager.filter(pk=user.pk).first()


def _user_of_session(key: str | None) -> Any:
    """As `django.contrib.auth.get_user`, but changes nothing: no response could hand out a new key."""
    session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    backend, pk = session.get(BACKEND_SESSION_KEY), session.get(SESSION_KEY)
    if pk is None or backend not in settings.AUTHENTICATION_BACKENDS:
        return None
    try:
        user = load_backend(backend).get_user(get_user_model()._meta.pk.to_python(pk))
    except ValidationError:
        return None
    if user is None or not hasattr(user, "get_session_auth_hash"):
        return user
    known = session.get(HASH_SESSION_KEY) or ""
    hashes = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    return user if any(constant_time_compare(known, one) for one in hashes) else None
