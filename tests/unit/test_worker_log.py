"""What a worker says in its log, in words."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from workflow.worker import runtime
from workflow.worker.claiming import counted
from workflow.worker.runtime import WorkerRuntime
from workflow.worker.supervisor import how_it_ended

NONE: Any = None
"""What a runtime without work never asks for."""


@pytest.mark.parametrize(("number", "text"), [(0, "0 units"), (1, "1 unit"), (2, "2 units")])
def test_one_is_no_plural(number, text):
    assert counted(number, "unit") == text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "ended with status 1"),
        (-9, "was killed by signal 9 (SIGKILL)"),
        (-11, "was killed by signal 11 (SIGSEGV)"),
        (-40, "was killed by signal 40"),
    ],
)
def test_a_signal_that_ended_a_process_is_named(code, text):
    assert how_it_ended(code) == text


async def test_only_the_start_may_block_the_loop_without_a_word(monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "workflow")
    starting = WorkerRuntime(NONE, NONE, NONE, NONE)
    starting.watch(late=runtime.BLOCKED + 1)
    assert caplog.messages == []
    monkeypatch.setattr(runtime, "START_UP", -1.0)  # it has started long ago
    starting.watch(late=runtime.BLOCKED)
    assert caplog.messages == []
    starting.watch(late=runtime.BLOCKED + 1)
    assert caplog.messages == ["the event loop was blocked for 2.0 s; async handlers at work: none"]
