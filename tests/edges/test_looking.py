"""No GET changes anything: every page and every address answers in a transaction that may only read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import InternalError, connection, transaction
from django.test import Client
from django.urls import reverse

from tests.support import web
from workflow import workflows
from workflow.dashboard import reading
from workflow.models import Event, Job, Node, Run, Worker
from workflow.registry import registry

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    web.FAULTY.clear()
    reading.forget()
    with registry.isolated():
        registry.register(web.ORDER)
        registry.register(web.FREE)
        yield
    web.FAULTY.clear()
    reading.forget()


def everything() -> list[str]:
    """An address of each kind, on runs that have failed, wait, are to be begun and are done."""
    failed, parked, done = web.failed("o-1"), web.waiting("o-2"), web.completed()
    pending = workflows.dispatch(web.FREE).run_id
    worker = Worker.objects.create(hostname="h", pid=1, concurrency=1, threads=1)
    workflows.publish("order.sent", {"a": 1})
    rows: dict[str, Any] = {
        "run": failed,
        "node": Node.objects.filter(run_id=failed).latest("id").pk,
        "job": Job.objects.filter(run_id=pending).get().pk,
        "event": Event.objects.latest("id").pk,
        "worker": worker.pk,
    }
    found = [reverse(f"admin:workflow_{model}_changelist") for model in rows]
    found += [reverse(f"admin:workflow_{model}_change", args=[pk]) for model, pk in rows.items()]
    found += [reverse("admin:index"), reverse("admin:app_list", args=["workflow"])]
    found += [reverse(f"workflow_dashboard:{name}") for name in ("runs", "definitions")]
    found += [reverse("workflow_dashboard:definition", args=["web-order"])]
    found += [reverse(f"workflow-api-{name}") for name in ("runs", "openapi")]
    for run_id in (failed, parked, pending, done):
        found += [reverse(f"workflow-api-{name}", args=[run_id]) for name in ("run", "history")]
        found += [
            reverse(f"workflow_dashboard:{name}", args=[run_id])
            for name in ("run", "state", "timeline", "data", "history", "retry", "cancel", "resume")
        ]
    node = reverse("workflow_dashboard:node", args=[failed])
    return [*found, f"{node}?path=web-order.pay.charge", f"{reverse('workflow_dashboard:runs')}?fragment=1"]


def test_whoever_looks_writes_nothing() -> None:
    User.objects.create_superuser("root", password="root")
    client = Client()
    assert client.login(username="root", password="root")
    addresses = everything()
    with transaction.atomic():
        connection.cursor().execute("SET TRANSACTION READ ONLY")
        for address in addresses:
            assert client.get(address).status_code == 200, address
            assert client.head(address).status_code == 200, address
        with pytest.raises(InternalError, match="read-only transaction"), transaction.atomic():
            Run.objects.update(priority=1)
