"""A worker is killed on the walk back over steps that bring their own compensation; another one goes on with it."""

from __future__ import annotations

import signal

import pytest

from tests.support import invariants
from tests.support.crash import THOROUGH, calls, dispatch, finished, node, status, take_over
from tests.support.workers import Launcher, Worker, eventually
from workflow import states
from workflow.models import Node, Step
from workflow.results import RunHandle

pytestmark = pytest.mark.crash

UNDONE = [("last.end", "second"), ("last.end", "first"), ("one.seat", "second"), ("one.seat", "first")]
UNDONE += [("one.room", "second"), ("one.room", "first")]
"""The steps of a booking whose last action fails after its steps, in the order in which they are undone."""
PLACES = [
    "settle.before:run-compensating",
    "settle.after:run-compensating",
    *(f"settle.{when}:compensate@{number}" for when in ("before", "after") for number in range(1, 9)),
    "settle.before:run-compensated",
    "settle.after:run-compensated",
]


def undone(handle: RunHandle) -> list[tuple[str, str]]:
    """The steps in the order in which their undoing was settled."""
    rows = Step.objects.filter(run_id=handle.run_id, phase="undo", status="completed").order_by("finished_at")
    paths = {n.pk: n.path for n in handle_nodes(handle)}
    return [(paths[row.node_id].removeprefix("booking."), row.key) for row in rows]


def handle_nodes(handle: RunHandle) -> list[Node]:
    return list(Node.objects.filter(run_id=handle.run_id))


def undoings(handle: RunHandle) -> dict[tuple[str, str], int]:
    """How often each was called."""
    return {(path, key): len(calls(handle, f"booking.{path}", f"unstep:{key}")) for path, key in UNDONE}


@pytest.mark.parametrize("place", PLACES if THOROUGH else PLACES[::2])
def test_steps_are_undone_once_whichever_boundary_kills_the_worker(workers: Launcher, place: str) -> None:
    name, _, nth = place.partition("@")
    handle = dispatch("booking", {"booking.last.end": ["fatal"]})
    first = workers.start(f"{name}=kill@{nth or 1}")
    assert first.wait() == -signal.SIGKILL, first.said()
    take_over()
    second = workers.start()
    finished(handle)
    assert status(handle) == states.COMPENSATED
    assert undone(handle) == UNDONE
    again = [step for step, times in undoings(handle).items() if times != 1]
    assert len(again) <= 1, again  # the one whose worker died before its undoing was settled
    assert all(times <= 2 for times in undoings(handle).values())
    assert node(handle, "booking.one.stays").status == states.COMPENSATED
    assert node(handle, "booking.one.room").status == states.COMPENSATED
    invariants.check()
    assert second.stop() == 0


@pytest.mark.parametrize(("path", "deed"), [("last.end", "kill"), ("one.room", "kill")])
def test_an_undoing_that_kills_its_worker_is_called_again_and_no_other_is(
    workers: Launcher, path: str, deed: str
) -> None:
    handle = dispatch("booking", {"booking.last.end": ["fatal"], f"undo booking.{path}": [deed, "ok"]})
    dead = 0
    while status(handle) not in states.RUN_TERMINAL:
        worker = workers.start()
        finished_or_dead(handle, worker)
        if worker.code is not None:
            assert worker.code == -signal.SIGKILL, worker.said()
            dead += 1
            take_over()
    assert dead >= 2
    assert undone(handle) == UNDONE
    for (where, _), times in undoings(handle).items():
        assert times == (2 if where == path else 1)
    invariants.check()


def finished_or_dead(handle: RunHandle, worker: Worker) -> None:
    eventually(lambda: worker.code is not None or status(handle) in states.RUN_TERMINAL, what=worker.said)


@pytest.mark.parametrize("number", range(1, 8, 1 if THOROUGH else 3))
def test_steps_are_undone_once_though_the_answer_to_a_commit_is_lost(workers: Launcher, number: int) -> None:
    workers.start(f"settle.answer:compensate=lose@{number}")
    handle = dispatch("booking", {"booking.last.end": ["fatal"]})
    finished(handle)
    assert undone(handle) == UNDONE
    assert set(undoings(handle).values()) == {1}
    invariants.check(exact=True)
