"""Raising an exception inside a thread, but only while it is provably in user code.

CPython delivers such an exception at the thread's next bytecode, which may be one too late: the
user's function has returned and the engine's own code would be hit. So the thread marks, under a
lock, when it enters and leaves user code; the exception is set only between the two marks, and
leaving takes one that was set and not yet delivered. It is taken by having it delivered, not by
setting none: up to Python 3.12 that leaves the interpreter's mark that some thread has one to come, and
every thread of the process looks for it at each call from then on (one that is traced does nothing else).
"""

from __future__ import annotations

import ctypes
import threading
from types import TracebackType


class TimedOut(BaseException):
    """Raised inside a plain handler whose time is up. Not an Exception, so that `except Exception` lets it pass."""


class UserCode:
    """Context manager around a call of user code in this thread; `interrupt` may be called from any other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._interrupted = False

    def __enter__(self) -> UserCode:
        with self._lock:
            self._thread = threading.get_ident()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while True:
            try:
                with self._lock:
                    self._thread = None
                if self._interrupted:
                    _take_exception()
                return
            except TimedOut:
                continue  # delivered while we were leaving: the mark still has to be taken away

    def is_in(self, thread: int) -> bool:
        """Whether it is in the thread with this ident that the call is made."""
        return self._thread == thread

    def interrupt(self) -> bool:
        """Raises `TimedOut` in the thread if it is in user code now; False if it is not.

        It arrives at the thread's next bytecode: a system call is not cut short.
        """
        with self._lock:
            if self._thread is None or self._interrupted:
                return False
            self._interrupted = True
            _set_exception(self._thread, TimedOut)
            return True


def _take_exception() -> None:
    """Has this thread's exception delivered here, if it was not yet."""
    try:
        _set_exception(threading.get_ident(), TimedOut)  # in the place of one that is still to come
        for _ in range(1_000_000):
            pass
    except TimedOut:
        return
    _set_exception(threading.get_ident(), None)


def _set_exception(thread: int, kind: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind)
    )
