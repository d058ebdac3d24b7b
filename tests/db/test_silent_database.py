"""A database that takes statements and answers none is told of: nobody else would know why nothing goes on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from workflow.store import ports
from workflow.store.ports import AsyncPort, connection_parameters


@pytest.mark.django_db
def test_a_statement_that_is_not_answered_for_long_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ports, "SILENCE", 0.2)
    caplog.set_level(logging.WARNING, logger="workflow")
    parameters = connection_parameters()

    async def ask() -> None:
        port = AsyncPort(lambda: parameters, "workflow silent")
        assert await port.run([("SELECT 1", ())]) == [[(1,)]]
        assert caplog.records == []
        await port.run([("SELECT pg_sleep(0.7)", ())])
        await port.close()

    asyncio.run(ask())
    assert [record.getMessage() for record in caplog.records] == [
        "the database has not answered for 0.2 s on the connection 'workflow silent'"
    ]
