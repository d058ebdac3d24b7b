"""Interrupting a plain handler leaves nothing behind, in its thread or in the process."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from workflow.executor.interrupt import TimedOut, UserCode

PATIENCE = 60.0

TRACED_AFTERWARDS = """
import sys, threading
from workflow.executor.interrupt import TimedOut, UserCode

code, entered = UserCode(), threading.Event()

def handler():
    try:
        with code:
            entered.set()
            while True:
                pass
    except TimedOut:
        pass

thread = threading.Thread(target=handler)
thread.start()
entered.wait()
assert code.interrupt()
thread.join()

def called():
    return 1

sys.settrace(lambda *event: None)
for _ in range(100):
    called()
print("done")
"""


def run_interrupted(body: object) -> tuple[UserCode, list[object]]:
    """Runs `body(entered, seen)` in user code in a thread, and interrupts it once it says that it is in there."""
    code, entered, seen = UserCode(), threading.Event(), []

    def handler() -> None:
        try:
            with code:
                body(entered, seen)  # type: ignore[operator]
        except TimedOut:
            seen.append("interrupted")
        seen.append("left")

    thread = threading.Thread(target=handler)
    thread.start()
    assert entered.wait(PATIENCE)
    assert code.interrupt()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    return code, seen


def test_user_code_is_interrupted_once_and_nothing_after_it() -> None:
    def busy(entered: threading.Event, seen: list[object]) -> None:
        entered.set()
        while True:
            pass

    code, seen = run_interrupted(busy)
    assert seen == ["interrupted", "left"]
    assert not code.interrupt()


def test_user_code_that_swallows_it_is_left_as_usual() -> None:
    def stubborn(entered: threading.Event, seen: list[object]) -> None:
        try:
            entered.set()
            while True:
                pass
        except BaseException:
            seen.append("swallowed")

    _, seen = run_interrupted(stubborn)
    assert seen == ["swallowed", "left"]


@pytest.mark.timeout(PATIENCE)
def test_code_that_is_traced_afterwards_still_runs() -> None:
    """A debugger, coverage or a property test traces calls: on Python 3.11 the first one never returned."""
    ended = subprocess.run(
        [sys.executable, "-c", TRACED_AFTERWARDS],
        capture_output=True,
        text=True,
        timeout=PATIENCE / 2,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("done\n", "")
