"""Pages of runs."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.support import rows
from tests.support.definitions import ORDER, PLAIN
from workflow import workflows
from workflow.results import RunInfo

pytestmark = pytest.mark.django_db


def dispatched(count: int, **options: Any) -> list[uuid.UUID]:
    return [handle.run_id for handle in workflows.dispatch_many(PLAIN, range(count), **options)]


def test_no_runs_are_an_empty_page() -> None:
    page = workflows.list()
    assert (page.items, page.next) == ([], None)


def test_the_newest_come_first_with_all_that_a_run_has() -> None:
    first, second = dispatched(2)
    page = workflows.list()
    assert [item.id for item in page.items] == [second, first]
    assert page.next is None
    assert isinstance(page.items[0], RunInfo)
    assert page.items[0] == workflows.status(second).run


def test_pages_follow_one_another_without_gap_or_overlap() -> None:
    ids = dispatched(25)
    found, after, pages = [], None, 0
    while True:
        page = workflows.list(limit=10, after=after)
        found += [item.id for item in page.items]
        pages += 1
        if page.next is None:
            break
        assert len(page.items) == 10
        after = page.next
    assert pages == 3
    assert found == ids[::-1]


def test_a_full_last_page_has_no_next() -> None:
    dispatched(10)
    assert workflows.list(limit=10).next is None


def test_runs_that_come_in_meanwhile_do_not_shift_the_pages() -> None:
    ids = dispatched(4)
    page = workflows.list(limit=2)
    dispatched(3)
    assert [item.id for item in workflows.list(limit=2, after=page.next).items] == [ids[1], ids[0]]


def test_a_cursor_may_be_a_run_id() -> None:
    ids = dispatched(3)
    assert [item.id for item in workflows.list(after=ids[2]).items] == [ids[1], ids[0]]
    assert workflows.list(after=str(ids[0])).items == []


def test_the_default_is_fifty() -> None:
    dispatched(51)
    page = workflows.list()
    assert len(page.items) == 50
    assert page.next == str(page.items[-1].id)


def test_filters_by_themselves_and_together() -> None:
    one, two = dispatched(2, correlation_id="c")
    other = workflows.dispatch(ORDER, {"order_id": "o"}, correlation_id="c").run_id
    plain = workflows.dispatch(PLAIN).run_id
    rows.start(two)
    rows.end(plain, "completed")

    def found(**filters: Any) -> list[uuid.UUID]:
        return [item.id for item in workflows.list(**filters).items]

    assert found(workflow="plain") == [plain, two, one]
    assert found(status="running") == [two]
    assert found(status="completed") == [plain]
    assert found(correlation_id="c") == [other, two, one]
    assert found(workflow="plain", correlation_id="c", status="pending") == [one]
    assert found(workflow="plain", after=plain, limit=1) == [two]
    assert found(workflow="nobody") == found(correlation_id="C") == found(workflow="") == []
    assert found(workflow="' OR true --", correlation_id="%s") == []


def test_a_page_is_one_statement() -> None:
    dispatched(20)
    with CaptureQueriesContext(connection) as queries:
        workflows.list(limit=5, status="pending")
    assert len(queries) == 1


@pytest.mark.parametrize(
    ("filters", "error"),
    [
        ({"status": "done"}, ValueError),
        ({"status": "skipped"}, ValueError),
        ({"status": ["pending"]}, TypeError),
        ({"limit": 0}, ValueError),
        ({"limit": -1}, ValueError),
        ({"limit": 1001}, ValueError),
        ({"limit": 10**30}, ValueError),
        ({"limit": "5"}, TypeError),
        ({"limit": True}, TypeError),
        ({"limit": None}, TypeError),
        ({"after": "x"}, ValueError),
        ({"after": ""}, ValueError),
        ({"after": 5}, TypeError),
        ({"workflow": 5}, TypeError),
        ({"workflow": "a\0"}, ValueError),
        ({"workflow": "\udcff"}, ValueError),
        ({"correlation_id": b"x"}, TypeError),
        ({"correlation_id": "x" * 256}, ValueError),
    ],
)
def test_filters_that_cannot_be_right_never_reach_the_database(
    filters: dict[str, Any], error: type[Exception]
) -> None:
    (name,) = filters
    with CaptureQueriesContext(connection) as queries, pytest.raises(error, match=name):
        workflows.list(**filters)
    assert len(queries) == 0


def test_limits_at_their_bounds_are_taken() -> None:
    dispatched(2)
    assert len(workflows.list(limit=1).items) == 1
    assert len(workflows.list(limit=1000).items) == 2
