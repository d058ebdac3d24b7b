"""What the JSON API tells of runs: lists, one run, its history."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings
from django.utils.http import urlencode

from tests.edges.api.conftest import BODIES, NOBODY, READS, ROOT, WRITES
from tests.support import web
from tests.support.web import error, post
from workflow import states, workflows
from workflow.models import Run, RunEvent
from workflow.results import RunPage, RunStatus
from workflow.testing import drain

pytestmark = pytest.mark.django_db
# --- GET "" -------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_and_paged_by_keyset(client):
    made = [workflows.dispatch(web.FREE).run_id for _ in range(5)]
    seen: list[str] = []
    after: dict[str, str] = {}
    for expected in (2, 2, 1):
        page = client.get(ROOT, {"limit": 2, **after}).json()
        assert set(page) == {"items", "next"}
        RunPage.model_validate(page)
        assert len(page["items"]) == expected
        seen += [item["id"] for item in page["items"]]
        after = {"after": page["next"]}
    assert page["next"] is None
    assert seen == [str(run_id) for run_id in reversed(made)]


def test_an_item_has_the_fields_of_a_run_and_no_more(client):
    run_id = web.failed()
    (item,) = client.get(ROOT).json()["items"]
    assert set(item) == {
        *("id", "workflow", "version", "status", "state", "input", "error", "correlation_id"),
        *("created_at", "started_at", "finished_at"),
    }
    assert item["id"] == str(run_id)
    assert item["input"] == {"order_id": "f", "total": 0, "card": None}
    assert item["error"]["code"] == "ACTION_FAILED"
    assert datetime.fromisoformat(item["created_at"]).tzinfo is not None


def test_the_filters_workflow_status_and_correlation_go_together(client):
    one = web.waiting("a", correlation_id="c-1")
    two = web.waiting("b", correlation_id="c-2")
    three = workflows.dispatch(web.FREE, correlation_id="c-1").run_id

    def ids(**query: str) -> list[uuid.UUID]:
        return [uuid.UUID(item["id"]) for item in client.get(ROOT, query).json()["items"]]

    assert ids() == [three, two, one]
    assert ids(workflow="web-order") == [two, one]
    assert ids(status="pending") == [three]
    assert ids(correlation="c-1") == [three, one]
    assert ids(correlation="c-1", workflow="web-order", status="waiting") == [one]
    assert ids(workflow="nothing of that name") == []
    for status in states.RUN_STATUSES:
        assert client.get(ROOT, {"status": status}).status_code == 200


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        ("limit=1001", "limit"),
        ("limit=ten", "limit"),
        ("limit=", "limit"),
        ("limit=1.5", "limit"),
        ("limit=1_0", "limit"),
        ("limit=%2B5", "limit"),
        ("limit=%EF%BC%95", "limit"),  # a full-width five
        ("limit=" + "9" * 400, "limit"),
        ("after=x", "after"),
        ("after=", "after"),
        ("after=7", "after"),
        ("status=done", "status"),
        ("status=", "status"),
        ("status=FAILED", "status"),
        ("workflow=%00", "workflow"),
        ("correlation=a%00b", "correlation"),
        ("workflow=" + "w" * 256, "workflow"),
        ("correlation=" + "c" * 256, "correlation"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_422_and_is_named(client, query, field):
    refused = error(client.get(f"{ROOT}?{query}"), 422, "REQUEST_INVALID")
    assert [detail["loc"] for detail in refused["details"]] == [[field]]


UNKNOWN = [
    "_connector",
    "_negated",
    "input__a'b",
    "input__password__startswith",
    "status__in",
    "correlation_id",
    "worker__user__password__startswith",
    "pk",
    "order_by",
    "offset",
    "__class__",
    "\0",
    "model_config",
    "\u202e",
    "<script>",
]


@pytest.mark.parametrize("route", [*READS, *WRITES])
def test_an_unknown_parameter_is_422_and_reaches_no_query(client, route, django_assert_max_num_queries):
    for name in UNKNOWN:
        address = f"{ROOT}{route.format(run=NOBODY)}?{urlencode({name: '1'})}"
        with django_assert_max_num_queries(4) as asked:  # session, user and its permissions
            response = client.get(address) if route in READS else post(client, address, BODIES.get(route, {}))
        refused = error(response, 422, "REQUEST_INVALID")
        assert refused["details"][0]["loc"] == [name.replace("\0", "\ufffd")]
        assert not any("workflow_run" in query["sql"] for query in asked.captured_queries)


def test_a_parameter_given_twice_is_422_instead_of_half_obeyed(client):
    refused = error(client.get(f"{ROOT}?status=failed&status=running"), 422, "REQUEST_INVALID")
    assert "2 times" in refused["message"]


def test_a_query_string_without_end_is_refused_in_json(client):
    many = "&".join(f"p{index}=1" for index in range(1100))
    error(client.get(f"{ROOT}?{many}"), 400, "REQUEST_TOO_LARGE")
    hundreds = "&".join(f"p{index}=1" for index in range(900))
    refused = error(client.get(f"{ROOT}?{hundreds}"), 422, "REQUEST_INVALID")
    assert len(refused["details"]) == 100


def test_a_list_asks_as_many_questions_for_one_run_as_for_fifty(client, django_assert_num_queries):
    web.completed()
    with django_assert_num_queries(5):  # session, user, two kinds of permission, the page
        client.get(ROOT)
    for _ in range(49):
        workflows.dispatch(web.FREE)
    with django_assert_num_queries(5):
        assert len(client.get(ROOT).json()["items"]) == 50


# --- GET <uuid>/ --------------------------------------------------------------------------------


def test_a_run_is_its_run_status(client):
    run_id = web.failed()
    response = client.get(f"{ROOT}{run_id}/")
    assert response["Content-Type"] == "application/json"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert RunStatus.model_validate_json(response.content) == workflows.status(run_id)
    assert response.content.decode() == workflows.status(run_id).model_dump_json()
    assert [node["path"] for node in response.json()["nodes"]][:3] == [
        "web-order",
        "web-order.pay",
        "web-order.pay.charge",
    ]


@pytest.mark.parametrize("suffix", ["", "history/", "retry/", "cancel/", "resume/"])
@pytest.mark.parametrize(
    "run_id", [str(NOBODY), "no-uuid", "0", "%00", "%F0%9F%92%A9", "a" * 2000, "<script>", "..", "admin"]
)
def test_an_unknown_run_and_what_is_no_run_id_are_404(client, run_id, suffix):
    address = f"{ROOT}{run_id}/{suffix}"
    response = post(client, address) if suffix in {"retry/", "cancel/", "resume/"} else client.get(address)
    error(response, 404, "RUN_NOT_FOUND")


def test_a_polling_client_is_told_that_nothing_has_changed(client, django_assert_num_queries):
    run_id = web.waiting()
    address = f"{ROOT}{run_id}/"
    first = client.get(address)
    tag = first["ETag"]
    with django_assert_num_queries(5):  # session, user, two kinds of permission, the tag
        same = client.get(address, headers={"If-None-Match": tag})
    assert (same.status_code, same.content, same["ETag"]) == (304, b"", tag)
    assert client.get(address, headers={"If-None-Match": f'"other", {tag}'}).status_code == 304
    assert client.get(address, headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.get(address, headers={"If-None-Match": "*"}).status_code == 304


def test_the_tag_changes_with_every_transition_and_with_what_is_masked(client):
    run_id = workflows.dispatch(web.ORDER, {"order_id": "o"}).run_id
    address = f"{ROOT}{run_id}/"
    tags = [client.get(address)["ETag"]]
    drain(run_id)
    tags.append(client.get(address)["ETag"])
    workflows.resume(run_id, {"ok": True})
    tags.append(client.get(address)["ETag"])
    drain(run_id)
    tags.append(client.get(address)["ETag"])
    with override_settings(WORKFLOW={"REDACT": ["card"]}):
        tags.append(client.get(address)["ETag"])
    assert len(set(tags)) == 5
    for tag in tags[:-2]:
        fresh = client.get(address, headers={"If-None-Match": tag})
        assert fresh.status_code == 200
        assert fresh.json()["run"]["status"] == "completed"


def test_head_answers_like_get_without_a_body(client):
    run_id = web.waiting()
    response = client.head(f"{ROOT}{run_id}/")
    assert (response.status_code, response.content) == (200, b"")
    assert response["ETag"] == client.get(f"{ROOT}{run_id}/")["ETag"]


def test_an_answer_is_never_kept_by_anybody_else(client):
    run_id = web.waiting()
    assert client.get(f"{ROOT}{run_id}/")["Cache-Control"] == "private, no-cache"
    assert client.get(ROOT)["Cache-Control"] == "no-store"
    assert client.get(f"{ROOT}{NOBODY}/")["Cache-Control"] == "no-store"


def test_what_json_has_no_number_for_is_null(client):
    run_id = web.completed()
    # jsonb's numbers reach further than Python's floats.
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workflow_run SET state = jsonb_build_object('big', 1e400::numeric + 0.5) WHERE id = %s",
            [run_id],
        )
    body = client.get(f"{ROOT}{run_id}/").content.decode()

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(body, parse_constant=refuse)["run"]["state"] == {"big": None}


# --- GET <uuid>/history/ ------------------------------------------------------------------------


def test_the_history_is_what_was_pushed_in_order_and_from_any_number_on(client):
    run_id = web.failed()
    address = f"{ROOT}{run_id}/history/"
    whole = client.get(address).json()
    assert whole["next"] is None
    assert [item["seq"] for item in whole["items"]] == list(range(1, len(whole["items"]) + 1))
    stored = list(RunEvent.objects.filter(run_id=run_id).order_by("seq"))
    assert [(item["name"], item["node"]) for item in whole["items"]] == [(e.name, e.node) for e in stored]
    for item, entry in zip(whole["items"], stored, strict=True):
        assert item["type"] == "workflow.event"
        assert item["run_id"] == str(run_id)
        assert datetime.fromisoformat(item["at"]) == entry.at
        assert {**item, **(entry.data or {})} == item, "with all that the event carries"
    later = client.get(address, {"after": 3}).json()["items"]
    assert later == whole["items"][3:]
    assert client.get(address, {"after": len(stored)}).json() == {"items": [], "next": None}
    assert client.get(address, {"after": 2**31 - 1}).json() == {"items": [], "next": None}


def test_the_history_comes_in_pages(client):
    run_id = web.failed()
    address = f"{ROOT}{run_id}/history/"
    whole = client.get(address).json()["items"]
    seen: list[Any] = []
    after: int | None = 0
    for _ in whole:
        page = client.get(address, {"after": after, "limit": 2}).json()
        seen += page["items"]
        after = page["next"]
        if after is None:
            break
    assert seen == whole
    assert after is None


@pytest.mark.parametrize(
    "query",
    [
        "after=-1",
        "after=x",
        "after=",
        f"after={2**31}",
        f"after={NOBODY}",
        "after=1.0",
        "after=+1",
        "after=1_0",
        "after=²",
        "after=٣",
        f"after={'0' * 5_000}",
        "limit=0",
        "limit=1001",
        f"limit={'9' * 5_000}",
    ],
)
def test_a_bad_place_in_the_history_is_422(client, query):
    run_id = web.waiting()
    refused = error(client.get(f"{ROOT}{run_id}/history/?{query}"), 422, "REQUEST_INVALID")
    assert refused["details"][0]["loc"] == [query.split("=")[0]]


def test_no_field_of_a_log_can_pose_as_one_of_the_entry(client):
    run_id = web.completed()
    seq = Run.objects.get(pk=run_id).seq + 1
    RunEvent.objects.create(
        run_id=run_id,
        seq=seq,
        name="log",
        data={
            "seq": 1,
            "type": "x",
            "name": "completed",
            "run_id": "x",
            "at": "x",
            "node": 7,
            "message": "m",
        },
    )
    (item,) = client.get(f"{ROOT}{run_id}/history/", {"after": seq - 1}).json()["items"]
    assert item.pop("at")
    assert item == {
        "type": "workflow.event",
        "name": "log",
        "run_id": str(run_id),
        "seq": seq,
        "node": None,
        "message": "m",
    }


def times_in(value: Any) -> list[datetime]:
    """All values of the names that times have."""
    if isinstance(value, list):
        return [time for part in value for time in times_in(part)]
    if not isinstance(value, dict):
        return []
    own = [value[name] for name in value if name.endswith("_at") or name in ("at", "until")]
    return [datetime.fromisoformat(time) for time in own if time] + times_in(list(value.values()))


@override_settings(USE_TZ=False, TIME_ZONE="America/New_York")
def test_times_have_an_offset_without_use_tz_too(client):
    run_id = web.waiting()
    paused = post(client, f"{ROOT}pause/", {"queue": "q", "seconds": 60}).json()
    answers = [
        client.get(f"{ROOT}{path}").json() for path in ("", f"{run_id}/", f"{run_id}/history/", "pauses/")
    ]
    answers.append(post(client, f"{ROOT}{run_id}/cancel/").json())
    for answer in (paused, *answers):
        found = times_in(answer)
        assert found
        for time in found:
            assert time.utcoffset() == timedelta(0), answer
            assert abs(datetime.now(UTC) - time) < timedelta(minutes=3)
    assert len(times_in(answers[1])) >= 8
