"""Who looks at the dashboard, at which runs, and what its pages say."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.test import Client
from django.urls import reverse

from tests.kitchen import workflows as kitchen
from tests.support.definitions import PHASES
from tests.support.web import FAULTY, ORDER, client_of, person
from workflow.dashboard import reading
from workflow.registry import registry

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reading.forget()
    with registry.isolated():
        for one in (ORDER, PHASES, kitchen.toast, kitchen.table):
            registry.register(one)
        yield
    FAULTY.clear()
    reading.forget()


@pytest.fixture
def viewer() -> Client:
    return client_of(person("viewer", "view_run"))


@pytest.fixture
def manager() -> Client:
    return client_of(person("manager", "view_run", "manage_run"))


def url(name: str, *args: Any) -> str:
    return reverse(f"workflow_dashboard:{name}", args=args)


def text(response: Any, status: int = 200) -> str:
    """What a page says, without its markup."""
    assert response.status_code == status, response.content
    plain = re.sub(r"<(script|style).*?</\1>", "", response.content.decode(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", plain)).split())


def all_pages(run_id: UUID) -> list[str]:
    return [
        url("runs"),
        url("runs") + "?fragment=1",
        url("definitions"),
        url("definition", "web-order"),
        url("run", run_id),
        url("run", run_id) + "?node=web-order.pay.charge",
        url("state", run_id),
        url("timeline", run_id),
        url("node", run_id) + "?path=web-order.pay.charge",
        url("data", run_id),
        url("history", run_id),
    ]


def forms(run_id: UUID) -> list[str]:
    return [url(name, run_id) for name in ("retry", "cancel", "resume")]
