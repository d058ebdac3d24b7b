"""Several real connections at once: each thread has Django's own, and gives it back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from django.db import connection, connections

T = TypeVar("T")


def _run(call: Callable[[], T], barrier: threading.Barrier | None) -> T:
    try:
        connection.ensure_connection()
        if barrier is not None:
            barrier.wait(30)
        return call()
    finally:
        connections.close_all()


def together(calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Calls all at the same moment, each on a connection of its own: what each returned, or raised."""
    barrier = threading.Barrier(len(calls))
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(_run, call, barrier) for call in calls]
    return [_outcome(future) for future in futures]


def _outcome(future: Future[T]) -> T | Exception:
    error = future.exception()
    if error is None:
        return future.result()
    if not isinstance(error, Exception):
        raise error
    return error


@contextmanager
def elsewhere() -> Iterator[Callable[[Callable[[], T]], Future[T]]]:
    """Yields what starts a call in another thread, on a connection of its own, and gives its future."""
    with ThreadPoolExecutor() as pool:
        yield lambda call: pool.submit(_run, call, None)


def until_blocked(count: int = 1, within: float = 30) -> None:
    """Returns once so many sessions of this database wait for a lock. Looks from the caller's connection."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_stat_clear_snapshot()"
            )  # or a transaction sees the first answer for ever
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            if cursor.fetchone()[0] >= count:
                return
        time.sleep(0.005)
    raise AssertionError(f"no {count} sessions came to wait for a lock within {within} s")
