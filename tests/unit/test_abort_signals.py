"""`ctx.signal`, and what a handler may call on `ctx` once it has been asked to stop."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from workflow.awaits import Awaits
from workflow.context import Context
from workflow.errors import Aborted
from workflow.signals import CANCELLED, TIMEOUT, Signal
from workflow.steps import Steps


def test_callbacks_are_called_once_and_at_once_where_it_is_too_late() -> None:
    signal = Signal()
    heard: list[Any] = []
    signal.add_callback(lambda: heard.append("first"))
    signal.add_callback(lambda: 1 / 0)
    signal.add_callback(lambda: heard.append(signal.reason))
    assert (signal.aborted, signal.wait(0), heard) == (False, False, [])
    assert signal.abort(TIMEOUT)
    assert not signal.abort(CANCELLED)
    assert (signal.aborted, signal.reason, signal.wait(60), heard) == (
        True,
        TIMEOUT,
        True,
        ["first", TIMEOUT],
    )
    signal.add_callback(lambda: heard.append("late"))
    assert heard == ["first", TIMEOUT, "late"]


@pytest.mark.parametrize(
    "error", [SystemExit(3), CancelledError(), GeneratorExit(), BaseException()], ids=repr
)
def test_whatever_a_callback_raises_ends_with_it(error: BaseException) -> None:
    def fail() -> None:
        raise error

    signal = Signal()
    heard: list[str] = []
    signal.add_callback(fail)
    signal.add_callback(lambda: heard.append("next"))
    assert signal.abort(TIMEOUT)
    assert heard == ["next"]


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx: ctx.progress(50),
        lambda ctx: ctx.log("still here"),
        lambda ctx: async_to_sync(ctx.aprogress)(50),
        lambda ctx: async_to_sync(ctx.alog)("still here"),
    ],
    ids=["progress", "log", "aprogress", "alog"],
)
def test_every_report_of_a_handler_that_was_asked_to_stop_tells_it_so(
    call: Callable[[Context], None],
) -> None:
    """One that never looks at `ctx.signal` ends at its next call of the engine (C67)."""
    told: list[str] = []
    signal = Signal()

    def steps() -> Steps:
        raise AssertionError("nobody asks for steps")

    ctx = Context(
        run_id="0" * 32,
        node_id="0" * 32,
        path="w.s.a",
        workflow="w",
        attempt=1,
        state={},
        context=None,
        correlation_id=None,
        idempotency_key="k",
        signal=signal,
        report=lambda name, progress, data: told.append(name),
        steps=steps,
        awaits=Awaits(),
    )
    call(ctx)
    signal.abort(CANCELLED)
    with pytest.raises(Aborted) as caught:
        call(ctx)
    assert (caught.value.reason, len(told)) == (CANCELLED, 1)
