"""Actions of each kind, all recorded and scripted; their compensations too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from tests.crash_app import deeds, record
from workflow import Action
from workflow.context import Context
from workflow.executor.replay import Replay

Kind = Literal["plain", "async", "atomic", "steps", "asteps", "undoable", "aundoable", "asks", "aasks"]
KINDS: tuple[Kind, ...] = ("plain", "async", "atomic", "steps", "asteps", "undoable", "aundoable")
NAP = 0.05
"""Seconds that a handler with steps suspends itself for."""

State = dict[str, Any]


def act(name: str, kind: Kind = "plain", *, undo: bool = True, **options: Any) -> Action:
    """An action whose output is the attempt that completed it. Backoff is next to none."""
    run, back = _HANDLERS[kind]
    options = {"backoff": 0.01, "atomic": kind == "atomic", "timeout": 60, **options}
    return Action(name, run, compensate=back if undo else None, **options)


def _plain(state: State, ctx: Context) -> int:
    with record.call(ctx, "run"):
        deeds.do(ctx)
    return ctx.attempt


def _undo_plain(state: State, ctx: Context) -> None:
    with record.call(ctx, "undo"):
        deeds.do(ctx, undo=True)


async def _async(state: State, ctx: Context) -> int:
    with record.call(ctx, "run"):
        await deeds.ado(ctx)
    return ctx.attempt


async def _undo_async(state: State, ctx: Context) -> None:
    with record.call(ctx, "undo"):
        await deeds.ado(ctx, undo=True)


def _atomic(state: State, ctx: Context) -> int:
    with record.call(ctx, "run"):
        record.effect(ctx, "run")
        deeds.do(ctx)
    return ctx.attempt


def _undo_atomic(state: State, ctx: Context) -> None:
    with record.call(ctx, "undo"):
        record.effect(ctx, "undo")
        deeds.do(ctx, undo=True)


def _steps(state: State, ctx: Context) -> list[int]:
    with record.call(ctx, "run"):
        first = ctx.step.run("first", _body, ctx, "first")
        ctx.step.sleep("nap", NAP)
        second = ctx.step.run("second", _body, ctx, "second")
        deeds.do(ctx)
    return [first, second]


def _undo_steps(state: State, ctx: Context) -> None:
    with record.call(ctx, "undo"):
        ctx.step.run("back", _body, ctx, "back")
        deeds.do(ctx, undo=True)


async def _asteps(state: State, ctx: Context) -> list[int]:
    with record.call(ctx, "run"):
        first = await ctx.step.arun("first", _body, ctx, "first")
        await ctx.step.asleep("nap", NAP)
        second = await ctx.step.arun("second", _body, ctx, "second")
        await deeds.ado(ctx)
    return [first, second]


async def _undo_asteps(state: State, ctx: Context) -> None:
    with record.call(ctx, "undo"):
        await ctx.step.arun("back", _body, ctx, "back")
        await deeds.ado(ctx, undo=True)


def _undoable(state: State, ctx: Context) -> list[int]:
    """Each of its steps can be undone. To undo one the handler is called again, which is no start of it."""
    with record.call(ctx, "replay" if isinstance(ctx.step, Replay) else "run"):
        first = ctx.step.run("first", _body, ctx, "first", compensate=_undo_first)
        ctx.step.sleep("nap", NAP)
        second = ctx.step.run("second", _body, ctx, "second", compensate=_undo_second)
        deeds.do(ctx)
    return [first, second]


def _undo_first(value: int, ctx: Context) -> None:
    with record.call(ctx, "unstep:first"):
        deeds.do(ctx, undo=True)


def _undo_second(value: int, ctx: Context) -> None:
    with record.call(ctx, "unstep:second"):
        deeds.do(ctx, undo=True)


async def _aundoable(state: State, ctx: Context) -> list[int]:
    with record.call(ctx, "replay" if isinstance(ctx.step, Replay) else "run"):
        first = await ctx.step.arun("first", _body, ctx, "first", compensate=_aundo_first)
        await ctx.step.asleep("nap", NAP)
        second = await ctx.step.arun("second", _body, ctx, "second", compensate=_undo_second)
        await deeds.ado(ctx)
    return [first, second]


async def _aundo_first(value: int, ctx: Context) -> None:
    with record.call(ctx, "unstep:first"):
        await deeds.ado(ctx, undo=True)


def _asks(state: State, ctx: Context) -> Any:
    """Suspended until somebody publishes `asking.go`."""
    with record.call(ctx, "run"):
        return ctx.step.wait_event("answer", "asking.go", correlate="key")


async def _aasks(state: State, ctx: Context) -> Any:
    with record.call(ctx, "run"):
        return await ctx.step.await_event("answer", "asking.go", correlate="key")


def _body(ctx: Context, key: str) -> int:
    with record.call(ctx, f"step:{key}"):
        return ctx.attempt


_HANDLERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "plain": (_plain, _undo_plain),
    "async": (_async, _undo_async),
    "atomic": (_atomic, _undo_atomic),
    "steps": (_steps, _undo_steps),
    "asteps": (_asteps, _undo_asteps),
    "undoable": (_undoable, _undo_plain),
    "aundoable": (_aundoable, _undo_async),
    "asks": (_asks, _undo_plain),
    "aasks": (_aasks, _undo_async),
}
