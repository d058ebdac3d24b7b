"""A step that waits has one answer: that of a person, of an event, or of the clock, whoever was first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.runs import PATIENCE, history, names, staged
from tests.support.threads import together
from workflow import Action, RunConflict, Stage, WaitFor, WaitTimeout, Workflow, workflows
from workflow.models import Event, Job, Node, Step
from workflow.registry import registry
from workflow.results import RunHandle
from workflow.store.drive import drive
from workflow.store.events import deliver
from workflow.store.ports import DjangoPort
from workflow.testing import advance, drain

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 15


def ask(state: dict[str, Any], ctx: Any) -> Any:
    try:
        return ctx.step.wait_event("answer", "tick", correlate="id", timeout=60)
    except WaitTimeout:
        return "timeout"


ASKING = staged(Action("act", ask))
WAITING = Workflow("waiting", stages=[Stage("s", wait_for=WaitFor("tick", correlate="id"))])


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with registry.isolated():
        workflows.register(ASKING)
        workflows.register(WAITING)
        yield


def suspended(definition: Workflow, number: int) -> RunHandle:
    handle = workflows.dispatch(definition, {"id": str(number)})
    drain(timeout=PATIENCE)
    assert Step.objects.get(run_id=handle.run_id).wait_event == "tick"
    return handle


def ended(handle: RunHandle) -> Any:
    """What the handler got in the end; the history is whole."""
    drain(timeout=PATIENCE)
    status = handle.status()
    assert status.run.status == "completed"
    assert names(status).count("resumed") == 1
    history(status)
    return status.run.state["act"]


def conflicts(outcomes: list[Any]) -> list[bool]:
    """Who was told that somebody else was first."""
    for outcome in outcomes:
        assert not isinstance(outcome, Exception) or isinstance(outcome, RunConflict), outcome
    return [isinstance(outcome, RunConflict) for outcome in outcomes]


def test_of_many_answers_one_wins() -> None:
    for number in range(ROUNDS):
        handle = suspended(ASKING, number)
        told = conflicts(together([lambda h=handle, n=n: workflows.resume(h.run_id, n) for n in range(5)]))
        assert told.count(False) == 1
        assert ended(handle) == told.index(False)


def test_an_answer_against_an_event() -> None:
    for number in range(ROUNDS):
        handle = suspended(ASKING, number)
        workflows.publish("tick", "by event", correlation=str(number))
        event = Event.objects.get(correlation=str(number))
        resumed, _ = conflicts(
            together(
                [
                    lambda h=handle: workflows.resume(h.run_id, "by hand"),
                    lambda e=event: drive(deliver(DjangoPort(), [str(e.pk)])),
                ]
            )
        )
        assert ended(handle) == ("by event" if resumed else "by hand")
        event.refresh_from_db()
        assert event.taken == resumed


def test_an_answer_against_the_timeout() -> None:
    for number in range(ROUNDS):
        handle = suspended(ASKING, number)
        advance(61)
        resumed, _ = conflicts(
            together(
                [
                    lambda h=handle: workflows.resume(h.run_id, "by hand"),
                    lambda h=handle: drain(h.run_id, timeout=PATIENCE),
                ]
            )
        )
        assert ended(handle) == ("timeout" if resumed else "by hand")


def test_a_cancel_against_an_event_that_a_stage_or_a_step_waits_for() -> None:
    """The cancel counts whoever is first; nothing of the run is left that waits or is to be done."""
    for number in range(ROUNDS):
        for definition in (ASKING, WAITING):
            handle = workflows.dispatch(definition, {"id": f"{definition.name} {number}"})
            drain(timeout=PATIENCE)
            correlation = f"{definition.name} {number}"
            workflows.publish("tick", correlation=correlation)
            event = Event.objects.get(correlation=correlation)
            told = conflicts(
                together(
                    [
                        lambda h=handle: workflows.cancel(h.run_id),
                        lambda e=event: drive(deliver(DjangoPort(), [str(e.pk)])),
                    ]
                )
            )
            assert told == [False, False]
            drain(timeout=PATIENCE)
            status = handle.status()
            assert (status.run.status, names(status)[-1]) == ("cancelled", "cancelled")
            assert not Job.objects.filter(run_id=handle.run_id).exists()
            assert not Node.objects.filter(run_id=handle.run_id, wait_event__isnull=False).exists()
            assert not Step.objects.filter(run_id=handle.run_id, wait_event__isnull=False).exists()
            history(status)
