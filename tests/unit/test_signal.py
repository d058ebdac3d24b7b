"""The abort signal by itself."""

from __future__ import annotations

import threading

import pytest

from workflow.signals import CANCELLED, Signal


@pytest.mark.parametrize("seconds", [None, 1e300, pytest.param(10**400, id="beyond floats"), 60])
def test_a_wait_ends_when_the_signal_is_set_however_long_it_may_take(seconds: float | None) -> None:
    signal = Signal()
    setter = threading.Timer(0.05, signal.abort, [CANCELLED])
    setter.start()
    try:
        assert signal.wait(seconds) is True
        assert signal.reason == CANCELLED
    finally:
        setter.join()
