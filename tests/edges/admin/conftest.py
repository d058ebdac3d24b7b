"""Who looks at Django's admin, at which rows, and what its pages answer."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from tests.support import web
from workflow import workflows
from workflow.models import Event, Job, Node, Worker

MODELS = ["run", "node", "job", "event", "worker"]
NOBODY = uuid.UUID("01997a5e-6c00-7d41-9b1e-4a5c2f300000")
HOSTILE = "</script><img src=x onerror=alert(1)>\u202egnp.exe\x1b[31m\x85'\""


@pytest.fixture(autouse=True)
def _registered() -> Any:
    with web.registered():
        yield


@pytest.fixture
def client() -> Client:
    """Somebody who may look at everything and steer runs."""
    return web.client_of(web.person("olga", *(f"view_{model}" for model in MODELS), "manage_run"))


@pytest.fixture
def viewer() -> Client:
    return web.client_of(web.person("vera", *(f"view_{model}" for model in MODELS)))


def lists(model: str, **query: str) -> str:
    return reverse(f"admin:workflow_{model}_changelist", query=query or None)


def page_of(model: str, pk: object) -> str:
    return reverse(f"admin:workflow_{model}_change", args=[pk])


def html(response: Any) -> str:
    assert response.status_code == 200, response
    body: str = response.content.decode()
    return body


def listed(response: Any) -> list[Any]:
    html(response)
    return [row.pk for row in response.context["cl"].result_list]


def act(client: Client, action: str, *run_ids: object, **options: str) -> Any:
    chosen = {"action": action, "_selected_action": [str(run_id) for run_id in run_ids], **options}
    return client.post(lists("run"), chosen, follow=True)


def told(response: Any) -> list[str]:
    html(response)
    return [str(message) for message in response.context["messages"]]


def worker(**fields: Any) -> Worker:
    defaults = {"hostname": "h", "pid": 1, "concurrency": 100, "threads": 16}
    return Worker.objects.create(**{**defaults, **fields})


def one_of_each() -> dict[str, Any]:
    """A row of every model, by name."""
    run_id = web.waiting()
    workflows.publish("order.sent", {"a": 1}, correlation="c", event_id="e-1")
    return {
        "run": run_id,
        "node": Node.objects.get(run_id=run_id, path="web-order.pay.charge").pk,
        "job": Job.objects.get(run_id__isnull=True).pk,
        "event": Event.objects.get().pk,
        "worker": worker().pk,
    }
