"""Driving a coroutine by hand: on Django's own connection nothing that the engine awaits ever suspends."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result. No event loop runs meanwhile, so user code may use the ORM and start loops of its own."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine that was driven by hand waited for something")
