"""The parent of worker processes: when it starts one anew, and when it ends one that does not leave."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import time

import pytest

from workflow.worker import supervisor
from workflow.worker.options import Options
from workflow.worker.process import OUTGROWN, RETIRED

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def a_supervisor() -> supervisor._Supervisor:
    return supervisor._Supervisor(Options(concurrency=1, max_rss=7), 1)


def pauses(parent: supervisor._Supervisor) -> list[float]:
    """Seconds until processes are started anew."""
    now = time.monotonic()
    return [round(max(0.0, due - now)) for due in parent._due]


def test_a_fork_that_fails_is_tried_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    parent = a_supervisor()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        parent._fork()
        parent._fork()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert pauses(parent) == [1, 2]
    assert parent._children == {}
    assert len([line for line in caplog.messages if "no worker process can be started" in line]) == 2


def test_a_limit_of_memory_that_is_too_low_is_told_of_once_and_makes_no_storm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parent = a_supervisor()
    for _ in range(3):
        parent._ended(1, time.monotonic() - 1, OUTGROWN)
    assert pauses(parent) == [1, 2, 4]
    (warning,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert "more than 7 MB resident after 1.0 s" in warning.getMessage()
    parent._ended(1, time.monotonic() - 60, OUTGROWN)
    parent._ended(1, time.monotonic() - 1, OUTGROWN)
    assert pauses(parent)[3:] == [0, 1]


def test_a_process_that_has_taken_its_jobs_is_replaced_at_once_however_young() -> None:
    parent = a_supervisor()
    for _ in range(3):
        parent._ended(1, time.monotonic() - 0.1, RETIRED)
    assert pauses(parent) == [0, 0, 0]


@pytest.mark.parametrize("code", [RETIRED, OUTGROWN])
def test_a_process_that_was_about_to_be_replaced_does_not_spoil_the_end_of_all(code: int) -> None:
    parent = a_supervisor()
    parent._on_signal(signal.SIGTERM, None)
    assert parent._ended(1, time.monotonic() - 60, code) == 0
    assert parent._ended(2, time.monotonic() - 60, -signal.SIGKILL) == signal.SIGKILL
    assert pauses(parent) == []


@pytest.mark.parametrize("how", ["told", "retired"])
def test_a_process_that_was_to_leave_and_does_not_is_killed(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, settings
) -> None:
    settings.WORKFLOW = {"SHUTDOWN_GRACE": 0.1}
    monkeypatch.setattr(supervisor, "LATE", 0.3)
    deaf = "import signal, sys; signal.signal(15, signal.SIG_IGN); print('!', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", deaf], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        parent = a_supervisor()
        parent._children[stubborn.pid] = supervisor._Child(time.monotonic())
        parent._kill_late()
        assert parent._timeout() is None
        if how == "told":
            parent._on_signal(signal.SIGTERM, None)
        else:
            reading, writing = os.pipe()
            os.write(writing, b"%d\n" % stubborn.pid)
            parent._hear(reading)
            os.close(reading)
            os.close(writing)
        parent._kill_late()
        left = parent._timeout()
        assert left is not None
        assert stubborn.poll() is None
        time.sleep(left + 0.01)
        parent._kill_late()
        assert stubborn.wait(30) == -signal.SIGKILL
    assert f"worker process {stubborn.pid} was to leave and has not: it is killed" in caplog.messages
