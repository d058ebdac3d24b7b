"""Bulk retry and cancel: what a filter picks, what is done, what is refused and why."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from tests.edges.api.conftest import NOBODY
from tests.support import web
from tests.support.web import error, post
from workflow import bulk, workflows
from workflow.errors import RunConflict, RunNotFound
from workflow.models import Job, Run, RunEvent
from workflow.testing import drain

pytestmark = pytest.mark.django_db
RETRY = "/workflow/retry/"
CANCEL = "/workflow/cancel/"


def statuses(*run_ids: uuid.UUID) -> list[str]:
    return [workflows.status(run_id).run.status for run_id in run_ids]


def done(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.content
    body: dict[str, Any] = response.json()
    assert set(body) == {"dry_run", "done", "refused", "reasons", "next"}
    return body


def test_every_failed_run_goes_on_and_the_others_say_why_not(client):
    failed = [web.failed("a"), web.failed("b")]
    parked = web.waiting("c")
    over = web.completed()
    web.FAULTY.clear()
    answer = done(post(client, RETRY, {"filter": {"workflow": "web-order"}}))
    assert answer == {
        "dry_run": False,
        "done": 2,
        "refused": 1,
        "reasons": [
            {
                "code": "RUN_STATE_CONFLICT",
                "message": "the run is waiting, so it can't be retried",
                "count": 1,
                "run_ids": [str(parked)],
            }
        ],
        "next": None,
    }
    assert statuses(*failed, parked, over) == ["running", "running", "waiting", "completed"]
    for run_id in failed:
        assert RunEvent.objects.filter(run_id=run_id, name="resumed").latest("seq").data["by"] == "olga"
        drain(run_id)
    assert statuses(*failed) == ["waiting", "waiting"]


def test_every_matching_run_is_cancelled_with_one_reason(client):
    first = web.waiting("a", correlation_id="c")
    second = workflows.dispatch(web.FREE, correlation_id="c").run_id
    other = web.waiting("b", correlation_id="d")
    answer = done(post(client, CANCEL, {"filter": {"correlation": "c"}, "reason": "sold out"}))
    assert (answer["done"], answer["refused"]) == (2, 0)
    assert statuses(first, second, other) == ["cancelled", "cancelled", "waiting"]
    for run_id in (first, second):
        entry = RunEvent.objects.get(run_id=run_id, name="cancelled")
        assert entry.data == {"reason": "sold out", "by": "olga"}


def test_a_bulk_cancel_can_undo_what_is_done(client):
    run_id = web.waiting()
    done(post(client, CANCEL, {"filter": {"status": "waiting"}, "compensate": True}))
    assert statuses(run_id) == ["compensating"]


def test_a_dry_run_counts_the_same_and_changes_nothing(client):
    failed = [web.failed("a"), web.failed("b")]
    web.waiting("c")
    tables = (Run, Job, RunEvent)
    before = [list(table.objects.order_by("pk").values()) for table in tables]
    body = {"filter": {"workflow": "web-order"}}
    dry = done(post(client, RETRY, {**body, "dry_run": True}))
    assert [list(table.objects.order_by("pk").values()) for table in tables] == before
    wet = done(post(client, RETRY, body))
    assert {**dry, "dry_run": False} == wet
    assert wet["done"] == 2
    assert statuses(*failed) == ["running", "running"]


def test_a_dry_run_announces_nothing(client, django_capture_on_commit_callbacks):
    run_id = web.waiting()
    body = {"filter": {"status": "waiting"}}
    with django_capture_on_commit_callbacks() as after_dry:
        assert done(post(client, CANCEL, {**body, "dry_run": True}))["done"] == 1
    with django_capture_on_commit_callbacks() as after_wet:
        assert done(post(client, CANCEL, body))["done"] == 1
    assert (len(after_dry), len(after_wet)) == (0, 1)
    assert statuses(run_id) == ["cancelled"]


@pytest.mark.django_db(transaction=True)
def test_a_dry_run_of_its_own_leaves_no_trace_and_no_transaction_open(client):
    run_id = workflows.dispatch(web.FREE).run_id
    before = Run.objects.values().get(pk=run_id)
    assert done(post(client, CANCEL, {"filter": {"status": "pending"}, "dry_run": True}))["done"] == 1
    assert not transaction.get_connection().in_atomic_block
    assert Run.objects.values().get(pk=run_id) == before
    assert Job.objects.filter(run_id=run_id).count() == 1


def test_named_runs_are_each_done_or_refused(client):
    parked, over = web.waiting(), web.completed()
    ids = [str(run_id) for run_id in (parked, over, NOBODY, parked)]
    answer = done(post(client, CANCEL, {"filter": {"ids": ids}}))
    assert (answer["done"], answer["refused"]) == (1, 2)
    reasons = {reason["code"]: reason for reason in answer["reasons"]}
    assert reasons["RUN_NOT_FOUND"]["message"] == "there is no such run"
    assert reasons["RUN_NOT_FOUND"]["run_ids"] == [str(NOBODY)]
    assert reasons["RUN_STATE_CONFLICT"]["run_ids"] == [str(over)]
    assert statuses(parked, over) == ["cancelled", "completed"]


def test_what_is_left_is_told_and_comes_next(client):
    runs = [workflows.dispatch(web.FREE).run_id for _ in range(5)]
    body: dict[str, Any] = {"filter": {"workflow": "web-free"}, "limit": 2}
    counts = []
    for _ in range(3):
        answer = done(post(client, CANCEL, body))
        counts.append(answer["done"])
        body["after"] = answer["next"]
    assert counts == [2, 2, 1]
    assert answer["next"] is None
    assert set(statuses(*runs)) == {"cancelled"}
    ids: dict[str, Any] = {"filter": {"ids": [str(run_id) for run_id in runs]}, "limit": 3}
    first = done(post(client, CANCEL, ids))
    second = done(post(client, CANCEL, {**ids, "after": first["next"]}))
    assert (first["refused"], second["refused"], second["next"]) == (3, 2, None)


def test_a_filter_that_matches_nothing_does_nothing(client):
    assert done(post(client, CANCEL, {"filter": {"workflow": "no such"}})) == {
        "dry_run": False,
        "done": 0,
        "refused": 0,
        "reasons": [],
        "next": None,
    }


@pytest.mark.parametrize("path", [RETRY, CANCEL])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"filter": None},
        {"filter": {}},
        {"filter": []},
        {"filter": {"workflow": None, "status": None}},
        {"filter": {"ids": []}},
        {"filter": {"ids": ["x"]}},
        {"filter": {"ids": str(NOBODY)}},
        {"filter": {"ids": [str(NOBODY)], "status": "failed"}},
        {"filter": {"ids": [str(NOBODY)] * (bulk.MOST + 1)}},
        {"filter": {"status": "done"}},
        {"filter": {"status": ["failed"]}},
        {"filter": {"workflow": 7}},
        {"filter": {"workflow": "a\0"}},
        {"filter": {"correlation": "c" * 256}},
        {"filter": {"input__password__startswith": "S"}},
        {"filter": {"_connector": "OR", "status": "failed"}},
        {"filter": {"status": "failed"}, "dry_run": "yes"},
        {"filter": {"status": "failed"}, "dry_run": 1},
        {"filter": {"status": "failed"}, "limit": 0},
        {"filter": {"status": "failed"}, "limit": bulk.MOST + 1},
        {"filter": {"status": "failed"}, "limit": "5"},
        {"filter": {"status": "failed"}, "after": 7},
        {"filter": {"status": "failed"}, "ids": []},
        {"status": "failed"},
        [],
    ],
)
def test_a_body_that_does_not_say_which_runs_touches_none(client, path, body):
    run_ids = [web.failed(), web.waiting()]
    error(post(client, path, body), 422, "REQUEST_INVALID")
    assert statuses(*run_ids) == ["failed", "waiting"]


def test_a_retry_takes_no_reason_and_a_get_does_nothing(client):
    run_id = web.failed()
    error(post(client, RETRY, {"filter": {"status": "failed"}, "reason": "x"}), 422, "REQUEST_INVALID")
    error(client.get(RETRY, {"status": "failed"}), 405, "METHOD_NOT_ALLOWED")
    assert statuses(run_id) == ["failed"]


def test_a_viewer_can_not_even_try(client):
    run_id = web.failed()
    viewer = web.client_of(web.person("vera", "view_run"))
    body = {"filter": {"status": "failed"}, "dry_run": True}
    error(post(viewer, RETRY, body), 403, "FORBIDDEN")
    assert statuses(run_id) == ["failed"]


@pytest.fixture
def atomic_requests() -> Iterator[None]:
    connections["default"].settings_dict["ATOMIC_REQUESTS"] = True
    yield
    connections["default"].settings_dict["ATOMIC_REQUESTS"] = False


@pytest.mark.django_db(transaction=True)
def test_what_is_done_stays_done_when_the_request_dies_halfway(client, monkeypatch, atomic_requests):
    runs = sorted(workflows.dispatch(web.FREE).run_id for _ in range(3))
    cancel = workflows.cancel

    def breaks_at_the_last(run_id: uuid.UUID, *args: Any, **options: Any) -> None:
        if run_id == runs[-1]:
            raise ConnectionError("the database has gone")
        cancel(run_id, *args, **options)

    monkeypatch.setattr(workflows, "cancel", breaks_at_the_last)
    with pytest.raises(ConnectionError):
        post(client, CANCEL, {"filter": {"workflow": "web-free"}})
    assert statuses(*runs) == ["cancelled", "cancelled", "pending"]


def test_runs_are_taken_in_the_order_in_which_everybody_locks_them():
    seen: list[uuid.UUID] = []
    ids = [uuid.uuid4() for _ in range(50)]
    outcome = bulk.each(ids + ids, seen.append)
    assert seen == sorted(ids)
    assert (outcome.done, outcome.refused, outcome.reasons) == (50, 0, [])


def test_reasons_are_grouped_by_what_they_say_and_name_a_few():
    def refuse(run_id: uuid.UUID) -> None:
        if run_id.int % 3 == 0:
            raise RunNotFound(f"no run has the id {run_id}")
        raise RunConflict(f"run {run_id} is completed, so it can't be retried")

    ids = [uuid.UUID(int=n) for n in range(1, 61)]
    outcome = bulk.each(ids, refuse)
    assert [(r.code, r.message, r.count) for r in outcome.reasons] == [
        ("RUN_STATE_CONFLICT", "the run is completed, so it can't be retried", 40),
        ("RUN_NOT_FOUND", "there is no such run", 20),
    ]
    assert outcome.reasons[0].run_ids == [n for n in ids if n.int % 3][: bulk.EXAMPLES]


def test_a_page_is_picked_by_one_query_without_payloads(client):
    for _ in range(3):
        web.completed()
    with CaptureQueriesContext(transaction.get_connection()) as asked:
        done(post(client, RETRY, {"filter": {"status": "completed"}}))
    picks = [
        q["sql"] for q in asked.captured_queries if "ORDER BY" in q["sql"] and "workflow_run" in q["sql"]
    ]
    assert len(picks) == 1
    assert '"input"' not in picks[0]
