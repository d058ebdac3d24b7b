"""A publish whose transaction is open while runs are created and waits are parked wakes them once it commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction

from tests.support.threads import elsewhere
from workflow import Stage, WaitFor, Workflow, workflows
from workflow.registry import registry
from workflow.testing import drain

pytestmark = pytest.mark.django_db(transaction=True)


def waits_in_a_step(state: Any, ctx: Any) -> Any:
    return {"got": ctx.step.wait_event("answer", "answered", correlate="about" if "about" in state else None)}


STAGE = Workflow(
    "stage", stages=[Stage("wait", wait_for=WaitFor("answered", pick=lambda event: {"got": event.payload}))]
)
CORRELATED = Workflow(
    "correlated",
    stages=[
        Stage(
            "wait",
            wait_for=WaitFor("answered", correlate="about", pick=lambda event: {"got": event.payload}),
        )
    ],
)
STEP = Workflow("step", stages=[Stage("wait", run=waits_in_a_step)])


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with registry.isolated():
        for definition in (STAGE, CORRELATED, STEP):
            workflows.register(definition)
        yield


@contextmanager
def open_publish(payload: Any, correlation: str | None) -> Iterator[None]:
    """An event is published in a transaction that stays open for as long as the block."""
    published, commit = threading.Event(), threading.Event()

    def publish() -> None:
        with transaction.atomic():
            workflows.publish("answered", payload, correlation=correlation)
            published.set()
            assert commit.wait(30)

    with elsewhere() as start:
        done = start(publish)
        try:
            assert published.wait(30)
            yield
        finally:
            commit.set()
        done.result(30)


@pytest.mark.parametrize(
    ("name", "given"),
    [("stage", {}), ("correlated", {"about": "o-1"}), ("step", {}), ("step", {"about": "o-1"})],
)
def test_an_event_published_before_the_run_and_committed_after_it_parked_wakes_it(
    name: str, given: dict[str, Any]
) -> None:
    with open_publish("yes", "o-1"):
        handle = workflows.dispatch(name, given)
        drain(handle.run_id)
        assert "waiting" in [node.status for node in handle.status().nodes]
    drain(handle.run_id)
    assert handle.status().run.status == "completed"
    assert handle.status().run.state["got"] == "yes"


@pytest.mark.parametrize(("name", "given"), [("correlated", {"about": "o-1"}), ("step", {"about": "o-1"})])
def test_an_event_of_a_transaction_that_rolls_back_wakes_nobody(name: str, given: dict[str, Any]) -> None:
    handle = workflows.dispatch(name, given)
    drain(handle.run_id)
    with transaction.atomic():
        workflows.publish("answered", "yes", correlation="o-1")
        transaction.set_rollback(True)
    drain(handle.run_id)
    assert "waiting" in [node.status for node in handle.status().nodes]


def test_a_correlated_event_of_before_the_run_that_was_seen_when_it_parked_does_not_count() -> None:
    workflows.publish("answered", "too early", correlation="o-1")
    handle = workflows.dispatch("correlated", {"about": "o-1"})
    drain(handle.run_id)
    assert handle.status().run.status == "waiting"
