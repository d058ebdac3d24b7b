"""A worker's statements are planned once and for some seconds: a plan for empty tables is none for a backlog."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from django.db import connection

from workflow.store import pipeline
from workflow.store.ports import AsyncPort, connection_parameters

pytestmark = pytest.mark.django_db(transaction=True)

STATEMENT = ("SELECT count(*) FROM workflow_event WHERE type >= %s", ("",))


def add_events() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO workflow_event (id, type, xact) SELECT gen_random_uuid(), 'e', 0 FROM generate_series(1, 5000)"
        )
    connection.close()  # this thread's own


def costs_before_and_after_growth() -> list[float]:
    """What the server takes the statement to cost, before and after the table has grown."""
    parameters = connection_parameters()

    async def work() -> list[float]:
        port = AsyncPort(lambda: parameters, "test")
        costs = []
        try:
            for count in (0, 5000):
                if count:
                    await asyncio.to_thread(add_events)
                assert await port.run([STATEMENT, STATEMENT]) == [[(count,)], [(count,)]]
                plan: Any = await port.run([("EXPLAIN EXECUTE workflow_0('')", ())])
                found = re.search(r"\.\.([\d.]+) rows", plan[0][0][0])
                assert found
                costs.append(float(found[1]))
        finally:
            await port.close()
        return costs

    return asyncio.run(work())


def test_plans_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PLAN_AGE", (3600.0,))
    before, after = costs_before_and_after_growth()
    assert after == before


def test_old_plans_are_made_anew_for_the_tables_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PLAN_AGE", (0.0,))
    before, after = costs_before_and_after_growth()
    assert after > 2 * before
