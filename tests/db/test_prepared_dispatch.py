"""The call of the dispatch function is kept prepared where that is safe, and is Django's own cursor's elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from django.db import DataError, ProgrammingError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from tests.support.definitions import PLAIN
from workflow import workflows
from workflow.models import Run
from workflow.registry import registry
from workflow.store.prepared import CALLS_UNPREPARED, fetch_one

pytestmark = pytest.mark.django_db(transaction=True)

DISPATCHES = CALLS_UNPREPARED + 3


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """A connection that has prepared nothing yet."""
    connection.close()
    with registry.isolated():
        workflows.register(PLAIN)
        yield


def prepared() -> int:
    """How many statements this connection keeps prepared on the server."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements")
        return int(cursor.fetchone()[0])


def dispatch(times: int = DISPATCHES) -> list[Any]:
    return [workflows.dispatch("plain", {}) for _ in range(times)]


def test_a_connection_that_dispatches_again_and_again_keeps_the_call_prepared() -> None:
    dispatch(CALLS_UNPREPARED)
    assert prepared() == 0
    handles = dispatch(3)
    assert prepared() == 1
    assert [handle.status().run.status for handle in handles] == ["pending"] * 3


def test_options_of_every_kind_share_a_few_prepared_calls() -> None:
    dispatch()
    for options in (
        {"correlation_id": "c"},
        {"idempotency_key": "k"},
        {"priority": 7, "delay": 2.5},
        {"priority": -(2**31), "queue": "q", "context": {"user": 1}},
    ):
        for _ in range(3):
            workflows.dispatch("plain", {"n": 1}, **options)
    assert prepared() <= 4


def test_no_other_query_of_the_project_is_prepared() -> None:
    dispatch()
    with connection.cursor() as cursor:
        for _ in range(10):
            cursor.execute("SELECT 1 + %s", [1])
    assert prepared() == 1


def test_it_takes_part_in_the_transaction_around_it() -> None:
    dispatch()
    with transaction.atomic():
        gone = workflows.dispatch("plain", {}, idempotency_key="k")
        transaction.set_rollback(True)
    again = workflows.dispatch("plain", {}, idempotency_key="k")
    assert again.created
    assert again.run_id != gone.run_id


def test_savepoints_that_are_undone_cost_it_nothing_but_preparing_again() -> None:
    dispatch()
    with transaction.atomic():
        kept = []
        for _ in range(3):
            with pytest.raises(DataError), transaction.atomic():
                fetch_one("default", "SELECT 1 / %s::int", (0,))
            kept += dispatch(2)
    assert [handle.status().run.status for handle in kept] == ["pending"] * 6
    assert prepared() >= 1


def test_whoever_logs_queries_sees_each_of_them(django_assert_num_queries: Any) -> None:
    dispatch()
    with CaptureQueriesContext(connection) as seen:
        dispatch(3)
    assert len([query for query in seen if "workflow_dispatch" in query["sql"]]) == 3


def test_whoever_wraps_queries_is_asked_for_each_of_them() -> None:
    dispatch()
    seen = []

    def look(execute: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(look):
        dispatch(3)
    assert len(seen) == 3


def test_a_transaction_that_is_broken_says_so_as_ever() -> None:
    dispatch()
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            workflows.dispatch("plain", {})


def test_the_databases_errors_are_djangos_and_leave_the_connection_usable() -> None:
    dispatch()
    for _ in range(DISPATCHES):
        with pytest.raises(DataError, match="division by zero"):
            fetch_one("default", "SELECT 1 / %s::int", (0,))
    assert fetch_one("default", "SELECT 1 / %s::int", (1,)) == (1,)


def test_the_projects_own_threshold_for_preparing_stays_what_it_was() -> None:
    dispatch(1)
    connection.connection.prepare_threshold = 3
    dispatch()
    assert connection.connection.prepare_threshold == 3


@pytest.mark.parametrize("statement", ["DISCARD ALL", "DEALLOCATE ALL"])
@pytest.mark.parametrize("open_one", [transaction.atomic, nullcontext], ids=["atomic", "autocommit"])
def test_what_the_project_discards_is_prepared_anew(statement: str, open_one: Any) -> None:
    dispatch()
    for _ in range(3):
        with connection.cursor() as cursor:
            cursor.execute(statement)
        with open_one():
            assert all(handle.created for handle in dispatch(2))
        assert prepared() == 1


def deallocate_unseen() -> None:
    """As a pooler or a server-side job would: psycopg does not get to see it."""
    connection.connection.pgconn.exec_(b"DEALLOCATE ALL")


def test_a_connection_whose_prepared_calls_vanish_stops_preparing() -> None:
    dispatch()
    deallocate_unseen()
    assert all(handle.created for handle in dispatch())
    assert prepared() == 0


@pytest.mark.parametrize("managed", ["atomic", "by hand"])
def test_inside_a_transaction_a_vanished_call_is_one_error_and_no_second_one(managed: str) -> None:
    dispatch()
    deallocate_unseen()
    if managed == "by hand":
        transaction.set_autocommit(False)
    try:
        with transaction.atomic() if managed == "atomic" else nullcontext():
            Run.objects.exists()  # it has begun
            with pytest.raises(ProgrammingError) as caught:
                workflows.dispatch("plain", {})
            transaction.set_rollback(True) if managed == "atomic" else transaction.rollback()
    finally:
        if managed == "by hand":
            transaction.set_autocommit(True)
    assert isinstance(caught.value.__cause__, psycopg.errors.InvalidSqlStatementName)
    with transaction.atomic():
        assert workflows.dispatch("plain", {}).created


def test_with_djangos_pool_nothing_is_prepared() -> None:
    unpooled = connections["default"]
    options = {**unpooled.settings_dict["OPTIONS"], "pool": {"min_size": 1, "max_size": 1}}
    settings = {**unpooled.settings_dict, "OPTIONS": options, "CONN_MAX_AGE": 0}
    pooled = type(unpooled)(settings, "default")
    connections["default"] = pooled
    try:
        for _ in range(DISPATCHES):
            dispatch(1)
            assert prepared() == 0
            pooled.close()  # goes back to the pool
    finally:
        connections["default"] = unpooled
        pooled.close_pool()
