"""Events of transactions that are open while a wait parks: to everybody else they are published after that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction

from workflow import Action, Stage, WaitFor, Workflow, workflows
from workflow.models import Event, Node
from workflow.registry import registry
from workflow.results import RunHandle
from workflow.sql.commands import PUBLISH
from workflow.testing import drain

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with registry.isolated():
        yield


class Publisher:
    """Publishes in a transaction that stays open until it is told to commit."""

    def __init__(self) -> None:
        self._published = threading.Event()
        self._commits = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def publish(self) -> None:
        self._thread.start()
        assert self._published.wait(60)

    def commit(self) -> None:
        self._commits.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with transaction.atomic():
                workflows.publish("paid", {"by": "open"})
                self._published.set()
                assert self._commits.wait(60)
        finally:
            connection.close()


def stage(publish: Callable[[], None]) -> Workflow:
    """A stage that waits: no transaction is begun and over between its event and its park."""
    act = Action("act", lambda state: publish())
    return Workflow("w", stages=[Stage("s", actions=[act]), Stage("wait", wait_for=WaitFor("paid"))])


def step(publish: Callable[[], None]) -> Workflow:
    def act(state: dict[str, Any], ctx: Any) -> Any:
        if Event.objects.count() == 0 and ctx.attempt == 1 and not published:
            published.append(True)
            publish()
        return {"wait": ctx.step.wait_event("k", "paid")}

    published: list[bool] = []
    return Workflow("w", stages=[Stage("s", actions=[Action("act", act)])])


@pytest.mark.parametrize("waiting", [stage, step])
def test_what_was_published_before_the_park_and_committed_after_it_counts(
    waiting: Callable[[Callable[[], None]], Workflow],
) -> None:
    publisher = Publisher()
    handle = workflows.dispatch(waiting(publisher.publish), {})
    drain()
    assert handle.status().run.finished_at is None
    publisher.commit()
    drain()
    assert handle.status().run.status == "completed"
    assert handle.status().run.state == {"by": "open"} or handle.status().run.state == {
        "wait": {"by": "open"}
    }


def parked() -> RunHandle:
    handle = workflows.dispatch(Workflow("w", stages=[Stage("wait", wait_for=WaitFor("paid"))]), {})
    drain()
    return handle


def test_a_transaction_that_began_while_the_park_was_on_its_way_counts() -> None:
    """It is younger than the one that parked the wait, and older than the wait's snapshot."""
    handle = parked()
    node = Node.objects.get(run_id=handle.run_id, kind="stage")
    assert node.parked_xact is not None
    between = node.parked_xact - 1  # the check has come, and stands for whatever had begun
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmax(%s::pg_snapshot)::text::bigint", [node.parked_snapshot])
        assert cursor.fetchone()[0] <= between
        cursor.execute(
            "INSERT INTO workflow_event (id, type, at, xact) "
            "SELECT gen_random_uuid(), 'paid', n.parked_at - interval '1 millisecond', %s "
            "FROM workflow_node AS n WHERE n.id = %s RETURNING id",
            [between, node.pk],
        )
        cursor.execute(
            "INSERT INTO workflow_job (id, kind, node_id, queue, priority, available_at) "
            "VALUES (gen_random_uuid(), 'deliver', %s, '#events', 1000, now())",
            cursor.fetchone(),
        )
    drain()
    assert handle.status().run.status == "completed"


def test_an_event_is_stamped_once_its_transaction_has_a_number() -> None:
    """The other way round a wait could park in between, and find it neither open nor later."""
    with connection.cursor() as cursor:
        values = [uuid4(), "paid", None, None, None, uuid4()]
        cursor.execute("EXPLAIN (VERBOSE, COSTS OFF) " + PUBLISH, values)
        outputs = [line for (line,) in cursor.fetchall() if "Output:" in line]
    (stamped,) = (line for line in outputs if "clock_timestamp()" in line)
    (numbered,) = (line for line in outputs if "pg_current_xact_id()" in line)
    assert outputs.index(stamped) < outputs.index(numbered), (
        "a plan's inner nodes, which come last, are run first"
    )
