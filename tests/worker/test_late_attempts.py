"""An attempt that has expired may come to its end while the next one is at work: it takes nothing from that."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import connection

from tests.support.heeding import heeding
from tests.support.moving import Worked, clean, status
from tests.support.workers import eventually
from workflow import Action, Fatal, Stage, Workflow, parallel, workflows
from workflow.executor.transactions import Transaction
from workflow.models import Run
from workflow.store.settle import Settlement
from workflow.worker import runtime as runtime_module
from workflow.worker.process import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["clean"]


class Overlap:
    """Two attempts of one handler: the first outlives its timeout, and ends while the second is at work."""

    def __init__(self, then: Callable[[Any], Any]) -> None:
        self.calls: list[int] = []
        self.then = then
        self.worker: WorkerProcess | None = None
        self._second = threading.Event()

    def start(self, process: WorkerProcess) -> None:
        self.worker = process

    def plain(self, state: dict[str, Any], ctx: Any) -> Any:
        self.calls.append(ctx.attempt)
        if ctx.attempt == 1:
            self._second.wait(60)  # what interrupts it is heard when this returns
            return None
        self._second.set()
        eventually(self._first_is_over)
        return self.then(ctx)

    async def awaiting(self, state: dict[str, Any], ctx: Any) -> Any:
        self.calls.append(ctx.attempt)
        if ctx.attempt == 1:
            try:
                await asyncio.sleep(60)
            finally:
                await self._until(self._second.is_set)
        self._second.set()
        await self._until(self._first_is_over)
        return await asyncio.to_thread(self.then, ctx)

    def undo(self, state: dict[str, Any], ctx: Any) -> Any:
        return self.plain(state, ctx)

    def _first_is_over(self) -> bool:
        assert self.worker is not None
        return self.worker._runtime.handlers == 1

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _no_thread_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "ZOMBIE_GRACE", 600.0)


def run(overlap: Overlap, kind: str, **options: Any) -> Run:
    """A run of one action that is attempted twice at most, one second each."""
    handler = getattr(overlap, kind)
    action = Action("a", handler, timeout=1.0, backoff=0, attempts=2, **options)
    handle = workflows.dispatch(Workflow("late", stages=[Stage("s", actions=[action])]), {})
    Worked(overlap.start, concurrency=4)
    return Run.objects.get(pk=handle.run_id)


@pytest.mark.parametrize("kind", ["plain", "awaiting"])
def test_the_next_attempts_result_is_the_actions(kind: str) -> None:
    overlap = Overlap(lambda ctx: {"by": ctx.attempt})
    found = run(overlap, kind)
    assert (found.status, found.state, overlap.calls) == ("completed", {"by": 2}, [1, 2])


@pytest.mark.parametrize("moment", ["before its checkpoint", "within its checkpoint"])
def test_an_atomic_attempt_that_has_expired_settles_nothing(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is the next one's as well, and the node is `running`: both would let its checkpoint pass."""
    overlap = Overlap(lambda ctx: {"by": ctx.attempt})
    second = threading.Event()
    settle = Transaction.settle

    def held(self: Transaction, settlement: Settlement) -> None:
        assert second.wait(30)
        settle(self, settlement)

    def act(state: dict[str, Any], ctx: Any) -> Any:
        overlap.calls.append(ctx.attempt)
        if ctx.attempt == 1:
            with suppress(BaseException):
                while moment == "before its checkpoint" or not ctx.signal.aborted:
                    time.sleep(0.01)
            if moment == "before its checkpoint":
                second.wait(30)
            return {"by": 1}
        second.set()
        eventually(overlap._first_is_over)
        return {"by": 2}

    overlap.plain = act  # type: ignore[method-assign]
    if moment == "within its checkpoint":
        monkeypatch.setattr(Transaction, "settle", held)
    found = run(overlap, "plain", atomic=True)
    assert (found.status, found.state, overlap.calls) == ("completed", {"by": 2}, [1, 2])


@pytest.mark.parametrize("kind", ["plain", "awaiting"])
def test_the_next_attempt_is_held_to_its_timeout(kind: str) -> None:
    overlap = Overlap(lambda ctx: ctx.signal.wait(60))
    found = run(overlap, kind)
    assert found.error is not None
    assert (found.error["code"], overlap.calls) == ("ACTION_TIMEOUT", [1, 2])


@pytest.mark.parametrize("kind", ["plain", "awaiting"])
def test_the_next_attempt_hears_of_a_cancel(kind: str) -> None:
    heard: list[str | None] = []

    def then(ctx: Any) -> None:
        workflows.cancel(ctx.run_id)
        connection.close()  # of a thread that nobody cleans up after
        ctx.signal.wait(0.9)
        heard.append(ctx.signal.reason)

    overlap = Overlap(then)
    found = run(overlap, kind)
    assert (found.status, heard) == ("cancelled", ["cancelled"])


def test_the_next_attempt_of_a_compensation_undoes_it() -> None:
    overlap = Overlap(lambda ctx: None)

    def fails(state: dict[str, Any]) -> None:
        raise Fatal("turn back")

    made = Action("made", lambda state: {"made": 1}, compensate=overlap.undo, timeout=1.0, backoff=0)
    tree = Workflow("late-undo", stages=[Stage("s", actions=[made, Action("fails", fails)])])
    handle = workflows.dispatch(tree, {})
    Worked(overlap.start, concurrency=4)
    assert (status(handle), overlap.calls) == ("compensated", [1, 2])


def test_beside_a_parallel_mate_the_next_attempts_result_counts_too() -> None:
    overlap = Overlap(lambda ctx: {"by": ctx.attempt})
    over = threading.Event()

    def mate(state: dict[str, Any]) -> None:
        over.wait(60)

    action = Action("a", overlap.plain, timeout=1.0, backoff=0, attempts=2)
    tree = Workflow("late-mate", stages=[Stage("s", actions=[parallel(action, Action("mate", mate))])])
    handle = workflows.dispatch(tree, {})

    def first_is_over() -> bool:
        assert overlap.worker is not None
        return overlap.worker._runtime.handlers == 2  # the second, and the mate

    overlap._first_is_over = first_is_over  # type: ignore[method-assign]
    finish = overlap.then
    overlap.then = lambda ctx: (over.set(), finish(ctx))[1]
    Worked(overlap.start, concurrency=4)
    assert (status(handle), overlap.calls) == ("completed", [1, 2])


@pytest.mark.parametrize("how", ["waits", "looks"])
def test_a_plain_handler_may_see_that_its_time_is_up_and_end_by_itself(how: str) -> None:
    heard: list[str | None] = []

    def one(name: str, **options: Any) -> Any:
        return workflows.dispatch(
            Workflow(name, stages=[Stage("s", actions=[Action("a", heeding(how, heard), **options)])]), {}
        )

    handles = [one(f"w{n}", timeout=0.3, attempts=1) for n in range(5)]
    Worked(concurrency=5)
    assert heard == ["timeout"] * 5
    for handle in handles:
        error = handle.status().run.error
        assert error is not None
        assert error["code"] == "ACTION_TIMEOUT"


@pytest.mark.parametrize("takes_ctx", [False, True])
def test_one_that_does_not_is_interrupted(takes_ctx: bool) -> None:
    ended: list[str] = []

    def spins() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            pass

    def works_on() -> None:
        try:
            spins()  # a call, for Python 3.13 leaves a loop's jump back outside of the `try` around the loop
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    def plain(state: dict[str, Any]) -> None:
        works_on()

    def with_ctx(state: dict[str, Any], ctx: Any) -> None:
        works_on()

    handler = with_ctx if takes_ctx else plain
    actions = [Action("a", handler, timeout=0.3, attempts=1)]
    handle = workflows.dispatch(Workflow("w", stages=[Stage("s", actions=actions)]), {})
    Worked(concurrency=2)
    eventually(lambda: ended)
    assert ended == ["TimedOut"]
    error = handle.status().run.error
    assert error is not None
    assert error["code"] == "ACTION_TIMEOUT"


@pytest.mark.parametrize("after", ["another attempt", "a compensation"])
def test_what_follows_a_timeout_waits_for_a_handler_that_heeds_it(after: str) -> None:
    log: list[str] = []

    def heeds(state: dict[str, Any], ctx: Any) -> None:
        log.append("begins")
        ctx.signal.wait()
        time.sleep(0.5)
        log.append("ends")

    def undo(state: dict[str, Any]) -> None:
        log.append("undo")

    def first(state: dict[str, Any]) -> None: ...

    attempts = 2 if after == "another attempt" else 1
    late = Action("late", heeds, timeout=0.3, attempts=attempts, backoff=0)
    stages = [Stage("s", actions=[Action("first", first, compensate=undo), late])]
    handle = workflows.dispatch(Workflow("w", stages=stages), {})
    Worked(concurrency=2)
    assert log == ["begins", "ends"] * attempts + ["undo"]
    assert status(handle) == "compensated"


@pytest.mark.parametrize("kind", ["heeds", "does not", "async"])
def test_an_attempt_that_is_late_asks_its_backoff_once(kind: str) -> None:
    asked: list[int] = []

    def does_not(state: dict[str, Any], ctx: Any) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            pass

    async def awaits(state: dict[str, Any]) -> None:
        await asyncio.sleep(60)

    def backoff(attempt: int) -> float:
        asked.append(attempt)
        return 0.0

    handler = {"heeds": heeding("waits", []), "does not": does_not, "async": awaits}[kind]
    late = Action("a", handler, timeout=0.3, attempts=2, backoff=backoff)
    handle = workflows.dispatch(Workflow("w", stages=[Stage("s", actions=[late])]), {})
    Worked(concurrency=2)
    assert (asked, status(handle)) == ([1], "compensated")
