"""What of a run waits while its queue is paused, and what does not."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from tests.support.runs import names, node
from workflow import Action, Stage, WaitFor, Workflow, states, sweeps, workflows
from workflow.models import Job, PausedQueue
from workflow.results import RunHandle
from workflow.sql import claim as sql
from workflow.store.ports import DjangoPort
from workflow.store.workers import unserved_now
from workflow.testing import advance, drain


def nothing(state: dict[str, Any]) -> None:
    """A handler."""


def pauses(state: dict[str, Any]) -> None:
    workflows.pause_queue("slow")


def fails(state: dict[str, Any]) -> None:
    raise ValueError("told to")


def pauses_and_fails(state: dict[str, Any]) -> None:
    pauses(state)
    raise ValueError("told to")


PLAIN = Workflow("plain", stages=[Stage("s", actions=[Action("a", nothing), Action("b", nothing)])])


def waits(run_id: Any) -> None:
    """Nothing of the run is done, however much time passes, until its queue is resumed."""
    before = list(Job.objects.filter(run_id=run_id).values("id", "attempt", "lease_token", "last_error"))
    assert before
    for _ in range(3):
        drain(run_id)
        advance(100)
    assert (
        list(Job.objects.filter(run_id=run_id).values("id", "attempt", "lease_token", "last_error")) == before
    )


def test_drain_respects_a_pause_and_leaves_the_run_as_it_is() -> None:
    workflows.pause_queue("slow")
    slow = workflows.dispatch(PLAIN, {}, queue="slow")
    fast = workflows.dispatch(PLAIN, {})
    drain()
    assert (slow.status().run.status, fast.status().run.status) == ("pending", "completed")
    waits(slow.run_id)
    assert workflows.resume_queue("slow")
    drain()
    assert slow.status().run.status == "completed"


def test_time_that_passes_in_a_test_ends_a_pause() -> None:
    handle = workflows.dispatch(PLAIN, {}, queue="slow")
    workflows.pause_queue("slow", until=5)
    advance(4)
    drain()
    assert handle.status().run.status == "pending"
    advance(2)
    drain()
    assert handle.status().run.status == "completed"
    assert workflows.paused_queues() == []
    assert workflows.resume_queue("slow") is False


def test_a_unit_that_is_in_hand_goes_on_to_its_end() -> None:
    definition = Workflow("w", stages=[Stage("one", actions=[Action("a", pauses), Action("b", nothing)])])
    handle = workflows.dispatch(definition, {}, queue="slow")
    drain()
    assert handle.status().run.status == "completed"


@pytest.mark.parametrize("via", ["inline", "queue"])
def test_a_later_stage_with_a_job_of_its_own_waits(via: Any) -> None:
    definition = Workflow(
        "w",
        stages=[
            Stage("one", actions=[Action("a", pauses)]),
            Stage("two", via=via, actions=[Action("b", nothing)]),
        ],
    )
    handle = workflows.dispatch(definition, {}, queue="slow")
    drain()
    if via == "queue":
        assert handle.status().run.status == "running"
        waits(handle.run_id)
        workflows.resume_queue("slow")
        drain()
    assert handle.status().run.status == "completed"


def test_a_parent_that_would_go_on_waits() -> None:
    definition = Workflow(
        "w",
        stages=[
            Stage("one", actions=[Action("a", pauses, via="queue")]),
            Stage("two", actions=[Action("b", nothing)]),
        ],
    )
    handle = workflows.dispatch(definition, {}, queue="slow")
    drain()
    assert node(handle.status(), "w.one.a").status == "completed"
    assert node(handle.status(), "w.two.b").status == "pending"
    waits(handle.run_id)
    workflows.resume_queue("slow")
    drain()
    assert handle.status().run.status == "completed"


def test_a_backoff_that_is_over_waits_and_spends_no_attempt() -> None:
    definition = Workflow(
        "w", stages=[Stage("s", actions=[Action("a", pauses_and_fails, attempts=2, backoff=10)])]
    )
    handle = workflows.dispatch(definition, {}, queue="slow")
    drain()
    waits(handle.run_id)
    assert node(handle.status(), "w.s.a").attempt == 1
    workflows.resume_queue("slow")
    drain()
    assert node(handle.status(), "w.s.a").attempt == 2


def test_a_compensation_waits() -> None:
    done = Action("done", nothing, compensate=nothing)
    parked = Stage("wait", wait_for=WaitFor("never"))
    handle = workflows.dispatch(
        Workflow("w", stages=[Stage("one", actions=[done]), parked]), {}, queue="slow"
    )
    drain()
    workflows.pause_queue("slow")
    workflows.cancel(handle.run_id, compensate=True)
    assert handle.status().run.status == "compensating"
    waits(handle.run_id)
    workflows.resume_queue("slow")
    drain()
    assert handle.status().run.status == "compensated"


@pytest.mark.parametrize("compensate", [False, True])
def test_a_pending_run_is_cancelled_at_once(compensate: bool) -> None:
    workflows.pause_queue("slow")
    handle = workflows.dispatch(PLAIN, {}, queue="slow")
    workflows.cancel(handle.run_id, compensate=compensate)
    assert handle.status().run.status == "cancelled"


def dispatched_before_its_event(definition: Workflow) -> RunHandle:
    """A run in the queue "slow" that nothing has begun yet; its event is there and was delivered, to nobody."""
    workflows.pause_queue("slow")
    handle = workflows.dispatch(definition, {"dish": "soup"}, queue="slow")
    workflows.publish("tasted", {"good": True}, correlation="soup")
    drain()
    workflows.resume_queue("slow")
    assert not Job.objects.filter(kind=states.DELIVER).exists()
    return handle


def test_an_event_that_came_before_its_wait_counts_although_the_wait_is_over_in_the_pause() -> None:
    """The deadline passes while nothing of the run may go on; the event was there before."""
    stages = [
        Stage("one", actions=[Action("a", pauses)]),
        Stage("two", wait_for=WaitFor("tasted", correlate="dish", timeout=60)),
    ]
    handle = dispatched_before_its_event(Workflow("w", stages=stages))
    drain()
    waits(handle.run_id)
    workflows.resume_queue("slow")
    drain()
    assert handle.status().run.status == "completed"


def test_the_same_for_a_step_that_waits() -> None:
    calls: list[int] = []

    def asks(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
        if not calls:
            pauses(state)
        calls.append(1)
        return {"answer": ctx.step.wait_event("taste", "tasted", correlate="dish", timeout=60)}

    handle = dispatched_before_its_event(Workflow("w", stages=[Stage("s", actions=[Action("a", asks)])]))
    drain()
    waits(handle.run_id)
    assert len(calls) == 1
    workflows.resume_queue("slow")
    drain()
    assert handle.status().run.state["answer"]["good"] is True


def test_events_reach_a_parked_run_which_goes_on_later() -> None:
    handle = workflows.dispatch(
        Workflow("w", stages=[Stage("s", wait_for=WaitFor("tasted", timeout=60))]), {}, queue="slow"
    )
    drain()
    workflows.pause_queue("slow")
    workflows.publish("tasted", {"good": True})
    drain()
    assert "resumed" in names(handle.status())
    waits(handle.run_id)
    workflows.resume_queue("slow")
    drain()
    assert handle.status().run.status == "completed"


def test_a_run_of_a_paused_queue_is_not_stuck_however_long() -> None:
    workflows.pause_queue("slow")
    handle = workflows.dispatch(PLAIN, {}, queue="slow")
    half_way = workflows.dispatch(
        Workflow("half-way", stages=[Stage("s", actions=[Action("a", fails, attempts=2, backoff=10)])]),
        {},
        queue="slow",
    )
    workflows.resume_queue("slow")
    drain(half_way.run_id)
    workflows.pause_queue("slow")
    advance(10_000_000)
    with override_settings(WORKFLOW={"STUCK_THRESHOLD": 30}):
        assert sweeps.run_once()["runs"] == 0
    assert (handle.status().run.status, half_way.status().run.status) == ("pending", "running")


def test_a_pause_does_not_make_runs_unserved(monkeypatch: pytest.MonkeyPatch) -> None:
    from workflow.models import Worker

    workflows.pause_queue("slow")
    workflows.dispatch(PLAIN, {}, queue="slow")
    Worker.objects.create(
        hostname="h",
        pid=1,
        concurrency=1,
        threads=1,
        serves=[{"name": "plain", "version": 1, "fingerprint": "f"}],
    )
    assert unserved_now() == []


def test_the_sweep_drops_pauses_that_are_over_and_no_other() -> None:
    workflows.pause_queue("for-ever")
    workflows.pause_queue("later", until=1000)
    workflows.pause_queue("over", until=10)
    advance(20)
    assert sweeps.run_once()["pauses"] == 1
    assert sorted(PausedQueue.objects.values_list("queue", flat=True)) == ["for-ever", "later"]
    assert sweeps.run_once()["pauses"] == 0


def next_due(*queues: str) -> float | None:
    names = list(queues) or None
    found: float | None = DjangoPort().run_now([(sql.NEXT_DUE, (names, names, 0, names, names))])[0][0][0]
    return found


def test_the_next_look_is_when_a_job_comes_due_or_a_pause_ends() -> None:
    workflows.dispatch(PLAIN, {}, queue="slow", delay=100)
    workflows.dispatch(PLAIN, {}, queue="fast", delay=300)
    assert next_due() == pytest.approx(100)
    workflows.pause_queue("slow")
    assert next_due() == pytest.approx(300)
    assert next_due("slow") is None
    workflows.pause_queue("slow", until=200)
    assert next_due() == next_due("slow") == pytest.approx(200)
    assert next_due("fast") == pytest.approx(300)
    workflows.pause_queue("slow", until=50)
    advance(60)
    assert next_due() == pytest.approx(40)
