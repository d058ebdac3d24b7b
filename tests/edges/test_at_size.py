"""Pages over large tables: whatever is asked, no statement reads a table through. `python -m tests.pages` measures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.pages import ADDRESSES
from tests.support import past
from workflow import workflows
from workflow.admin import paging
from workflow.dashboard import reading
from workflow.models import Run
from workflow.overview import overview
from workflow.registry import registry

pytestmark = pytest.mark.django_db

RUNS = 30_000
BOUND = 8_000
"""Rows of one table that one statement may look at: a thousand of each status are counted, or of one run in five, and
a run of 1,001 nodes is read whole."""


@pytest.fixture
def runs() -> Iterator[dict[str, Any]]:
    """What stands for the names in brackets."""
    reading.forget()
    with registry.isolated():
        large = past.large(500, 2_000)
        past.due(100)
        past.finished(RUNS, nodes=1)
        old = Run.objects.filter(correlation_id="customer-100").order_by("id")[0].pk
        yield {"<large>": large, "<huge>": large, "<old>": old, "<begin>": str(old)[:8]}
    reading.forget()


def looked_at(plan: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """(table, rows that were read of it) of each scan in a plan."""
    if name := plan.get("Relation Name"):
        rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield name, rows * plan["Actual Loops"]
    for below in plan.get("Plans", ()):
        yield from looked_at(below)


def check(statements: list[str], place: str) -> int:
    """Explains each statement that reads; how many there were."""
    asked = [one for one in statements if re.match(r"\s*(SELECT|WITH)\b", one) and "workflow_" in one]
    for statement in asked:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
            found = cursor.fetchone()[0]
        (whole,) = json.loads(found) if isinstance(found, str) else found
        for table, rows in looked_at(whole["Plan"]):
            assert rows <= BOUND, f"{place} reads {rows:.0f} rows of {table}: {statement}"
    return len(asked)


def test_no_page_reads_a_table_through(runs: dict[str, UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "CAP", 1_000)  # as the dashboard's
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    for address in ADDRESSES:
        page = address
        for name, text in runs.items():
            page = page.replace(name, str(text))
        reading.forget()
        with CaptureQueriesContext(connection) as asked:
            assert client.get(page).status_code == 200, page
        assert check([one["sql"] for one in asked.captured_queries], address) or "/definitions/" in address


def test_no_command_reads_a_table_through(runs: dict[str, UUID]) -> None:
    for name, ask in {
        "workflow:list": workflows.list,
        "workflow:list --status failed": lambda: workflows.list(status="failed"),
        "workflow:status": lambda: workflows.status(runs["<large>"]),
        "workflow:top": overview,
    }.items():
        with CaptureQueriesContext(connection) as asked:
            ask()
        assert check([one["sql"] for one in asked.captured_queries], name)
