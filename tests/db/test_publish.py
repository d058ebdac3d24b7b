"""Publishing domain events."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from tests.support import rows
from workflow import PayloadInvalid, workflows
from workflow.models import Event, Job

pytestmark = pytest.mark.django_db


def test_an_event_and_the_job_that_delivers_it() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert (
            workflows.publish("payment.succeeded", {"amount": 5}, correlation="o-1", event_id="e-1") is True
        )
    assert len(queries) == 1

    event, job = Event.objects.get(), Job.objects.get()
    assert (event.type, event.payload, event.correlation) == ("payment.succeeded", {"amount": 5}, "o-1")
    assert (event.event_id, event.taken) == ("e-1", False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()::text::bigint")
        assert cursor.fetchone() == (event.xact,)
    assert (job.kind, job.run_id, job.node_id, job.queue) == ("deliver", None, event.id, "#events")
    assert rows.due(job)


def test_a_type_is_all_it_takes() -> None:
    workflows.publish("something.happened")
    event = Event.objects.get()
    assert (event.payload, event.correlation, event.event_id) == (None, None, None)


@pytest.mark.parametrize("payload", [0, False, "", [], {}, [1, {"a": None}], "ü'\"\\%s"])
def test_any_payload_is_kept_as_it_is(payload: Any) -> None:
    workflows.publish("t", payload)
    assert Event.objects.get().payload == payload


def test_the_same_event_id_counts_once() -> None:
    assert workflows.publish("a", 1, event_id="e")
    with transaction.atomic():
        assert workflows.publish("b", 2, event_id="e") is False
        assert workflows.publish("b", 3, event_id="f")
    assert list(Event.objects.order_by("id").values_list("type", "payload")) == [("a", 1), ("b", 3)]
    assert Job.objects.count() == 2


def test_events_without_an_id_all_count() -> None:
    assert workflows.publish("a")
    assert workflows.publish("a")
    assert Event.objects.count() == Job.objects.count() == 2


def test_what_the_caller_rolls_back_was_never_published() -> None:
    with transaction.atomic():
        workflows.publish("a", event_id="e")
        transaction.set_rollback(True)
    assert (Event.objects.count(), Job.objects.count()) == (0, 0)
    assert workflows.publish("a", event_id="e")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"type": ""}, ValueError),
        ({"type": None}, TypeError),
        ({"type": 5}, TypeError),
        ({"type": "a\0"}, ValueError),
        ({"type": "\udcff"}, ValueError),
        ({"type": "t" * 256}, ValueError),
        ({"correlation": 5}, TypeError),
        ({"correlation": ""}, ValueError),
        ({"correlation": "c" * 256}, ValueError),
        ({"event_id": "\0"}, ValueError),
        ({"event_id": 7}, TypeError),
        ({"payload": float("nan")}, PayloadInvalid),
        ({"payload": {"x": "\0"}}, PayloadInvalid),
        ({"payload": {"x": "\ud83d"}}, PayloadInvalid),
        ({"payload": b"x"}, PayloadInvalid),
        ({"payload": object()}, PayloadInvalid),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    (name,) = arguments
    with CaptureQueriesContext(connection) as queries, pytest.raises(error, match=f"^{name}"):
        workflows.publish(**{"type": "t", **arguments})
    assert len(queries) == 0


def test_a_payload_has_a_limit(settings: Any) -> None:
    settings.WORKFLOW = {**settings.WORKFLOW, "MAX_PAYLOAD_BYTES": 10}
    assert workflows.publish("t", "12345678")
    with pytest.raises(PayloadInvalid, match="MAX_PAYLOAD_BYTES"):
        workflows.publish("t", "123456789")
