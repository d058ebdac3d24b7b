"""Retry, cancel and resume over the JSON API; what it masks, and where it stands."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import connections
from django.test import RequestFactory, override_settings
from django.urls import include, path, reverse

from tests.edges.api.conftest import NOBODY, ROOT, events
from tests.support import web
from tests.support.web import error, post
from workflow import workflows
from workflow.api import workflow_routes
from workflow.api.refusals import CODES
from workflow.models import Run
from workflow.redact import MASK
from workflow.results import RunStatus
from workflow.testing import drain

pytestmark = pytest.mark.django_db
# --- POST <uuid>/retry|cancel|resume/ -----------------------------------------------------------


def test_a_retry_lets_a_failed_run_go_on_and_records_who_asked(client):
    run_id = web.failed()
    web.FAULTY.clear()
    response = post(client, f"{ROOT}{run_id}/retry/")
    assert response.status_code == 200
    assert RunStatus.model_validate_json(response.content).run.status == "running"
    assert events(run_id, "resumed") == [{"retry": True, "from_node": None, "by": "olga"}]
    drain(run_id)
    assert workflows.status(run_id).run.status == "waiting"


def test_a_retry_can_go_back_to_a_node(client):
    run_id = web.failed()
    node = {"from_node": "web-order.pay.charge"}
    assert post(client, f"{ROOT}{run_id}/retry/", node).status_code == 200
    assert events(run_id, "resumed")[0]["from_node"] == "web-order.pay.charge"


def test_a_retry_from_a_node_that_is_not_there_is_404(client):
    run_id = web.failed()
    error(post(client, f"{ROOT}{run_id}/retry/", {"from_node": "web-order.nope"}), 404, "NODE_UNKNOWN")
    assert workflows.status(run_id).run.status == "failed"


@pytest.mark.parametrize("verb", ["cancel", "resume"])
def test_a_form_without_a_field_is_no_body(client, verb):
    run_id = web.waiting()
    response = client.post(f"{ROOT}{run_id}/{verb}/")  # Django's test client sends an empty form
    assert response.status_code == 200
    assert workflows.status(run_id).run.status != "waiting"
    error(client.post(f"{ROOT}{run_id}/{verb}/", {"reason": "x"}), 400, "MALFORMED_JSON")


def test_a_cancel_ends_a_run_and_keeps_the_reason(client):
    run_id = web.waiting()
    response = post(client, f"{ROOT}{run_id}/cancel/", {"reason": "wrong address"})
    assert response.json()["run"]["status"] == "cancelled"
    assert events(run_id, "cancelled") == [{"reason": "wrong address", "by": "olga"}]


def test_a_cancel_can_undo_what_is_done(client):
    run_id = web.waiting()
    response = post(client, f"{ROOT}{run_id}/cancel/", {"compensate": True})
    assert response.json()["run"]["status"] == "compensating"


def test_a_resume_hands_its_payload_to_the_wait(client):
    run_id = web.waiting()
    response = post(client, f"{ROOT}{run_id}/resume/", {"payload": {"ok": [1, None]}})
    assert response.json()["run"]["status"] == "running"
    assert events(run_id, "resumed") == [{"by": "olga"}]
    drain(run_id)
    status = workflows.status(run_id)
    assert status.run.status == "completed"
    assert status.run.state["ok"] == [1, None]


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("retry", {"from_node": 7}),
        ("retry", {"from_node": ""}),
        ("retry", {"from_node": "a\0"}),
        ("retry", {"from_node": "a" * 1001}),
        ("retry", {"payload": 1}),
        ("cancel", {"reason": 7}),
        ("cancel", {"reason": "\0"}),
        ("cancel", {"reason": "r" * 10_001}),
        ("cancel", {"compensate": "yes"}),
        ("cancel", {"compensate": 1}),
        ("cancel", {"from_node": "x"}),
        ("resume", {"reason": "x"}),
        ("resume", {"data": 1}),
    ],
)
def test_a_wrong_body_changes_nothing(client, verb, body):
    run_id = web.failed() if verb == "retry" else web.waiting()
    before = workflows.status(run_id)
    error(post(client, f"{ROOT}{run_id}/{verb}/", body), 422, "REQUEST_INVALID")
    assert workflows.status(run_id) == before


def test_a_payload_that_cannot_be_stored_leaves_the_run_parked(client):
    run_id = web.waiting()
    error(post(client, f"{ROOT}{run_id}/resume/", '{"payload": "\\u0000"}'), 422, "PAYLOAD_INVALID")
    assert workflows.status(run_id).run.status == "waiting"


@pytest.mark.parametrize("verb", ["retry", "cancel", "resume"])
def test_a_run_whose_status_does_not_allow_it_is_409(client, verb):
    run_id = web.completed()
    before = workflows.status(run_id)
    refused = error(post(client, f"{ROOT}{run_id}/{verb}/"), 409, "RUN_STATE_CONFLICT")
    assert "completed" in refused["message"] or "parked" in refused["message"]
    assert workflows.status(run_id) == before


@pytest.mark.parametrize("verb", ["retry", "cancel", "resume"])
def test_the_same_button_pressed_twice_counts_once(client, verb):
    run_id = web.failed() if verb == "retry" else web.waiting()
    answers = [post(client, f"{ROOT}{run_id}/{verb}/").status_code for _ in range(2)]
    assert answers == [200, 409]


def test_no_body_at_all_is_an_empty_one(client):
    for body in (b"", b"  \n"):
        run_id = web.waiting()
        assert post(client, f"{ROOT}{run_id}/cancel/", body).status_code == 200


# --- secrets ------------------------------------------------------------------------------------


@override_settings(WORKFLOW={"REDACT": ["card"]})
def test_what_is_masked_is_masked_in_every_answer(client):
    secret = "4111-1111-1111"
    run_id = web.failed(card=secret)
    answers = [
        client.get(ROOT),
        client.get(f"{ROOT}{run_id}/"),
        client.get(f"{ROOT}{run_id}/history/"),
        post(client, f"{ROOT}{run_id}/retry/"),
        post(client, f"{ROOT}{run_id}/cancel/"),
    ]
    for response in answers:
        assert response.status_code == 200
        assert secret not in response.content.decode()
        assert response["Content-Type"] == "application/json"
    assert MASK in answers[0].content.decode()
    assert answers[1].json()["run"]["input"]["card"] == MASK
    assert answers[1].json()["run"]["error"]["code"] == "ACTION_FAILED"
    failure = next(i for i in answers[2].json()["items"] if i["name"] == "action.failed")
    assert failure["error"]["code"] == "ACTION_FAILED"
    assert failure["error"]["node"] == "web-order.pay.charge"
    assert Run.objects.get(pk=run_id).input["card"] == secret, "what is stored stays"


@override_settings(WORKFLOW={"REDACT": ["card"]})
def test_a_refused_input_is_not_repeated(client):
    body = {"workflow": "web-order", "input": {"order_id": "o", "card": "4000-1234-5678"}}
    response = post(client, f"{ROOT}dispatch/", body)
    refused = error(response, 422, "WORKFLOW_INPUT_INVALID")
    assert "4000" not in response.content.decode()
    assert refused["details"][0]["loc"] == ["input", "card"]


def test_hostile_texts_come_back_as_the_texts_they_are(client):
    hostile = "</script><img src=x onerror=alert(1)>\u202e\u2028'\""
    run_id = web.failed(hostile, correlation_id=hostile)
    response = client.get(f"{ROOT}{run_id}/")
    assert response["Content-Type"] == "application/json"
    assert response["X-Content-Type-Options"] == "nosniff"
    run = response.json()["run"]
    assert run["correlation_id"] == hostile
    assert hostile in run["error"]["message"]
    assert client.get(ROOT, {"correlation": hostile}).json()["items"][0]["id"] == str(run_id)


# --- where it stands ----------------------------------------------------------------------------


def test_refusals_leave_a_projects_transaction_usable(client, settings):
    connections["default"].settings_dict["ATOMIC_REQUESTS"] = True
    try:
        run_id = web.completed()
        error(post(client, f"{ROOT}{run_id}/cancel/"), 409, "RUN_STATE_CONFLICT")
        assert post(client, f"{ROOT}dispatch/", {"workflow": "web-free"}).status_code == 201
    finally:
        connections["default"].settings_dict["ATOMIC_REQUESTS"] = False


def test_the_addresses_have_names_and_work_under_any_prefix(operator):
    client = web.client_of(operator)
    assert reverse("workflow-api-runs") == ROOT
    assert reverse("workflow-api-run", args=[NOBODY]) == f"{ROOT}{NOBODY}/"
    with override_settings(ROOT_URLCONF=web.addresses(path("", include(workflow_routes())))):
        made = post(client, "/dispatch/", {"workflow": "web-free"})
        assert made["Location"] == f"/{made.json()['run_id']}/"
        assert client.get(made["Location"]).status_code == 200


def test_nobody_but_a_user_of_this_site_is_a_user():
    """Without the authentication middleware there is no `request.user` at all."""
    view = next(p.callback for p in workflow_routes() if p.name == "workflow-api-runs")
    request = RequestFactory().get(ROOT)
    assert view(request).status_code == 401
    request.user = AnonymousUser()
    assert view(request).status_code == 401


def test_every_code_has_a_status_of_the_contract():
    assert set(CODES.values()) == {400, 401, 403, 404, 405, 409, 422}
