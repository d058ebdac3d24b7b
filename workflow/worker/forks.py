"""What a handler forks is no worker, and hears signals as any process does.

A child of `os.fork` (multiprocessing's way on Linux before Python 3.14) has all that its parent had set up for signals:
a handler for SIGTERM that does nothing by itself, and the descriptor by which the parent's event loop is woken for it.
So a child that is told to end would not end, and what it is told would reach the worker, which then stops.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

NUMBERS: Final = {getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR2") if hasattr(signal, name)}
"""Signals that a worker takes for itself."""

_registered = False
_forking = threading.local()


def let_children_be() -> None:
    """From here on, children that are forked begin with Python's own handling of signals. Safe to call again."""
    global _registered
    if not _registered and hasattr(os, "register_at_fork"):
        _registered = True
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_begin)


def _hold() -> None:
    # A child may be told to end before it has run anything: that waits until it can hear it.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _begin() -> None:
    signal.set_wakeup_fd(-1)
    for number in NUMBERS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)
