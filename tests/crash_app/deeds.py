"""What a scripted handler may be told to do, good and bad.

A run's `context` holds the script: `{"script": {place: [deed, ...]}}`. A place is a node's path, or
`undo <path>`; the n-th attempt does the n-th deed, the last one stands for all that follow. A deed is
a word, or a word with a number as in `sleep:0.2`; without a script a handler returns at once.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction

from tests.crash_app import record
from workflow import Fatal, Retry, RunConflict, workflows
from workflow.context import Context

_LEAKED, _WRITTEN = asyncio.Event(), asyncio.Event()
"""One `async` handler has left a transaction open and is still at work; another has written into it."""


class Scripted(RuntimeError):
    """A handler fails as it was told to."""


def deed(ctx: Context, undo: bool) -> tuple[str, float]:
    """What this attempt is to do."""
    script = (ctx.context or {}).get("script", {})
    deeds = script.get(f"undo {ctx.path}" if undo else ctx.path) or ["ok"]
    word, _, number = deeds[min(ctx.attempt, len(deeds)) - 1].partition(":")
    return word, float(number or 0)


def do(ctx: Context, undo: bool = False) -> None:
    """For plain handlers."""
    word, number = deed(ctx, undo)
    _DEEDS[word](ctx, number)


async def ado(ctx: Context, undo: bool = False) -> None:
    """For `async` handlers; a deed that has no twin is done as it is, on the loop."""
    word, number = deed(ctx, undo)
    if word == "sleep":
        await asyncio.sleep(number)
    elif word == "deaf":
        await _deaf(number)
    elif word == "to-thread":
        await asyncio.to_thread(time.sleep, number)
    elif word == "to-orm":
        await sync_to_async(time.sleep)(number)
    elif word == "leak-beside":
        await sync_to_async(_raw_transaction)(ctx, number)
        _LEAKED.set()
        await _WRITTEN.wait()
    elif word == "write-beside":
        await _LEAKED.wait()
        await sync_to_async(_effect)(ctx, number)
        _WRITTEN.set()
    elif word in _ORM:
        await sync_to_async(_DEEDS[word])(ctx, number)
    else:
        _DEEDS[word](ctx, number)


def _ok(ctx: Context, number: float) -> None:
    pass


def _fail(ctx: Context, number: float) -> None:
    raise Scripted("told to")


def _fatal(ctx: Context, number: float) -> None:
    raise Fatal("told to")


def _retry(ctx: Context, number: float) -> None:
    raise Retry(delay=number)


def _kill(ctx: Context, number: float) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal is on its way


def _fork(ctx: Context, number: float) -> None:
    """Starts a process by a fork, tells it to end, and waits until it has."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    child.terminate()
    child.join(30)
    assert child.exitcode == -signal.SIGTERM, f"the child ended with {child.exitcode}"


def _cancel(ctx: Context, number: float) -> None:
    """Cancels the run that the input names, or finds that this was done."""
    with suppress(RunConflict):
        workflows.cancel(ctx.state["victim"])


def _sleep(ctx: Context, number: float) -> None:
    time.sleep(number)


def _block(ctx: Context, number: float) -> None:
    """In an `async` handler: nothing else on the loop runs meanwhile."""
    time.sleep(number)


def _hold(ctx: Context, number: float) -> None:
    """Ends early when asked to."""
    if ctx.signal.wait(number):
        ctx.signal.raise_if_aborted()


async def _deaf(number: float) -> None:
    """Swallows its cancellation."""
    end = time.monotonic() + number
    while time.monotonic() < end:
        try:
            await asyncio.sleep(end - time.monotonic())
        except asyncio.CancelledError:
            continue


def _spin(ctx: Context, number: float) -> None:
    end = time.monotonic() + number
    while time.monotonic() < end:
        pass


def _stubborn(ctx: Context, number: float) -> None:
    """Swallows the exception that a timeout raises in it."""
    end = time.monotonic() + number
    while time.monotonic() < end:
        try:
            while time.monotonic() < end:
                sum(range(100))
        except BaseException:
            continue


def _hog(ctx: Context, number: float) -> None:
    """Holds the interpreter lock: no other thread of the process runs meanwhile."""
    ctypes.PyDLL(None).usleep(int(number * 1_000_000))


def _system_exit(ctx: Context, number: float) -> None:
    raise SystemExit(3)


def _interrupt(ctx: Context, number: float) -> None:
    raise KeyboardInterrupt


def _cancelled(ctx: Context, number: float) -> None:
    raise asyncio.CancelledError


def _generator_exit(ctx: Context, number: float) -> None:
    raise GeneratorExit


def _open_transaction(ctx: Context, number: float) -> None:
    transaction.set_autocommit(False)
    _query(ctx, number)


def _no_autocommit(ctx: Context, number: float) -> None:
    """No transaction is open, but the next statement will open one."""
    transaction.set_autocommit(False)


def _raw_transaction(ctx: Context, number: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")


def _open_atomic(ctx: Context, number: float) -> None:
    transaction.atomic().__enter__()
    _query(ctx, number)


def _broken_transaction(ctx: Context, number: float) -> None:
    transaction.atomic().__enter__()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


def _close(ctx: Context, number: float) -> None:
    _query(ctx, number)
    connection.connection.close()


def _query(ctx: Context, number: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _effect(ctx: Context, number: float) -> None:
    record.effect(ctx, "run")


def _long_block(ctx: Context, number: float) -> None:
    """A transaction that is open for a while, within one call."""
    with transaction.atomic():
        record.effect(ctx, "run")
        time.sleep(number)


def _raw_rollback(ctx: Context, number: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ROLLBACK")


def _session(ctx: Context, number: float) -> None:
    """What a handler of one of many tenants may set."""
    with connection.cursor() as cursor:
        cursor.execute("SET search_path TO pg_temp, public")
        cursor.execute("SET statement_timeout = 7654")
        cursor.execute("SET app.tenant = '17'")
        cursor.execute("SELECT pg_advisory_lock(4711)")
        cursor.execute("CREATE TEMP TABLE left_behind (a int)")


def _search_path(ctx: Context, number: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET search_path TO pg_temp")


def _look(ctx: Context, number: float) -> None:
    """Reports what it finds of `session`."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('search_path'), current_setting('statement_timeout'), "
            "coalesce(current_setting('app.tenant', true), ''), "
            "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711), "
            "to_regclass('pg_temp.left_behind')::text"
        )
        ctx.log("look", found=list(cursor.fetchone()))


def _queries(ctx: Context, number: float) -> None:
    """Reports how many queries Django has kept the text of."""
    _query(ctx, number)
    ctx.log("queries", kept=len(connection.queries_log))


def _asyncio_run(ctx: Context, number: float) -> None:
    asyncio.run(sync_to_async(_query)(ctx, number))


def _async_to_sync(ctx: Context, number: float) -> None:
    async def both() -> list[Any]:
        return await asyncio.gather(sync_to_async(_query)(ctx, number), asyncio.sleep(0.01))

    async_to_sync(both)()


def _progress(ctx: Context, number: float) -> None:
    """Reports as often as it can."""
    for step in range(int(number) + 1):
        ctx.progress(100 * step / max(number, 1))


_ORM = {
    "open-transaction",
    "no-autocommit",
    "raw-transaction",
    "open-atomic",
    "broken-transaction",
    "close",
    "query",
    "effect",
    "long-block",
    "session",
    "look",
    "queries",
}
"""What an `async` handler does in the thread that asgiref keeps for the ORM."""


def _receive(ctx: Context, number: float) -> None:
    """Waits for somebody who never says a word."""
    mine, theirs = socket.socketpair()
    with mine, theirs, suppress(TimeoutError):
        mine.settimeout(number)
        mine.recv(1)


def _ten(ctx: Context, number: float) -> None:
    """Ten steps that take so many seconds each."""
    for step in range(10):
        ctx.step.run(f"step-{step}", time.sleep, number)


_DEEDS: dict[str, Callable[[Context, float], None]] = {
    "ok": _ok,
    "fail": _fail,
    "fatal": _fatal,
    "retry": _retry,
    "kill": _kill,
    "fork": _fork,
    "cancel": _cancel,
    "sleep": _sleep,
    "block": _block,
    "hold": _hold,
    "spin": _spin,
    "stubborn": _stubborn,
    "hog": _hog,
    "system-exit": _system_exit,
    "interrupt": _interrupt,
    "cancelled": _cancelled,
    "generator-exit": _generator_exit,
    "open-transaction": _open_transaction,
    "no-autocommit": _no_autocommit,
    "raw-transaction": _raw_transaction,
    "open-atomic": _open_atomic,
    "broken-transaction": _broken_transaction,
    "close": _close,
    "query": _query,
    "effect": _effect,
    "long-block": _long_block,
    "raw-rollback": _raw_rollback,
    "session": _session,
    "search-path": _search_path,
    "look": _look,
    "queries": _queries,
    "asyncio-run": _asyncio_run,
    "async-to-sync": _async_to_sync,
    "progress": _progress,
    "receive": _receive,
    "ten": _ten,
}
