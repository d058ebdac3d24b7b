"""A process that is told to stop hears of it, wherever in its waiting the signal finds it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest

from workflow.management import stopping
from workflow.management.stopping import Stop, told_to_stop

LONG = 60.0


def wait_with_signal_at(line: int) -> bool:
    """Waits, and is told at the so-manieth line that Python runs inside `wait`; False when there is no such line."""
    left = line

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in (stopping.__file__, threading.__file__):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGTERM)  # its handler runs before the next instruction
        return trace

    with told_to_stop() as stop:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            told = stop.wait(LONG if line else 0)
        finally:
            sys.settrace(before)
        assert told == (left <= 0 < line)
        return told


def test_a_signal_is_heard_wherever_in_the_wait_it_comes() -> None:
    begun = time.monotonic()
    assert not wait_with_signal_at(0)
    assert wait_with_signal_at(1)
    assert wait_with_signal_at(2)
    assert time.monotonic() - begun < LONG


def test_a_signal_that_comes_while_nobody_waits_ends_the_next_pause() -> None:
    with told_to_stop() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_set()
        assert stop.wait(LONG)
        assert stop.wait(LONG)


def test_a_pause_without_a_signal_lasts_its_time() -> None:
    with told_to_stop() as stop:
        begun = time.monotonic()
        assert not stop.wait(0.05)
        assert time.monotonic() - begun >= 0.05


def test_any_number_of_signals_is_taken() -> None:
    stop = Stop()
    for _ in range(100_000):
        stop.on_signal(signal.SIGTERM, None)
    assert stop.wait(LONG)
    stop.close()


@pytest.mark.parametrize("number", stopping.STOPS)
def test_afterwards_signals_do_what_they_did_before(number: int) -> None:
    before = signal.getsignal(number)
    with told_to_stop():
        assert signal.getsignal(number) != before
    assert signal.getsignal(number) == before


def test_a_thread_that_is_not_the_main_one_is_told_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []

    def look() -> None:
        with told_to_stop() as stop:
            seen.extend([stop.is_set(), stop.wait(0), signal.getsignal(signal.SIGTERM)])

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [False, False, before]
