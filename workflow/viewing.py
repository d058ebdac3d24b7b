"""Which runs a user may see: ``WORKFLOW["CAN_VIEW_RUN"]``, asked of those who have the general permission.

A run that is refused looks as one that does not exist. Whoever has no hook pays nothing for it. Also what a user is
called in the history of the runs that they steer.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.utils.module_loading import import_string

from workflow.conf import conf
from workflow.errors import RunNotFound
from workflow.manager import arguments
from workflow.models import Run

logger = logging.getLogger("workflow")

Hook = Callable[[Any, Run], bool]

_UNREAD = ("input", "state", "error")
"""Columns that may be large; a hook that wants one reads it by naming it."""


def hook() -> Hook | None:
    """The project's own function, or None. Raises what importing it raises, and ``TypeError`` for what can't be
    asked: a coroutine would be as good as true.
    """
    given: object = conf.CAN_VIEW_RUN
    if given is None:
        return None
    found: Any = import_string(given) if isinstance(given, str) else given
    if not callable(found):
        raise TypeError(f"{found!r} can't be called")
    call = getattr(found, "__call__", None)  # noqa: B004  it may be an object with an async one
    if inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(call):
        raise TypeError(f"{found!r} is async, and must be a plain function")
    checked: Hook = found
    return checked


def who(request: HttpRequest) -> str | None:
    """Who asks, for ``by=``: the user's name as far as it can be kept, or the key of one who has none.

    None when there is no user, as behind an ``authorize`` of a project's own.
    """
    user: Any = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return None
    name = str(user.get_username() or "")[: arguments.MAX_TEXT]
    return name or (None if user.pk is None else f"user {user.pk}"[: arguments.MAX_TEXT])


def may_view(user: Any, run_id: UUID) -> bool:
    """Whether ``user`` may see this run. True for a run that does not exist: what is asked next says so."""
    return run_id in viewable(user, [run_id])


def require(user: Any, run_id: UUID) -> None:
    """Raises ``RunNotFound``, worded as for a run that does not exist, where ``user`` may not see it."""
    _require(run_id, viewable(user, [run_id]))


def only(seen: Collection[UUID], command: Callable[[UUID], object]) -> Callable[[UUID], object]:
    """The command for the runs that were seen; it raises as ``require`` does for any other."""

    def command_if_seen(run_id: UUID) -> object:
        _require(run_id, seen)
        return command(run_id)

    return command_if_seen


def _require(run_id: UUID, seen: Collection[UUID]) -> None:
    if run_id not in seen:
        raise RunNotFound(f"no run has the id {run_id}")


def viewable(user: Any, run_ids: Iterable[UUID]) -> set[UUID]:
    """Those of the runs that ``user`` may see, found with one statement."""
    wanted = set(run_ids)
    if conf.CAN_VIEW_RUN is None or not wanted:
        return wanted
    try:
        asked = hook()
    except Exception:
        logger.exception('WORKFLOW["CAN_VIEW_RUN"] cannot be used; nobody sees any run')
        return set()
    if asked is None:
        return wanted
    rows = Run.objects.using(conf.DATABASE).filter(pk__in=wanted).defer(*_UNREAD)
    return wanted - {run.pk for run in rows if not _allows(asked, user, run)}


def _allows(asked: Hook, user: Any, run: Run) -> bool:
    """A hook that raises refuses."""
    run_id = run.pk  # the hook might change it
    try:
        allowed: object = asked(user, run)
        if inspect.isawaitable(allowed):
            if inspect.iscoroutine(allowed):
                allowed.close()
            raise TypeError(f"{asked!r} must be a plain function")
        return bool(allowed)
    except Exception:
        logger.exception('WORKFLOW["CAN_VIEW_RUN"] failed for the run %s, which stays hidden', run_id)
        return False
