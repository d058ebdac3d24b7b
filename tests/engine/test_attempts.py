"""What a handler raises, and when it is tried again: backoff, jitter, Retry and Fatal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support.runs import node, run_through, staged
from workflow import Action, Fatal, Retry, Stage, Workflow, workflows
from workflow.models import Job, Run, RunEvent
from workflow.testing import advance, drain
from workflow.times import FOR_EVER


def test_a_failed_attempt_waits_its_backoff_and_the_next_one_may_succeed() -> None:
    calls: list[int] = []

    def flaky(state: dict[str, Any], ctx: Any) -> str:
        calls.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError(f"not yet {ctx.attempt}")
        return "done"

    handle = workflows.dispatch(staged(Action("flaky", flaky, backoff=10)), {})
    drain(handle.run_id)
    assert calls == [1]
    waiting = node(handle.status(), "w.s.flaky")
    assert (waiting.status, waiting.attempt) == ("pending", 1)
    assert waiting.error is not None
    assert (waiting.error["type"], waiting.error["message"]) == ("ValueError", "not yet 1")
    assert "not yet 1" in waiting.error["traceback"]
    advance(9)
    drain(handle.run_id)
    assert calls == [1]
    advance(1)
    drain(handle.run_id)
    assert calls == [1, 2]
    advance(19)
    drain(handle.run_id)
    assert calls == [1, 2]
    advance(1)
    drain(handle.run_id)
    status = handle.status()
    assert calls == [1, 2, 3]
    assert status.run.status == "completed"
    assert node(status, "w.s.flaky").error is None
    assert Job.objects.count() == 0


@pytest.mark.parametrize(
    ("via", "delays"),
    [("inline", [1, 2, 3]), ("queue", [0.5, 1, 2])],
)
def test_the_default_backoff_is_linear_inline_and_doubles_in_the_queue(via: Any, delays: list[float]) -> None:
    def fail(state: dict[str, Any]) -> None:
        raise RuntimeError("no")

    status = run_through(staged(Action("fail", fail, attempts=4, via=via)), seconds=5, rounds=4)
    entries = RunEvent.objects.filter(run_id=status.run.id, name="action.retrying").order_by("seq")
    assert [entry.data["delay"] for entry in entries] == delays
    assert [entry.data["attempt"] for entry in entries] == [1, 2, 3]
    assert all(entry.data["error"]["message"] == "no" and entry.data["due_at"] for entry in entries)
    assert node(status, "w.s.fail").attempt == 4


def test_a_callable_backoff_is_given_the_attempt_that_failed() -> None:
    asked: list[int] = []

    def backoff(attempt: int) -> timedelta:
        asked.append(attempt)
        return timedelta(seconds=30)

    def fail(state: dict[str, Any]) -> None:
        raise RuntimeError("no")

    status = run_through(staged(Action("fail", fail, backoff=backoff)), seconds=30, rounds=3)
    assert asked == [1, 2]
    assert status.run.status == "compensated"


def test_a_callable_backoff_is_asked_for_a_compensation_too_and_not_after_its_last_attempt() -> None:
    asked: list[int] = []

    def backoff(attempt: int) -> float:
        asked.append(attempt)
        return 0

    def fail(state: dict[str, Any]) -> None:
        raise RuntimeError("no")

    done = Action(
        "done", lambda state: None, backoff=backoff, compensate=fail, compensate_attempts=4, attempts=1
    )
    stages = [Stage("a", actions=[done]), Stage("b", actions=[Action("bad", fail, attempts=1)])]
    run_through(Workflow("w", stages=stages), seconds=1)
    assert asked == [1, 2, 3]


@pytest.mark.parametrize("backoff", [lambda a: 1 / 0, lambda a: float("nan"), lambda a: -1, lambda a: "soon"])
def test_a_backoff_that_is_no_use_ends_the_attempt_with_the_default_delay(backoff: Any) -> None:
    def fail(state: dict[str, Any]) -> None:
        raise RuntimeError("no")

    handle = workflows.dispatch(staged(Action("fail", fail, backoff=backoff, attempts=2)), {})
    drain(handle.run_id)
    error = node(handle.status(), "w.s.fail").error
    assert error is not None
    assert error["message"].startswith("no")
    assert "backoff" in error["message"]
    advance(1)
    drain(handle.run_id)
    run = handle.status().run
    assert run.status == "compensated"
    assert run.error is not None
    assert run.error["message"] == "no", "after the last attempt it is not asked"


class Stop(BaseException):
    """Not an Exception, as a project may have some."""


class Bare(Retry):
    def __init__(self) -> None:
        """Without `super().__init__()`."""


class Odd(Retry):
    def __init__(self, delay: Any) -> None:
        self.delay = delay


class Broken(Retry):
    @property
    def delay(self) -> float:  # type: ignore[override]
        raise Stop

    def __init__(self) -> None:
        """Its delay cannot be set."""


@pytest.mark.parametrize(
    ("error", "delay"),
    [
        (Bare(), 7),
        (Odd("soon"), 7),
        (Odd(-1), 7),
        (Odd(float("nan")), 7),
        (Odd(timedelta(seconds=3)), 3),
        (Broken(), 1),
    ],
    ids=["bare", "text", "negative", "nan", "timedelta", "broken"],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_retry_that_names_no_usable_delay_is_a_failed_attempt(
    error: Retry, delay: float, is_async: bool
) -> None:
    def plain(state: dict[str, Any]) -> None:
        raise error

    async def coroutine(state: dict[str, Any]) -> None:
        raise error

    act = Action("again", coroutine if is_async else plain, backoff=7, attempts=2)
    assert delays_of(act, 1) == [delay]
    failed = Run.objects.get().error
    assert (failed["code"], failed["type"]) == ("ACTION_FAILED", type(error).__name__)


@pytest.mark.parametrize("kind", [Stop, asyncio.CancelledError, GeneratorExit])
def test_a_backoff_that_raises_no_exception_waits_the_default_delay_too(kind: type[BaseException]) -> None:
    def fail(state: dict[str, Any]) -> None:
        raise RuntimeError("no")

    def backoff(attempt: int) -> float:
        raise kind

    assert delays_of(Action("fail", fail, backoff=backoff, attempts=2), 1) == [1]


def nonsense(attempt: int) -> float:
    return float("nan")


def delays_of(action: Action, rounds: int, seconds: float = 10_000) -> list[float]:
    status = run_through(staged(action), seconds=seconds, rounds=rounds)
    entries = RunEvent.objects.filter(run_id=status.run.id, name="action.retrying").order_by("seq")
    return [entry.data["delay"] for entry in entries]


def failing(naming: float, at: int) -> Callable[..., None]:
    """A handler that always fails, and names its own delay (seconds) in that attempt."""

    def fail(state: dict[str, Any], ctx: Any) -> None:
        if ctx.attempt == at:
            raise Retry(delay=naming)
        raise RuntimeError("no")

    return fail


def test_the_default_waits_no_longer_than_the_setting_allows(settings: Any) -> None:
    settings.WORKFLOW = {**settings.WORKFLOW, "MAX_BACKOFF": 1.5, "BACKOFF_JITTER": 0}
    assert delays_of(Action("fail", failing(naming=600, at=3), attempts=4), 4) == [1, 1.5, 600]


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (7200, [7200, 14_400]),
        (timedelta(hours=1), [3600, 7200]),
        (lambda attempt: 86_400, [86_400, 86_400]),
        (lambda attempt: 10**400, [FOR_EVER]),
    ],
    ids=["seconds", "timedelta", "callable", "huge"],
)
def test_what_a_project_names_is_waited_for_however_short_the_setting(
    backoff: Any, delays: list[float], settings: Any
) -> None:
    settings.WORKFLOW = {**settings.WORKFLOW, "MAX_BACKOFF": 15}
    act = Action("fail", failing(naming=90_000, at=3), backoff=backoff, attempts=4)
    assert delays_of(act, 4, seconds=90_000) == (delays if len(delays) == 1 else [*delays, 90_000])


@pytest.mark.parametrize(("backoff", "base", "longest"), [(None, 1, 1), (100, 100, 600), (nonsense, 1, 1)])
def test_jitter_keeps_the_default_within_the_setting_and_not_what_is_named(
    backoff: Any, base: float, longest: float, settings: Any
) -> None:
    settings.WORKFLOW = {**settings.WORKFLOW, "MAX_BACKOFF": 1, "BACKOFF_JITTER": 1}
    random.seed(7)
    delays = delays_of(Action("fail", failing(naming=0, at=9), backoff=backoff, attempts=4), 4)
    assert base <= max(delays) <= longest


def test_jitter_spreads_backoffs_when_it_is_asked_for_and_leaves_what_retry_names(settings: Any) -> None:
    settings.WORKFLOW = {**settings.WORKFLOW, "BACKOFF_JITTER": 0.25}

    random.seed(7)
    *spread, named = delays_of(
        Action("fail", failing(naming=100, at=9), backoff=lambda attempt: 100, attempts=10), 10
    )
    assert named == 100
    assert len(set(spread)) == 8
    assert all(75 <= delay <= 125 for delay in spread)


def test_fatal_fails_without_another_attempt_and_retry_names_its_own_delay() -> None:
    def fatal(state: dict[str, Any]) -> None:
        raise Fatal("never")

    status = run_through(staged(Action("fatal", fatal, attempts=9)))
    assert node(status, "w.s.fatal").attempt == 1
    assert status.run.error is not None
    assert (status.run.error["type"], status.run.error["message"]) == ("Fatal", "never")

    def later(state: dict[str, Any], ctx: Any) -> None:
        if ctx.attempt == 1:
            raise Retry(delay=100)

    handle = workflows.dispatch(Workflow("r", stages=[Stage("s", actions=[Action("later", later)])]), {})
    drain(handle.run_id)
    advance(99)
    drain(handle.run_id)
    assert handle.status().run.status == "running"
    advance(1)
    drain(handle.run_id)
    assert handle.status().run.status == "completed"


@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_handler_raises_is_an_action_failed(kind: type[BaseException], is_async: bool) -> None:
    def plain(state: dict[str, Any]) -> None:
        raise kind("bye")

    async def coroutine(state: dict[str, Any]) -> None:
        raise kind("bye")

    status = run_through(staged(Action("quit", coroutine if is_async else plain, attempts=1)))
    assert status.run.status == "compensated"
    assert status.run.error is not None
    assert (status.run.error["code"], status.run.error["type"]) == ("ACTION_FAILED", kind.__name__)


def test_an_exception_that_cannot_be_printed_or_holds_a_nul_is_still_a_readable_error() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    class Huge(Exception):
        pass

    def fail(state: dict[str, Any]) -> None:
        raise state_errors.pop()

    state_errors: list[Exception] = [Unprintable(), ValueError("bad\x00byte \ud83d"), Huge("x" * 10_000_000)]
    for kind in ("Huge", "ValueError", "Unprintable"):
        status = run_through(
            Workflow(kind.lower(), stages=[Stage("s", actions=[Action("a", fail, attempts=1)])])
        )
        assert status.run.error is not None
        assert status.run.error["type"] == kind
        assert 0 < len(status.run.error["message"]) < 20_000
        assert "\x00" not in status.run.error["message"]
