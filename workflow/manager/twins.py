"""The async twins of the manager's commands, all made here, so that no command is written twice."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


def plain(instead: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For what asks the database: where Django refuses that in async code, the error says what to await ``instead``."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def synchronous(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except SynchronousOnlyOperation as error:
                hint = f"{function.__name__} cannot be called in async code: await {instead}"
                raise SynchronousOnlyOperation(hint) from error

        return synchronous

    return decorate


def twin(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """``method`` for async code: the same, on the thread that Django keeps for its connections.

    So the twin joins a transaction that was opened there, as Django's own ``a``-prefixed methods do.
    """
    call = sync_to_async(method, thread_sensitive=True)

    @wraps(method)
    async def asynchronous(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await call(self, *args, **kwargs)

    asynchronous.__name__ = f"a{method.__name__}"
    asynchronous.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{asynchronous.__name__}"
    asynchronous.__doc__ = f"``{method.__name__}``, for async code."
    return asynchronous
