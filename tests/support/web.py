"""What tests of pages and of the API share: a workflow that can fail, wait and finish, and people to ask for it."""

from __future__ import annotations

import contextlib
import json
import re
import types
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AnonymousUser, Permission, User
from django.db.models import Q
from django.test import Client
from django.urls import URLPattern, URLResolver
from pydantic import BaseModel, field_validator

from workflow import Stage, WaitFor, Workflow, action, failpoints, workflows
from workflow.models import Job
from workflow.registry import registry
from workflow.testing import drain

FAULTY: set[str] = set()
"""Orders whose payment fails; a test's own fixture empties it."""


class WebOrder(BaseModel):
    order_id: str
    total: int = 0
    card: str | None = None

    @field_validator("card")
    @classmethod
    def _no_test_card(cls, value: str | None) -> str | None:
        if value is not None and value.startswith("4000"):
            raise ValueError(f"the card {value} is a test card")
        return value


@action(input=WebOrder, attempts=1)
def charge(order: WebOrder, ctx: Any) -> dict[str, Any]:
    ctx.log("charging", card=order.card)
    if order.order_id in FAULTY:
        raise RuntimeError(f"{order.order_id} refused, card={order.card}")
    return {"paid": order.total}


@action
def ship(state: dict[str, Any]) -> dict[str, Any]:
    return {"shipped": True}


ORDER = Workflow(
    "web-order",
    input=WebOrder,
    on_failure="halt",
    stages=[
        Stage("pay", actions=[charge]),
        Stage("approve", wait_for=WaitFor("order.approved", correlate="order_id")),
        Stage("ship", actions=[ship]),
    ],
)
FREE = Workflow("web-free", stages=[Stage("ship", actions=[ship])])


@action
def ask(state: dict[str, Any], ctx: Any) -> Any:
    return ctx.step.wait_event("answer", "order.answered")


ASKING = Workflow("web-asking", stages=[Stage("ask", actions=[ask])])


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """The workflows are what is known meanwhile, besides what was, and no payment fails."""
    FAULTY.clear()
    with registry.isolated():
        workflows.register(ORDER)
        workflows.register(FREE)
        workflows.register(ASKING)
        yield


def person(name: str, *permissions: str, staff: bool = True) -> User:
    """A user; `permissions` are codenames of this app, such as "view_run"."""
    user = User.objects.create_user(name, is_staff=staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    assert user.user_permissions.count() == len(permissions)
    return user


def client_of(user: User | AnonymousUser, **options: Any) -> Client:
    client = Client(**options)
    if isinstance(user, User):
        client.force_login(user)
    return client


def post(client: Client, path: str, body: Any = None, **options: Any) -> Any:
    """POSTs a JSON body; bytes and text as they are."""
    data = body if isinstance(body, bytes | str) else json.dumps({} if body is None else body)
    return client.post(path, data, content_type="application/json", **options)


def shown(response: Any) -> str:
    """A page without what a browser hands back as it is, and shows to nobody or in a field of a form."""
    assert response.status_code == 200, response
    body: str = response.content.decode()
    return re.sub(r'<textarea.*?</textarea>|value="[^"]*"', "", body, flags=re.DOTALL)


def error(response: Any, status: int, code: str) -> dict[str, Any]:
    """Checks the shape that every refusal has; the error inside."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/json"
    assert response["X-Content-Type-Options"] == "nosniff"
    body = response.json()
    assert set(body) == {"error"}
    found: dict[str, Any] = body["error"]
    assert set(found) == {"code", "message", "details"}
    assert found["code"] == code, found
    assert found["message"]
    return found


def waiting(order_id: str = "w", **options: Any) -> UUID:
    """A run that is parked on `order.approved`."""
    run_id = workflows.dispatch(ORDER, {"order_id": order_id, "total": 7}, **options).run_id
    drain(run_id)
    assert workflows.status(run_id).run.status == "waiting"
    return run_id


def checking(definition: Workflow = ORDER, data: Any = None, **options: Any) -> Job:
    """The job that looks for what a fresh wait may have missed; the worker died before it had looked."""
    run_id = workflows.dispatch(definition, data or {"order_id": "w"}, **options).run_id
    before = set(Job.objects.filter(kind="check").values_list("pk", flat=True))
    failpoints.arm("deliver.before=raise")
    try:
        with contextlib.suppress(failpoints.Failpoint):
            drain(run_id)
    finally:
        failpoints.arm("")
    return Job.objects.get(~Q(pk__in=before), kind="check")


def failed(order_id: str = "f", card: str | None = None, **options: Any) -> UUID:
    """A run whose payment has failed; it would again."""
    FAULTY.add(order_id)
    run_id = workflows.dispatch(ORDER, {"order_id": order_id, "card": card}, **options).run_id
    drain(run_id)
    assert workflows.status(run_id).run.status == "failed"
    return run_id


def completed(**options: Any) -> UUID:
    run_id = workflows.dispatch(FREE, **options).run_id
    drain(run_id)
    assert workflows.status(run_id).run.status == "completed"
    return run_id


def addresses(*patterns: URLPattern | URLResolver) -> types.ModuleType:
    """For `override_settings(ROOT_URLCONF=...)`."""
    module = types.ModuleType("addresses_of_a_test")
    module.urlpatterns = list(patterns)  # type: ignore[attr-defined]
    return module


def all_codes(responses: Iterable[Any]) -> set[str]:
    return {response.json()["error"]["code"] for response in responses}
