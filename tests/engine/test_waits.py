"""Waits and events: what wakes a run, what does not, and what becomes of time-outs."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import override_settings

from tests.support.refusals import refusing
from tests.support.runs import history, names, node, parked, statuses
from workflow import (
    Action,
    Fatal,
    Pipeline,
    RunConflict,
    Stage,
    WaitFor,
    Workflow,
    parallel,
    workflows,
)
from workflow.models import Event, Job, Node, RunEvent
from workflow.redact import MASK, redact_entry, redact_status
from workflow.store import claims
from workflow.store.drive import drive
from workflow.store.ports import DjangoPort
from workflow.testing import advance, drain


def test_a_parked_run_is_waiting_and_holds_no_job() -> None:
    handle = parked(WaitFor("paid"))
    status = handle.status()
    assert status.run.status == "waiting"
    assert statuses(status)["w.wait"] == "waiting"
    assert not Job.objects.exists()
    assert history(status) == [("started", None), ("waiting", "w.wait")]


def test_an_event_of_exactly_that_type_wakes_every_run_parked_on_it() -> None:
    definition = Workflow("w", stages=[Stage("wait", wait_for=WaitFor("paid"))])
    handles = workflows.dispatch_many(definition, [{}, {}, {}])
    drain()
    workflows.publish("paid.late", {"no": 1})
    workflows.publish("PAID", {"no": 1})
    drain()
    assert {handle.status().run.status for handle in handles} == {"waiting"}
    workflows.publish("paid", {"amount": 5}, correlation="whatever")
    drain()
    for handle in handles:
        status = handle.status()
        assert status.run.status == "completed"
        assert status.run.state == {"amount": 5}
        assert node(status, "w.wait").output == {"amount": 5}
        assert history(status)[2:] == [
            ("resumed", "w.wait"),
            ("stage.completed", "w.wait"),
            ("completed", None),
        ]


@pytest.mark.parametrize(
    ("payload", "state"), [(None, {}), (4, {"wait": 4}), ([1], {"wait": [1]}), ({"k": 1}, {"k": 1})]
)
def test_the_payload_is_the_output_and_a_scalar_nests_under_the_stages_name(payload: Any, state: Any) -> None:
    handle = parked(WaitFor("paid"))
    workflows.publish("paid", payload)
    drain(handle.run_id)
    assert handle.status().run.state == state


def test_an_uncorrelated_wait_takes_no_event_from_before_it_parked() -> None:
    workflows.publish("paid", {"early": 1})
    handle = parked(WaitFor("paid"))
    assert handle.status().run.status == "waiting"


def test_a_correlated_wait_takes_only_its_own_event_and_one_from_before_it_parked_counts() -> None:
    definition = Workflow("w", stages=[Stage("wait", wait_for=WaitFor("paid", correlate="order_id"))])
    workflows.publish("paid", {"before": "dispatch"}, correlation="o-1")
    handle = workflows.dispatch(definition, {"order_id": "o-1"})
    workflows.publish("paid", {"n": "other"}, correlation="o-2")
    workflows.publish("paid", {"n": "none"})
    drain(handle.run_id)
    assert handle.status().run.status == "waiting"
    workflows.publish("paid", {"n": 1}, correlation="o-1")
    drain(handle.run_id)
    assert handle.status().run.state == {"order_id": "o-1", "n": 1}

    early = workflows.dispatch(definition, {"order_id": "o-3"})
    workflows.publish("paid", {"n": 3}, correlation="o-3")
    drain(early.run_id)
    assert early.status().run.state == {"order_id": "o-3", "n": 3}


def test_two_waits_for_the_same_thing_need_two_events_oldest_first() -> None:
    waits = [
        Stage(f"w{i}", wait_for=WaitFor("tick", correlate="id", pick=lambda e: {f"n{e.payload}": 1}))
        for i in range(3)
    ]
    definition = Workflow("w", stages=[*waits])
    handle = workflows.dispatch(definition, {"id": "x"})
    for i in range(2):
        workflows.publish("tick", i, correlation="x")
    drain(handle.run_id)
    status = handle.status()
    assert status.run.status == "waiting"
    assert [n.output for n in status.nodes[1:]] == [{"n0": 1}, {"n1": 1}, None]
    workflows.publish("tick", 2, correlation="x")
    drain(handle.run_id)
    assert handle.status().run.status == "completed"


def test_two_parallel_waits_of_a_run_do_not_share_a_correlated_event() -> None:
    pair = parallel(*[Stage(f"w{i}", wait_for=WaitFor("tick", correlate="id")) for i in range(2)])
    handle = workflows.dispatch(Workflow("w", stages=[pair]), {"id": "x"})
    drain(handle.run_id)
    workflows.publish("tick", "first", correlation="x")
    drain(handle.run_id)
    assert sorted(n.status for n in handle.status().nodes[1:]) == ["completed", "waiting"]
    assert handle.status().run.status == "waiting"
    workflows.publish("tick", "second", correlation="x")
    drain(handle.run_id)
    assert handle.status().run.state == {"id": "x", "w0": "first", "w1": "second"}


def test_the_same_event_id_counts_once() -> None:
    handle = workflows.dispatch(
        Workflow("w", stages=[Stage(f"w{i}", wait_for=WaitFor("tick", correlate="id")) for i in range(2)]),
        {"id": "x"},
    )
    for _ in range(2):
        workflows.publish("tick", 1, correlation="x", event_id="evt-1")
    drain(handle.run_id)
    assert statuses(handle.status()) == {"w": "running", "w.w0": "completed", "w.w1": "waiting"}
    assert Event.objects.count() == 1


def test_one_event_serves_a_wait_in_each_run() -> None:
    definition = Workflow("w", stages=[Stage("wait", wait_for=WaitFor("paid", correlate="id"))])
    handles = workflows.dispatch_many(definition, [{"id": "x"}] * 3)
    workflows.publish("paid", 1, correlation="x")
    drain()
    assert {handle.status().run.status for handle in handles} == {"completed"}


def test_correlate_may_be_a_function_of_the_state_and_a_number_matches_its_text() -> None:
    by_function = parked(WaitFor("paid", correlate=lambda state: f"order-{state['n']}"), {"n": 7})
    workflows.publish("paid", 1, correlation="order-7")
    drain(by_function.run_id)
    assert by_function.status().run.status == "completed"


def test_a_number_in_the_state_is_correlated_by_its_text() -> None:
    handle = parked(WaitFor("paid", correlate="n"), {"n": 7})
    workflows.publish("paid", 1, correlation="7")
    drain(handle.run_id)
    assert handle.status().run.status == "completed"


@pytest.mark.parametrize(
    "correlate",
    [
        "missing",
        "list",
        "long",
        lambda state: 1 / 0,
        lambda state: None,
        lambda state: 5,
        lambda state: "",
        lambda state: "a\0b",
        lambda state: "\ud83d",
        lambda state: "x" * 256,
    ],
)
def test_a_correlation_that_cannot_be_made_fails_its_node(correlate: Any) -> None:
    status = parked(WaitFor("paid", correlate=correlate), {"list": [1], "long": "x" * 256}).status()
    assert status.run.status == "compensated"
    assert status.run.error is not None
    assert (status.run.error["code"], status.run.error["node"]) == ("ACTION_FAILED", "w.wait")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("oder_id", 'there is no such key; did you mean "order_id"?'),
        ("nothing", "there is no such key"),
        (
            "order.id",
            'there is no such key; nested values need a function: lambda state: state["order"]["id"]',
        ),
        ("empty", "a value of type NoneType cannot be the correlation of an event"),
    ],
)
def test_a_correlation_that_cannot_be_made_says_why(key: str, why: str) -> None:
    error = parked(WaitFor("paid", correlate=key), {"order_id": "o-1", "empty": None}).status().run.error
    assert error is not None
    assert error["message"] == f'correlate="{key}" in the state: {why}'


def test_pick_is_given_the_event() -> None:
    seen: list[Any] = []

    def pick(event: Any) -> dict[str, Any]:
        seen.append(event)
        return {"amount": event.payload["cents"] / 100}

    handle = parked(WaitFor("paid", correlate="id", pick=pick), {"id": "x"})
    workflows.publish("paid", {"cents": 250}, correlation="x")
    drain(handle.run_id)
    assert handle.status().run.state == {"id": "x", "amount": 2.5}
    event = seen[0]
    assert (event.type, event.payload, event.correlation) == ("paid", {"cents": 250}, "x")
    assert isinstance(event.id, uuid.UUID)
    assert isinstance(event.at, datetime)


def test_a_pick_that_raises_fails_its_node_and_nobody_else() -> None:
    definition = Workflow(
        "w", stages=[Stage("wait", wait_for=WaitFor("paid", pick=lambda event: event.payload["x"]))]
    )
    bad, good = workflows.dispatch_many(definition, [{}, {}])
    drain(bad.run_id)
    workflows.publish("paid", {"y": 1})
    drain()
    drain(good.run_id)
    workflows.publish("paid", {"x": 1})
    drain()
    status = bad.status()
    assert status.run.error is not None
    assert (status.run.error["code"], status.run.error["type"]) == ("ACTION_FAILED", "KeyError")
    assert status.run.error["message"] == "'x'"


def test_a_wait_that_times_out_fails_and_the_saga_goes_back() -> None:
    handle = parked(WaitFor("paid", timeout=60))
    advance(59)
    drain(handle.run_id)
    assert handle.status().run.status == "waiting"
    advance(1)
    drain(handle.run_id)
    status = handle.status()
    assert status.run.status == "compensated"
    assert status.run.error is not None
    assert (status.run.error["code"], status.run.error["node"]) == ("WAIT_TIMEOUT", "w.wait")
    assert names(status)[2:] == ["stage.failed", "compensating", "compensated"]
    workflows.publish("paid", 1)
    drain()
    assert handle.status().run.status == "compensated"


def test_a_timeout_is_never_mistaken_for_a_null_payload() -> None:
    handle = parked(WaitFor("paid", timeout=60, pick=lambda event: event.payload))
    workflows.publish("paid", None)
    drain(handle.run_id)
    status = handle.status()
    assert status.run.status == "completed"
    assert node(status, "w.wait").output is None


def test_a_deadline_is_fixed_when_the_wait_parks() -> None:
    handle = parked(WaitFor("paid", timeout=60))
    first = Node.objects.get(run_id=handle.run_id, path="w.wait").wait_until
    workflows.publish("other", 1)
    drain(handle.run_id)
    assert Node.objects.get(run_id=handle.run_id, path="w.wait").wait_until == first


def test_resume_satisfies_what_the_run_is_parked_on() -> None:
    handle = parked(WaitFor("paid", pick=lambda event: 1 / 0))
    workflows.resume(handle.run_id, {"by": "hand"})
    assert handle.status().run.status == "running"
    with pytest.raises(RunConflict):
        workflows.resume(handle.run_id)
    drain(handle.run_id)
    status = handle.status()
    assert status.run.state == {"by": "hand"}
    assert status.run.status == "completed"


def test_cancel_ends_a_waiting_run_at_once() -> None:
    handle = parked(WaitFor("paid"))
    workflows.cancel(handle.run_id, reason="changed my mind")
    status = handle.status()
    assert status.run.status == "cancelled"
    assert statuses(status) == {
        "w": "cancelled",
        "w.wait": "cancelled",
        "w.end": "cancelled",
        "w.end.end#run": "cancelled",
    }
    workflows.publish("paid", 1)
    drain()
    assert handle.status().run.status == "cancelled"
    assert not Job.objects.exists()


def test_when_and_precheck_are_asked_of_a_wait_too() -> None:
    skipped = Stage("wait", wait_for=WaitFor("paid"), when=lambda state: False)
    handle = workflows.dispatch(Workflow("w", stages=[skipped]), {})
    drain(handle.run_id)
    assert statuses(handle.status()) == {"w": "completed", "w.wait": "skipped"}


def test_an_event_nobody_waits_for_costs_one_row() -> None:
    workflows.publish("nobody", 1)
    drain()
    assert Event.objects.count() == 1
    assert not Job.objects.exists()


def test_a_queued_wait_stage_parks_and_resumes() -> None:
    wait = Stage("wait", wait_for=WaitFor("paid"), via="queue")
    handle = workflows.dispatch(Workflow("w", stages=[wait, Stage("end", run=lambda state: None)]), {})
    drain(handle.run_id)
    assert handle.status().run.status == "waiting"
    workflows.publish("paid", {"ok": 1})
    drain(handle.run_id)
    assert handle.status().run.status == "completed"
    assert handle.status().run.state == {"ok": 1}


def test_a_worker_of_any_queue_delivers_events() -> None:
    definition = Workflow("w", stages=[Stage("wait", wait_for=WaitFor("paid"))])
    handle = workflows.dispatch(definition, {}, queue="orders")
    drain(handle.run_id)
    workflows.publish("paid", 1)
    port = DjangoPort()
    claimed, _ = drive(claims.claim(port, str(uuid.uuid4()), 10, ["orders"]))
    assert [claim.kind for claim in claimed] == ["deliver"]


def test_a_job_that_comes_late_leaves_a_run_waiting_of_which_only_parked_waits_are_left() -> None:
    """The job of a pipeline that is over may be there once more, when two of its children end at the same time."""

    def come_late(state: Any, ctx: Any) -> None:
        over = Node.objects.get(run_id=ctx.run_id, path="first")
        Job.objects.create(run_id=ctx.run_id, node_id=over.pk, available_at=Now() + timedelta(seconds=60))

    first = Pipeline("first", stages=[Stage("s", run=lambda state: None)])
    wait = Stage("wait", wait_for=WaitFor("paid"))
    second = Pipeline("second", stages=[Stage("t", run=come_late), wait])
    handle = workflows.dispatch(Workflow("w", pipelines=[first, second]), {})
    drain(handle.run_id)
    assert (handle.status().run.status, node(handle.status(), "second.wait").status) == ("running", "waiting")
    advance(61)
    drain(handle.run_id)
    assert handle.status().run.status == "waiting"
    assert history(handle.status())[-1] == ("waiting", "second.wait")
    workflows.publish("paid")
    drain(handle.run_id)
    assert handle.status().run.status == "completed"


def test_a_wait_that_was_restored_on_another_server_is_woken_by_what_is_published_there() -> None:
    """A dump keeps the numbers of transactions, and a new server begins with small ones."""
    handle = parked(WaitFor("paid"))
    far = 9_000_000_000
    Node.objects.filter(run_id=handle.run_id, path="w.wait").update(
        parked_xact=far - 1, parked_snapshot=f"{far}:{far}:"
    )
    workflows.publish("paid", 7)
    drain(handle.run_id)
    status = handle.status()
    assert (status.run.status, status.run.state) == ("completed", {"wait": 7})


def test_a_wait_that_is_done_again_is_given_what_has_happened_already() -> None:
    """With a correlation: without one it waits for what comes from now on."""

    def fails(state: dict[str, Any]) -> None:
        raise Fatal("not this time")

    for name, correlate, after in (("again", "order", "failed"), ("anew", None, "waiting")):
        wait = Stage("wait", wait_for=WaitFor("paid", correlate=correlate))
        tree = Workflow(name, stages=[wait, Stage("s", actions=[Action("a", fails)])], on_failure="halt")
        handle = workflows.dispatch(tree, {"order": "o-1"})
        drain(handle.run_id)
        workflows.publish("paid", {"n": 1}, correlation="o-1")
        drain()
        assert handle.status().run.status == "failed"
        workflows.retry(handle.run_id, from_node=f"{name}.wait")
        drain()
        assert handle.status().run.status == after


@pytest.mark.parametrize("correlate", [None, "id"])
def test_a_wait_to_which_the_database_refuses_an_event_keeps_it_from_no_other(correlate: str | None) -> None:
    """With one event for all of them, and with one for each that are delivered together."""
    definition = Workflow("w", stages=[Stage("wait", wait_for=WaitFor("paid", correlate=correlate))])
    handles = workflows.dispatch_many(definition, [{"id": str(n)} for n in range(5)])
    drain()
    bad = handles[1]
    condition = f"NEW.run_id = '{bad.run_id}' AND NEW.wait_outcome IS NOT NULL"
    with refusing("UPDATE", "workflow_node", condition):
        for n in range(5 if correlate else 1):
            workflows.publish("paid", correlation=str(n))
        drain()
        found = {handle: handle.status().run.status for handle in handles}
        assert [handle for handle, status in found.items() if status != "completed"] == [bad]
        tries = []
        for _ in range(3):
            tries.append(Job.objects.get().last_error.partition(":")[0])
            advance(61)
            drain()
    assert tries == [f"ENGINE_FAILED {n}" for n in (1, 2, 3)]
    advance(61)
    drain()
    assert bad.status().run.status == "completed"
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("correlate", "said"),
    [
        (None, 'no event "paid" within 60 s'),
        ("order", 'no event "paid" about order="o-\u00fc 17" within 60 s'),
        (lambda state: "about-17", 'no event "paid" about "about-17" within 60 s'),
    ],
    ids=["no correlation", "a key", "a function"],
)
def test_a_wait_that_times_out_says_for_what(correlate: Any, said: str) -> None:
    handle = workflows.dispatch(
        Workflow("w", stages=[Stage("wait", wait_for=WaitFor("paid", timeout=60, correlate=correlate))]),
        {"order": "o-\u00fc 17"},
    )
    drain(handle.run_id)
    advance(61)
    drain(handle.run_id)
    status = handle.status()
    assert status.run.error is not None
    assert status.run.error["message"] == said


@pytest.mark.parametrize("value", ["ann@example.org", "17"], ids=["long", "short"])
def test_a_wait_that_times_out_shows_no_correlation_that_is_masked(
    value: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Short values are masked under their key only: the message names it."""
    handle = workflows.dispatch(
        Workflow("w", stages=[Stage("wait", wait_for=WaitFor("paid", timeout=60, correlate="email"))]),
        {"email": value},
    )
    drain(handle.run_id)
    advance(61)
    with override_settings(WORKFLOW={"REDACT": ["*email*"]}):
        with caplog.at_level("INFO", "workflow"):
            drain(handle.run_id)
        shown = redact_status(handle.status())
        assert shown.run.error is not None
        assert shown.run.error["message"] == f'no event "paid" about email={MASK} within 60 s'
        entries = [
            redact_entry(entry.data)
            for entry in RunEvent.objects.filter(run_id=handle.run_id, data__has_key="error")
        ]
    assert MASK in str(entries)
    assert f'"{value}"' not in str(entries)
    told = [line for line in caplog.messages if "no event" in line]
    assert told
    assert not [line for line in told if f'"{value}"' in line]
