"""A field that a schema declares secret reaches every handler as it was given, and no person's eyes."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from django.contrib import admin
from django.core.management import CommandError, call_command
from django.test import override_settings
from django.urls import include, path, reverse
from pydantic import BaseModel, Field, SecretBytes, SecretStr, field_validator

from tests.support import web
from workflow import Action, PayloadInvalid, Stage, WaitFor, Workflow, history, workflows
from workflow.api import workflow_routes
from workflow.consumers import reading
from workflow.models import Node, Run, RunEvent, Step
from workflow.redact import MASK, redact_status
from workflow.registry import registry
from workflow.testing import drain

PIN, CVV, KEY, SEED = "pin-S3CR3T-1", "cvv-S3CR3T-2", "key-S3CR3T-3", "seed-S3CR3T-4"
WORD = "S3CR3T"


class Card(BaseModel):
    cvv: SecretStr = Field(alias="cardCode")
    holder: str = "Ann"


class Order(BaseModel):
    order_id: str
    pin: SecretStr
    cards: list[Card] = []

    @field_validator("pin")
    @classmethod
    def _long(cls, pin: SecretStr) -> SecretStr:
        if len(pin) < 10:
            raise ValueError(f"{pin.get_secret_value()} is too short, pin={pin.get_secret_value()}")
        return pin


class Receipt(BaseModel):
    number: int
    key: SecretBytes


GIVEN = {"order_id": "o", "pin": PIN, "cards": [{"cardCode": CVV}]}
seen: list[Any] = []


def charge(order: Order, ctx: Any) -> Any:
    seen.append((order.pin.get_secret_value(), order.cards[0].cvv.get_secret_value(), order.cards[0].holder))
    ctx.log(f"with {order.pin.get_secret_value()}", pin=order.pin, cvv=order.cards[0].cvv.get_secret_value())
    login = ctx.step.run("login", lambda: {"key": SecretStr(KEY), "user": "u"})
    seen.append(login)
    return {"number": "7", "key": login["key"].encode()}


def seal(state: dict[str, Any]) -> Any:
    seen.append(state["key"])
    return [SEED]


def look(state: dict[str, Any]) -> Any:
    seen.append((state["pin"], state["key"], state["seal"]))
    if state["order_id"] == "fails":
        raise RuntimeError(f"no: {state['pin']} {state['seal'][0]} and {state['cards']}")
    return {"looked": True}


SHOP = Workflow(
    "secret-shop",
    input=Order,
    on_failure="halt",
    stages=[
        Stage(
            "pay", actions=[Action("charge", charge, input=Order, output=Receipt, attempts=1)], output=Receipt
        ),
        Stage("mark", actions=[Action("seal", seal, output=list[SecretStr])]),
        Stage("see", actions=[Action("look", look, attempts=1)]),
        Stage("wait", wait_for=WaitFor("never", correlate="pin")),
    ],
)


pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    seen.clear()
    addresses = web.addresses(
        path("api/", include(workflow_routes())),
        path("admin/", admin.site.urls),
        path("dashboard/", include("workflow.dashboard.urls")),
    )
    with registry.isolated(), override_settings(ROOT_URLCONF=addresses):
        workflows.register(SHOP)
        yield


def run(order_id: str = "o") -> UUID:
    run_id = workflows.dispatch(SHOP, {**GIVEN, "order_id": order_id}).run_id
    drain(run_id)
    return run_id


def test_handlers_get_it_and_programs_too() -> None:
    run_id = run()
    assert seen == [(PIN, CVV, "Ann"), {"key": KEY, "user": "u"}, KEY, (PIN, KEY, [SEED])]
    status = workflows.status(run_id)
    assert status.run.status == "waiting"
    assert status.run.input == {**GIVEN, "cards": [{"cardCode": CVV, "holder": "Ann"}]}
    assert status.run.state["pin"] == PIN
    assert status.run.state["key"] == KEY
    outputs = {node.path.rpartition(".")[2]: node.output for node in status.nodes}
    assert outputs["charge"] == outputs["pay"] == {"number": 7, "key": KEY}
    assert outputs["seal"] == [SEED]
    assert Step.objects.get(run=run_id, key="login").value == {"key": KEY, "user": "u"}


def test_what_people_are_shown_has_the_mask_in_its_place() -> None:
    shown = redact_status(workflows.status(run()))
    assert shown.run.input == {"order_id": "o", "pin": MASK, "cards": [{"cardCode": MASK, "holder": "Ann"}]}
    assert shown.run.state["seal"] == MASK
    outputs = {node.path.rpartition(".")[2]: node.output for node in shown.nodes}
    assert outputs["charge"] == {"number": 7, "key": MASK}
    assert outputs["seal"] == MASK
    assert outputs["look"] == {"looked": True}


def printed(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out, stderr=out)
    return out.getvalue()


@pytest.mark.parametrize("order_id", ["o", "fails"])
def test_no_surface_shows_it(order_id: str) -> None:
    run_id = run(order_id)
    client = web.client_of(web.person("boss", "view_run", "view_node", "view_job", "manage_run"))
    pages = [reverse("admin:workflow_run_change", args=[run_id]), reverse("admin:workflow_run_changelist")]
    pages += [reverse("admin:workflow_node_change", args=[pk]) for pk in nodes_of(run_id)]
    pages += [reverse("admin:workflow_node_changelist") + f"?q={run_id}"]
    pages += [f"/api/{run_id}/", "/api/", f"/api/{run_id}/history/", "/dashboard/", f"/dashboard/{run_id}/"]
    parts = ("state", "timeline", "data", "history", "retry", "cancel", "resume")
    pages += [f"/dashboard/{run_id}/{part}/" for part in parts]
    paths = Node.objects.filter(run=run_id).values_list("path", flat=True)
    pages += [f"/dashboard/{run_id}/node/?path={quote(node)}" for node in paths]
    texts = {page: html.unescape(read(client, page)) for page in pages}
    for command in (
        ("workflow:status", str(run_id)),
        ("workflow:status", str(run_id), "-v", "2"),
        ("workflow:status", str(run_id), "--json"),
        ("workflow:status", str(run_id), "--force-color"),
        ("workflow:list",),
        ("workflow:list", "--json"),
    ):
        texts[" ".join(command)] = printed(*command)
    snapshot = reading.snapshot(run_id)
    texts["snapshot"] = repr(snapshot)
    texts["history"] = repr(history.page(run_id, 0, 1000))
    for surface, text in texts.items():
        assert WORD not in text, surface
    assert MASK in texts[f"/api/{run_id}/"]
    assert MASK in texts[pages[0]]
    assert MASK in texts["history"]


def read(client: Any, page: str) -> str:
    response = client.get(page)
    assert response.status_code == 200, page
    return str(response.content.decode())


def nodes_of(run_id: UUID) -> list[UUID]:
    return list(Node.objects.filter(run=run_id).values_list("pk", flat=True))


@override_settings(WORKFLOW={"REDACT": ["emails"]})
def test_a_step_whose_key_quotes_it_is_shown_masked() -> None:
    def mail(state: dict[str, Any], ctx: Any) -> None:
        for address in state["emails"]:
            ctx.step.run(f"mail {address}", lambda: 1)

    tree = Workflow("w", stages=[Stage("s", actions=[Action("mail", mail)])])
    run_id = workflows.dispatch(tree, {"emails": ["ann@S3CR3T.org"]}).run_id
    drain(run_id)
    step = Step.objects.get(run=run_id)
    assert (step.key, step.status) == ("mail ann@S3CR3T.org", "completed")
    client = web.client_of(web.person("boss", "view_run", "view_node"))
    for page in (
        reverse("admin:workflow_node_change", args=[step.node_id]),
        f"/dashboard/{run_id}/node/?path=w.s.mail",
        f"/dashboard/{run_id}/?node=w.s.mail",
    ):
        text = html.unescape(read(client, page))
        assert f"mail {MASK}" in text, page
        assert WORD not in text, page


@override_settings(WORKFLOW={"REDACT": ["emails"]})
def test_a_step_that_waits_and_whose_key_quotes_it_is_shown_masked() -> None:
    def mail(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.wait_event(f"answer of {state['emails'][0]}", "mail.answered")

    tree = Workflow("w", stages=[Stage("s", actions=[Action("mail", mail)])])
    run_id = workflows.dispatch(tree, {"emails": ["ann@S3CR3T.org"]}).run_id
    drain(run_id)
    shown = io.StringIO()
    call_command("workflow:status", str(run_id), stdout=shown)
    assert f"step answer of {MASK}" in shown.getvalue()
    assert WORD not in shown.getvalue()
    workflows.resume(run_id)
    client = web.client_of(web.person("boss", "view_run", "view_node"))
    for page in (f"/dashboard/{run_id}/node/?path=w.s.mail", f"/dashboard/{run_id}/"):
        assert WORD not in html.unescape(read(client, page)), page


def test_a_failure_that_quotes_it_is_kept_whole_and_shown_masked() -> None:
    run_id = run("fails")
    error = Run.objects.get(pk=run_id).error
    assert PIN in error["message"]
    assert SEED in error["message"]
    shown = redact_status(workflows.status(run_id)).run.error
    assert shown is not None
    assert shown["message"] == f"no: {MASK} {MASK} and [{{'holder': 'Ann', 'cardCode': {MASK}}}]"


def test_what_a_handler_logs_of_it_is_masked_when_it_is_written() -> None:
    data = RunEvent.objects.get(run=run(), name="log").data
    assert data["fields"]["pin"] == "**********"


# Refusals


SHORT = "short-S3"


def test_a_validator_that_quotes_it_is_masked_on_the_command_line() -> None:
    with pytest.raises(CommandError) as caught:
        printed("workflow:dispatch", "secret-shop", "--input", json.dumps({**GIVEN, "pin": SHORT}))
    assert f"{MASK} is too short, pin={MASK}" in str(caught.value)
    assert SHORT not in str(caught.value)


def test_and_by_the_api() -> None:
    client = web.client_of(web.person("boss", "view_run", "manage_run"))
    body = {"workflow": "secret-shop", "input": {**GIVEN, "pin": SHORT}}
    found = web.error(web.post(client, "/api/dispatch/", body), 422, "WORKFLOW_INPUT_INVALID")
    assert SHORT not in repr(found)
    assert f"{MASK} is too short" in found["message"]


def test_a_tag_of_the_api_changes_with_what_is_masked() -> None:
    client = web.client_of(web.person("boss", "view_run"))
    run_id = run()
    tag = client.get(f"/api/{run_id}/")["ETag"]
    assert client.get(f"/api/{run_id}/", headers={"if-none-match": tag}).status_code == 304
    registry.clear()
    workflows.register(Workflow("secret-shop", stages=[Stage("see", run=len)]))
    assert client.get(f"/api/{run_id}/", headers={"if-none-match": tag}).status_code == 200


def test_a_secret_that_nothing_declares_fails_its_action_and_is_not_kept() -> None:
    def leak(state: dict[str, Any]) -> Any:
        return {"found": SecretStr(PIN)}

    leaky = Workflow("leaky", on_failure="halt", stages=[Stage("s", run=leak, attempts=3)])
    run_id = workflows.dispatch(leaky).run_id
    drain(run_id)
    [error] = [node.error for node in workflows.status(run_id).nodes if node.path.endswith("#run")]
    assert error is not None
    assert error["code"] == "PAYLOAD_INVALID"
    assert error["message"].startswith(
        "leaky.s.s#run output.found: a SecretStr is kept only under a key that"
    )
    assert PIN not in repr(workflows.status(run_id))


@pytest.mark.parametrize("call", [
    lambda: workflows.dispatch(Workflow("bare", stages=[Stage("s", run=len)]), {"pin": SecretStr(PIN)}),
    lambda: workflows.dispatch(SHOP, GIVEN, context={"note": SecretStr(PIN)}),
    lambda: workflows.publish("paid", {"pin": SecretStr(PIN)}),
])  # fmt: skip
def test_a_secret_that_nothing_declares_is_refused_by_the_commands(call: Any) -> None:
    with pytest.raises(PayloadInvalid, match="a SecretStr is kept only under a key that"):
        call()


def test_under_a_declared_key_it_may_be_anywhere() -> None:
    run_id = workflows.dispatch(SHOP, GIVEN, context={"pin": SecretStr(PIN)}).run_id
    assert Run.objects.get(pk=run_id).context == {"pin": PIN}


def test_the_name_of_a_workflow_is_enough_to_mask_what_a_run_of_another_version_left() -> None:
    run_id = run()
    Run.objects.filter(pk=run_id).update(version=9)
    assert redact_status(workflows.status(run_id)).run.state["pin"] == MASK


def test_a_process_that_does_not_know_the_workflow_masks_what_any_other_declares() -> None:
    run_id = run()
    Run.objects.filter(pk=run_id).update(workflow="gone")
    assert WORD not in printed("workflow:status", str(run_id), "-v", "2")
