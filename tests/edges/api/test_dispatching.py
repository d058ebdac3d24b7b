"""Dispatching over the JSON API: what is made, and what a body may not be."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.test import RequestFactory

from tests.edges.api.conftest import NOBODY, ROOT, WRITES, events
from tests.support import web
from tests.support.web import error, post
from workflow import workflows
from workflow.api import workflow_routes
from workflow.models import Job, Run

pytestmark = pytest.mark.django_db


def test_a_dispatch_answers_201_and_then_200_for_the_same_key(client):
    body = {"workflow": "web-order", "input": {"order_id": "o"}, "idempotency_key": "k"}
    first = post(client, f"{ROOT}dispatch/", body)
    assert first.status_code == 201
    assert set(first.json()) == {"run_id", "created"}
    assert first.json()["created"] is True
    assert first["Location"] == f"{ROOT}{first.json()['run_id']}/"
    assert client.get(first["Location"]).json()["run"]["input"]["order_id"] == "o"
    again = post(client, f"{ROOT}dispatch/", body)
    assert again.status_code == 200
    assert again.json() == {"run_id": first.json()["run_id"], "created": False}
    assert Run.objects.count() == 1


def test_a_dispatch_hands_all_its_options_on_and_records_who_asked(client):
    body = {
        "workflow": "web-order",
        "input": {"order_id": "o", "total": 3},
        "context": {"tenant": 7},
        "correlation_id": "c",
        "queue": "slow",
        "priority": -5,
        "delay": 60,
    }
    run_id = post(client, f"{ROOT}dispatch/", body).json()["run_id"]
    run = Run.objects.get(pk=run_id)
    assert (run.context, run.correlation_id, run.queue, run.priority) == ({"tenant": 7}, "c", "slow", -5)
    job = Job.objects.get(run_id=run_id)
    assert 59 < (job.available_at - run.created_at).total_seconds() < 61
    assert events(run.pk, "log") == [{"message": "dispatched", "by": "olga"}]


@pytest.mark.parametrize(
    ("body", "places"),
    [
        ({}, [["workflow"]]),
        ({"workflow": None}, [["workflow"]]),
        ({"workflow": ""}, [["workflow"]]),
        ({"workflow": 7}, [["workflow"]]),
        ({"workflow": ["web-free"]}, [["workflow"]]),
        ({"workflow": "w" * 81}, [["workflow"]]),
        ({"workflow": "a\0"}, [["workflow"]]),
        ({"workflow": "web-free", "run_id": "x"}, [["run_id"]]),
        ({"workflow": "web-free", "by": "somebody else"}, [["by"]]),
        ({"workflow": "web-free", "priority": "1"}, [["priority"]]),
        ({"workflow": "web-free", "priority": True}, [["priority"]]),
        ({"workflow": "web-free", "priority": 1.5}, [["priority"]]),
        ({"workflow": "web-free", "priority": 2**31}, [["priority"]]),
        ({"workflow": "web-free", "delay": -1}, [["delay"]]),
        ({"workflow": "web-free", "delay": 1e308}, [["delay"]]),
        ({"workflow": "web-free", "delay": "1"}, [["delay"]]),
        ({"workflow": "web-free", "queue": ""}, [["queue"]]),
        ({"workflow": "web-free", "queue": None}, [["queue"]]),
        ({"workflow": "web-free", "queue": "q" * 101}, [["queue"]]),
        ({"workflow": "web-free", "queue": "#events"}, [["queue"]]),
        ({"workflow": "web-free", "delay": 10**400}, [["delay"]]),
        ({"workflow": "web-free", "correlation_id": 5}, [["correlation_id"]]),
        ({"workflow": "web-free", "correlation_id": ""}, [["correlation_id"]]),
        ({"workflow": "web-free", "idempotency_key": "k" * 256}, [["idempotency_key"]]),
        ({"workflow": "web-free", "idempotency_key": "\ud800"}, [["idempotency_key"]]),
        ({"workflow": "web-free", "correlation_id": "\0"}, [["correlation_id"]]),
        ({"x": 1, "y": 2, "workflow": "web-free"}, [["x"], ["y"]]),
        ([], [[]]),
        ("text", [[]]),
        (None, [["workflow"]]),
        (7, [[]]),
        (True, [[]]),
    ],
)
def test_a_body_of_the_wrong_shape_is_422_and_says_where(client, body, places):
    response = post(client, f"{ROOT}dispatch/", body if body is None else json.dumps(body))
    refused = error(response, 422, "REQUEST_INVALID")
    assert [detail["loc"] for detail in refused["details"]] == places
    assert not Run.objects.exists()


def test_an_input_that_the_workflow_does_not_accept_is_422_with_pydantics_list(client):
    body = {"workflow": "web-order", "input": {"total": "many"}}
    refused = error(post(client, f"{ROOT}dispatch/", body), 422, "WORKFLOW_INPUT_INVALID")
    assert [(d["loc"], d["type"]) for d in refused["details"]] == [
        (["input", "order_id"], "missing"),
        (["input", "total"], "int_parsing"),
    ]
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    "data",
    [
        '{"a": "\\u0000"}',
        '{"\\ud800": 1}',
        '{"a": 1e999}',
        "[" * 300 + "]" * 300,
        json.dumps("x" * 1_100_000),
    ],
)
@pytest.mark.parametrize("place", ["input", "context"])
def test_a_payload_that_cannot_be_stored_is_422(client, data, place):
    body = f'{{"workflow": "web-free", "{place}": {data}}}'
    refused = error(post(client, f"{ROOT}dispatch/", body), 422, "PAYLOAD_INVALID")
    assert place in refused["message"]
    assert not Run.objects.exists()


def test_a_workflow_that_nobody_registered_is_404(client):
    refused = error(post(client, f"{ROOT}dispatch/", {"workflow": "os.system"}), 404, "WORKFLOW_UNKNOWN")
    assert "os.system" in refused["message"]


NO_JSON = [
    "{",
    "{'a': 1}",
    "nonsense",
    '{"workflow": NaN}',
    '{"workflow": Infinity}',
    '{"workflow": "web-free",}',
    '{"workflow": "web-free"} x',
    b'{"workflow": "\xff"}',
    b"\x00",
    "[" * 100_000,
    '{"workflow": ' + "9" * 5000 + "}",
    "workflow=web-free",
]


@pytest.mark.parametrize("route", WRITES)
def test_what_is_not_json_is_400(client, route):
    run_id = web.waiting()
    for body in NO_JSON:
        error(post(client, ROOT + route.format(run=run_id), body), 400, "MALFORMED_JSON")
    assert workflows.status(run_id).run.status == "waiting"
    assert Run.objects.count() == 1


def test_a_form_is_not_json(client):
    error(client.post(f"{ROOT}dispatch/", {"workflow": "web-free"}), 400, "MALFORMED_JSON")
    form = client.post(
        f"{ROOT}dispatch/", "workflow=web-free", content_type="application/x-www-form-urlencoded"
    )
    error(form, 400, "MALFORMED_JSON")


def test_json_is_json_in_any_of_its_encodings(client):
    body = json.dumps({"workflow": "web-order", "input": {"order_id": "ü"}}, ensure_ascii=False)
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        response = post(client, f"{ROOT}dispatch/", body.encode(encoding))
        assert response.status_code == 201
        assert Run.objects.get(pk=response.json()["run_id"]).input["order_id"] == "ü"


def test_a_body_over_djangos_limit_is_400_in_json(client, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    body = {"workflow": "web-free", "input": "x" * 2000}
    for route in WRITES:
        error(post(client, ROOT + route.format(run=NOBODY), body), 400, "REQUEST_TOO_LARGE")


def test_a_body_that_breaks_off_is_400(operator):
    class Broken(io.RawIOBase):
        def read(self, *args: Any) -> bytes:
            raise OSError("connection reset")

    request = RequestFactory().post(f"{ROOT}dispatch/", b"{}", content_type="application/json")
    request.user = operator
    request._dont_enforce_csrf_checks = True  # type: ignore[attr-defined]
    request._stream = Broken()  # type: ignore[attr-defined]
    view = next(p.callback for p in workflow_routes() if p.name == "workflow-api-dispatch")
    error_response = view(request)
    assert error_response.status_code == 400
    assert json.loads(error_response.content)["error"]["code"] == "REQUEST_UNREADABLE"


def test_an_unknown_field_of_any_spelling_is_shown_as_text(client):
    hostile = ["</script><img src=x onerror=alert(1)>", "\u202egnp.exe", "\0", "x" * 100_000]
    refused = error(
        post(client, f"{ROOT}dispatch/", {"workflow": "web-free", **dict.fromkeys(hostile, 1)}),
        422,
        "REQUEST_INVALID",
    )
    assert refused["details"][0]["loc"] == [hostile[0]]
    assert len(refused["details"]) == 4
    assert max(len(detail["loc"][0]) for detail in refused["details"]) <= 200
    for surrogate in ({"\ud800": 1}, {"workflow": "\ud800"}, {"workflow": "web-free", "\udfff": 1}):
        error(post(client, f"{ROOT}dispatch/", surrogate), 422, "REQUEST_INVALID")


@pytest.mark.parametrize(
    ("path", "body", "loc", "rule"),
    [
        ("dispatch/", {"workflow": "a\0"}, ["workflow"], "must not hold a NUL character"),
        ("cancel/", {"filter": {}}, ["filter"], "the filter must name a workflow, a status, a correlation or ids"),
        (
            "retry/",
            {"filter": {"status": "failed", "ids": [str(NOBODY)]}},
            ["filter"],
            "ids can't be combined with other conditions",
        ),
    ],
)  # fmt: skip
def test_a_rule_of_ours_is_said_without_the_words_of_a_library(client, path, body, loc, rule):
    refused = error(post(client, f"{ROOT}{path}", body), 422, "REQUEST_INVALID")
    assert refused["message"] == f"{loc[0]}: {rule}"
    assert refused["details"] == [{"type": "value_error", "loc": loc, "msg": rule}]
