"""What a handler sets in context variables reaches no other, whichever thread or loop they share."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any

import pytest
from django.core.cache import cache
from django.core.cache.backends.locmem import LocMemCache
from django.utils import timezone, translation

from tests.support.moving import Worked, clean
from workflow import Action, Stage, Workflow, workflows

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["clean"]

tenant: ContextVar[str] = ContextVar("tenant", default="nobody's")


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_handler_sets_ends_with_it(is_async: bool) -> None:
    found: list[tuple[Any, ...]] = []

    def plain(state: dict[str, Any]) -> None:
        found.append((tenant.get(), translation.get_language(), timezone.get_current_timezone_name()))
        tenant.set("somebody's")
        translation.activate("de")
        timezone.activate("Asia/Tokyo")

    async def coroutine(state: dict[str, Any]) -> None:
        plain(state)

    act = Action("act", coroutine if is_async else plain, attempts=1)
    before = ("nobody's", translation.get_language(), timezone.get_current_timezone_name())
    workflows.dispatch_many(Workflow("w", stages=[Stage("s", actions=[act])]), [{}] * 3)
    Worked(concurrency=1)
    assert found == [before] * 3


def test_a_plain_handler_finds_the_caches_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is made anew has connections that are made anew."""
    made: list[str] = []
    init = LocMemCache.__init__

    def note(self: Any, *args: Any, **options: Any) -> None:
        made.append(threading.current_thread().name)
        init(self, *args, **options)

    monkeypatch.setattr(LocMemCache, "__init__", note)
    ran: list[Any] = []
    act = Action("act", lambda state: ran.append(cache.get("x")), attempts=1)
    workflows.dispatch_many(Workflow("w", stages=[Stage("s", actions=[act])]), [{}] * 10)
    Worked(concurrency=1)
    threads = [name for name in made if name == "workflow-handler"]
    assert (len(ran), len(threads) < 5) == (10, True)  # once for each cache and thread
