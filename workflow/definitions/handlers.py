"""What the engine must know of a user's callable before it calls it: is it async, does it want ``ctx``. And what
it does with what a plain one returns: that may be a plain wrapper around an async one, which nobody can tell before.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from asgiref.sync import AsyncToSync, async_to_sync, iscoroutinefunction

from workflow.definitions.rules import Definition, check_seconds, fault, show

_Parameter = inspect.Parameter
_POSITIONAL = (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Handler:
    """A callable of a definition: ``fn`` is called with one argument, or with two if it ``wants_ctx``."""

    fn: Callable[..., Any]
    is_async: bool
    wants_ctx: bool


class Abortable(Protocol):
    """What calls back when an attempt should stop."""

    def add_callback(self, fn: Callable[[], object]) -> None: ...


def finished(value: Any, signal: Abortable | None = None) -> Any:
    """What a plain function returned, also if that is a plain wrapper around an async one. That is cancelled at its
    await as soon as the `signal` is set, and then raises `CancelledError`."""
    return async_to_sync(_awaited)(value, signal) if inspect.isawaitable(value) else value


async def _awaited(value: Awaitable[Any], signal: Abortable | None) -> Any:
    if signal is None:
        return await value
    task = asyncio.current_task()
    assert task is not None
    running = [(asyncio.get_running_loop(), task)]

    def cancel() -> None:
        for loop, task in running:
            with suppress(RuntimeError):  # the loop is closed: it has ended
                loop.call_soon_threadsafe(task.cancel)

    signal.add_callback(cancel)
    try:
        return await value
    finally:
        running.clear()  # the signal is the attempt's, which may have thousands of these


def make_handler(fn: object, place: str, option: str, *, ctx: bool) -> Handler:
    """``fn`` checked and described. ``ctx`` says whether a second argument is on offer, for the context.

    A second positional parameter gets the context unless it has a default that says otherwise: in
    ``lambda state, i=i: ...`` it is a value the user bound, while ``ctx=None`` is a context that tests may
    leave out. A callable whose signature Python cannot tell (some builtins) is called with one argument.
    """
    checked = _check_callable(fn, place, option)
    return Handler(checked, _is_async(checked), _wants_ctx(checked, place, option, ctx))


def make_optional(fn: object, place: str, option: str, *, ctx: bool) -> Handler | None:
    """``make_handler``, with None for None."""
    return None if fn is None else make_handler(fn, place, option, ctx=ctx)


def taken_arguments(fn: object, place: str, option: str) -> int:
    """How many arguments a step's compensation takes: none, one, or two if the second is the context."""
    signature = _signature(_check_callable(fn, place, option))
    if signature is not None and not signature.parameters:
        return 0
    return 2 if make_handler(fn, place, option, ctx=True).wants_ctx else 1


def check_callable(fn: object, place: str) -> None:
    """Raises ``TypeError`` where a step is given something else to call."""
    if not callable(fn):
        raise TypeError(f"{place} needs a callable, not {show(fn)}")


def make_backoff(backoff: object, place: str) -> float | Callable[[int], Any] | None:
    """A backoff as seconds, as a plain callable of the failed attempt's number, or None for the default."""
    if backoff is None:
        return None
    if not callable(backoff):
        return check_seconds(backoff, place, "backoff=", zero=True)
    handler = make_handler(backoff, place, "backoff=", ctx=False)
    if handler.is_async:
        raise fault(place, f"backoff= must be a plain function: {label(backoff)} is async")
    return handler.fn


def _check_callable(fn: object, place: str, option: str) -> Callable[..., Any]:
    if isinstance(fn, Definition):
        raise fault(place, f"{option} takes a function, not {show(fn)}")
    if inspect.iscoroutine(fn):
        fn.close()  # or Python would warn, far from here, that it was never awaited
        raise fault(
            place, f"{option} takes the function itself, not the coroutine that a call of it returned"
        )
    if not callable(fn):
        raise fault(place, f"{option} must be a function, not {show(fn)}")
    inner = _innermost(fn)
    for candidate in (inner, type(inner).__call__):
        if inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise fault(place, f"{option} must return its result: {label(fn)} is a generator function")
    return fn


def _is_async(fn: Callable[..., Any]) -> bool:
    inner = _innermost(fn)
    return iscoroutinefunction(inner) or iscoroutinefunction(type(inner).__call__)


def _wants_ctx(fn: Callable[..., Any], place: str, option: str, ctx: bool) -> bool:
    signature = _signature(fn)
    if signature is None:
        return False
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    required = [p for p in positional if p.default is _Parameter.empty]
    star = any(p.kind is _Parameter.VAR_POSITIONAL for p in parameters)
    most = 2 if ctx else 1
    _check_first(positional, fn, place, option, ctx)
    for parameter in parameters:
        if parameter.kind is _Parameter.KEYWORD_ONLY and parameter.default is _Parameter.empty:
            raise fault(
                place, f"{option} is called by position, {label(fn)} requires the keyword {parameter.name}="
            )
    if len(required) > most or not (positional or star):
        takes = "one or two positional arguments" if ctx else "one positional argument"
        raise fault(place, f"{option} is called with {takes}, {label(fn)} {_demand(required, positional)}")
    if not ctx:
        return False
    return _gets_ctx(positional[1]) if len(positional) > 1 else star


def _check_first(
    positional: list[inspect.Parameter], fn: Callable[..., Any], place: str, option: str, ctx: bool
) -> None:
    """A wrapper may bring the `self` of what it wraps."""
    first = positional[0].name if positional else ""
    if first == "self" and not hasattr(_innermost(fn), "__wrapped__") and not label(fn).endswith("<lambda>"):
        raise fault(
            place, f"{option} takes a function, {label(fn)} is a method: nothing is there to be its self"
        )
    if ctx and first == "ctx" and len(positional) > 1 and _gets_ctx(positional[1]):
        raise fault(place, f"{option} is called with the context second: {label(fn)} has ctx first")


def _gets_ctx(second: inspect.Parameter) -> bool:
    default = second.default
    return default is _Parameter.empty or default is None or second.name.strip("_") in ("ctx", "context")


def _demand(required: list[inspect.Parameter], positional: list[inspect.Parameter]) -> str:
    if not positional:
        return "takes none"
    return f"requires {len(required)} ({', '.join(p.name for p in required)})"


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    """The signature that counts: a decorator's own, or what it wraps when it passes on ``*args``."""
    if isinstance(fn, AsyncToSync):  # it hides its signature from Python
        fn = fn.awaitable
    for follow in (False, True):
        try:
            signature = inspect.signature(fn, follow_wrapped=follow)
        except (TypeError, ValueError):
            continue
        if follow or all(p.kind is not _Parameter.VAR_POSITIONAL for p in signature.parameters.values()):
            return signature
    return None


def _innermost(fn: Any) -> Any:
    while isinstance(fn, partial):
        fn = fn.func
    return fn


def label(fn: object) -> str:
    """The name of a callable for messages."""
    inner = _innermost(fn)
    name = getattr(inner, "__qualname__", None)
    return name if isinstance(name, str) else type(inner).__qualname__
