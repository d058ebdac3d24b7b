"""The worker's side of an execution: attempts on the loop or in threads, timeouts, notes, facts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import async_to_sync  # noqa: F401  (imported early: it must not be first imported in a thread)

from workflow import states
from workflow.definitions.handlers import Handler, finished
from workflow.errors import FailureCode
from workflow.executor import (
    Attempt,
    Desk,
    Execution,
    Mover,
    Question,
    clean_connections,
    clean_shared_connections,
)
from workflow.executor.attempt import Outcome
from workflow.plan import Boundary, Change, Fact, HistoryRow
from workflow.signals import HEED, TIMEOUT
from workflow.store.committer import Committer
from workflow.store.pipeline import Rows, Statement
from workflow.store.ports import Port
from workflow.store.settle import Rejected, Settlement
from workflow.worker.pusher import Pusher
from workflow.worker.threads import ThreadPool, Work

T = TypeVar("T")

logger = logging.getLogger("workflow")

NOTE_INTERVAL = 0.5
"""Seconds between two writings of one attempt's progress and log."""
RUN_NOTE_INTERVAL = 0.2
"""The same for all attempts of one run together: hundreds of parallel members tell no more than a few may."""
NOTE_PATIENCE = 5.0
"""Seconds, at most, for which an atomic checkpoint waits for its notes: they may need what its handler holds."""
BLOCKED = 1.0
"""Seconds for which a handler may block the event loop before it is told on."""
START_UP = 10.0
"""Seconds for which a worker that is starting may block it by itself: imports, connections, its first claims."""
ZOMBIE_GRACE = 1.0
"""Seconds that a handler gets to end after it was interrupted, before its thread is replaced."""


@dataclass(slots=True)
class _Running:
    execution: Execution
    work: Work | None
    told_at: float = 0.0
    """When it was asked to stop, on this process's own clock."""
    noted_at: float = float("-inf")
    """When what it had reported was last written, on the loop's clock."""
    noting: asyncio.Task[Any] | None = None
    """Writes what it has reported, at this moment."""
    speaks: bool = True
    """Whether what it reports is written by itself, and not left to its checkpoint."""


@dataclass(slots=True)
class _Clock:
    """For how many seconds the user code that answers a question has been at work, without its waits for a thread."""

    used: float = 0.0
    since: float | None = None

    def begin(self) -> None:
        self.since = time.monotonic()

    def end(self) -> None:
        self.used, self.since = self.spent(), None

    def spent(self) -> float:
        since = self.since
        return self.used if since is None else self.used + time.monotonic() - since


class WorkerRuntime:
    """Implements `workflow.executor.Runtime` on an event loop with a pool of threads."""

    def __init__(self, port: Port, committer: Committer, pool: ThreadPool, pusher: Pusher) -> None:
        self.port = port
        self.mover: Mover | None = None
        """Set by the process, once it has units."""
        self._committer = committer
        self._pool = pool
        self._pusher = pusher
        self._loop = asyncio.get_running_loop()
        self._born = time.monotonic()
        self._running: dict[Attempt, _Running] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._noting: set[Attempt] = set()
        """Attempts whose notes are about to be written."""
        self._run_noted_at: dict[str, float] = {}
        """When notes of a run were last written, or are going to be, on the loop's clock."""
        self._ended_lately: set[str] = set()
        """Paths of async handlers that ended since the last watch."""

    # --- the protocol ---------------------------------------------------------------------------

    async def settle(self, settlement: Settlement) -> Settlement:
        return await self._committer.settle(settlement)

    def start(self, execution: Execution, attempt: Attempt) -> None:
        if attempt.handler.is_async:
            clean_shared_connections(f"an async handler before {attempt.path}")
            task = self._loop.create_task(attempt.arun(), name=attempt.path)
            attempt.signal.add_callback(task.cancel)
            self._running[attempt] = _Running(execution, None)
            task.add_done_callback(partial(self._task_ended, attempt))
        else:
            work = attempt.run
            self._running[attempt] = _Running(execution, work)
            self._pool.submit(work, lambda outcome: self._ended(attempt, outcome))

    def ask(self, execution: Execution, question: Question) -> None:
        self._spawn(self._answer(execution, question))

    def after(self, execution: Execution, seconds: float, fact: Fact) -> None:
        self._loop.call_later(seconds, execution.post, fact)

    def desk(self) -> Desk:
        return _Desk(self, self._loop)

    async def facts(self, execution: Execution) -> list[Fact]:
        while (
            not execution.inbox
            and not execution.outdated
            and execution.lost is None
            and not (execution.stopping and not execution.attempts)
        ):
            waiter = self._loop.create_future()
            execution.wake = partial(_wake, waiter)
            await waiter
        facts, execution.inbox = execution.inbox, []
        return facts

    def announce_rows(self, rows: Sequence[HistoryRow]) -> None:
        self._pusher.announce_rows(rows)

    # --- what handlers ask for ------------------------------------------------------------------

    def reported(self, attempt: Attempt) -> None:
        """Called from any thread."""
        if attempt not in self._noting:
            self._noting.add(attempt)
            self._loop.call_soon_threadsafe(self._plan_note, attempt)

    async def last_notes(self, attempt: Attempt) -> None:
        """See `Desk.last_notes`."""
        if (running := self._running.get(attempt)) is not None:
            running.speaks = False
            if running.noting is not None:
                await asyncio.wait([running.noting], timeout=NOTE_PATIENCE)

    def announce(self, settlements: Sequence[Settlement]) -> None:
        """Called from any thread."""
        self._pusher.announce(settlements)

    # --- what the worker calls ------------------------------------------------------------------

    def watch(self, late: float = 0.0) -> None:
        """Ends attempts whose time is up, and gives up threads that do not come back. Called a few times a second;
        `late`: how many seconds later than it should be, since something has blocked the loop.
        """
        if late > BLOCKED:
            self._tell_on(late)
        self._ended_lately.clear()
        spaced = self._loop.time() - RUN_NOTE_INTERVAL
        self._run_noted_at = {run_id: at for run_id, at in self._run_noted_at.items() if at > spaced}
        now = time.monotonic()
        for attempt, running in list(self._running.items()):
            timeout = attempt.action.timeout
            if attempt.signal.aborted:
                self._press(attempt, running, now)
            elif timeout is not None and attempt.begun is not None and now - attempt.begun > timeout:
                running.execution.expire(attempt, FailureCode.ACTION_TIMEOUT, timeout)
                running.told_at = now

    def _tell_on(self, late: float) -> None:
        suspects = self._ended_lately | {
            attempt.path for attempt, running in self._running.items() if running.work is None
        }
        if suspects or time.monotonic() - self._born > START_UP:
            names = ", ".join(sorted(suspects)) or "none"
            logger.warning("the event loop was blocked for %.1f s; async handlers at work: %s", late, names)

    def _press(self, attempt: Attempt, running: _Running, now: float) -> None:
        if not running.told_at:
            running.told_at = now
        if running.work is None:
            return
        patience = ZOMBIE_GRACE
        if attempt.signal.reason == TIMEOUT and attempt.heeds_signal:
            patience += HEED
            if now - running.told_at > HEED:
                running.execution.cut(attempt)
        if now - running.told_at > patience and self._pool.abandon(running.work):
            del self._running[attempt]
            logger.warning(
                "%s does not stop: its thread is given up and replaced (%d such threads)",
                attempt.path,
                self._pool.abandoned,
            )

    @property
    def handlers(self) -> int:
        """How many handlers are at work."""
        return len(self._running)

    async def close(self) -> None:
        """Cancels what still runs on the loop. What swallows that is the loop's to leave behind."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ZOMBIE_GRACE)

    # --- inside ---------------------------------------------------------------------------------

    def _spawn(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _task_ended(self, attempt: Attempt, task: asyncio.Task[Outcome]) -> None:
        clean_shared_connections(f"{attempt.path}, or another async handler,")
        self._ended_lately.add(attempt.path)
        if task.cancelled():  # told to stop before it began: nobody waits for its fact
            del self._running[attempt]
        else:
            self._ended(attempt, task.result())

    def _ended(self, attempt: Attempt, outcome: Outcome) -> None:
        running = self._running.pop(attempt, None)
        if running is not None:
            running.execution.ended(outcome, attempt)

    async def _answer(self, execution: Execution, question: Question) -> None:
        clock = _Clock()
        asking = self._loop.create_task(question.answer(partial(self._call, question.path, clock)))
        limit = question.patience
        try:
            left = limit
            while not asking.done() and (left is None or left > 0):
                await asyncio.wait([asking], timeout=left)
                left = None if limit is None else limit - clock.spent()
        finally:
            if not asking.done():
                asking.cancel()
        if asking.done():
            execution.post(asking.result())
        elif limit is not None:
            logger.warning("%s was not answered within %g s", question.path, limit)
            execution.post(question.unanswered(limit))

    async def _call(self, path: str, clock: _Clock, handler: Handler, argument: Any) -> Any:
        if handler.is_async:
            clean_shared_connections(f"an async handler before {path}")
            clock.begin()
            try:
                return await handler.fn(argument)
            finally:
                clock.end()
                clean_shared_connections(f"{path}, or another async handler,")
        future: asyncio.Future[Any] = self._loop.create_future()

        def work() -> tuple[Any, BaseException | None]:
            clock.begin()
            try:
                with clean_connections(path):
                    return finished(handler.fn(argument)), None
            except BaseException as error:
                return None, error
            finally:
                clock.end()

        def done(result: tuple[Any, BaseException | None]) -> None:
            if not future.done():
                future.set_result(result)

        self._pool.submit(work, done)
        try:
            value, error = await future
        except asyncio.CancelledError:
            self._pool.abandon(work)
            raise
        if error is not None:
            raise error
        return value

    def _plan_note(self, attempt: Attempt) -> None:
        running = self._running.get(attempt)
        if running is None:
            self._noting.discard(attempt)
            return
        at = self._next_note(attempt, running, self._loop.time())
        self._loop.call_at(at, lambda: self._spawn(self._note(attempt)))

    def _next_note(self, attempt: Attempt, running: _Running, now: float) -> float:
        """When what an attempt has reported may be written: its own turn, and its run's."""
        run_id = attempt.lease.run_id
        before = self._run_noted_at.get(run_id, float("-inf"))
        at = max(now, running.noted_at + NOTE_INTERVAL, before + RUN_NOTE_INTERVAL)
        self._run_noted_at[run_id] = at
        return at

    async def _note(self, attempt: Attempt) -> None:
        """Writes what an attempt has reported, in a boundary of its own."""
        running = self._running.get(attempt)
        writes = running is not None and running.speaks and running.execution.counts(attempt)
        notes = attempt.reports.take() if writes else None
        if running is None or notes is None:
            self._noting.discard(attempt)
            return
        running.noted_at, running.noting = self._loop.time(), asyncio.current_task()
        boundary = Boundary(compensating=attempt.compensating, history=notes.entries)
        if notes.progress is not None and not attempt.compensating:
            boundary.changes = [
                Change(attempt.ordinal, states.RUNNING, states.RUNNING, progress=notes.progress)
            ]
        try:
            await self._committer.settle(Settlement(attempt.lease, boundary))
        except Rejected as rejected:
            logger.debug("notes of %s came too late: %s", attempt.path, rejected)
        except Exception:
            logger.exception("notes of %s could not be written", attempt.path)
        finally:  # or nothing that it reports is ever written again
            running.noting = None
            self._noting.discard(attempt)
        if attempt.reports.waiting:
            self.reported(attempt)


class _Desk:
    """Implements `workflow.executor.Desk`: a handler's thread waits for what the loop does for it."""

    def __init__(self, runtime: WorkerRuntime, loop: asyncio.AbstractEventLoop) -> None:
        self._runtime = runtime
        self._loop = loop
        self.reported = runtime.reported
        self.announce = runtime.announce

    def settle(self, settlement: Settlement) -> Settlement:
        return asyncio.run_coroutine_threadsafe(self._runtime.settle(settlement), self._loop).result()

    def last_notes(self, attempt: Attempt) -> None:
        asyncio.run_coroutine_threadsafe(self._runtime.last_notes(attempt), self._loop).result()

    async def asettle(self, settlement: Settlement) -> Settlement:
        return await self._there(self._runtime.settle(settlement))

    def read(self, statement: Statement) -> Rows:
        return asyncio.run_coroutine_threadsafe(self.aread(statement), self._loop).result()

    async def aread(self, statement: Statement) -> Rows:
        return (await self._there(self._runtime.port.run([statement])))[0]

    async def _there(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """On the worker's loop: an async function that a plain handler returns, or runs, has a loop of its own."""
        if asyncio.get_running_loop() is self._loop:
            return await coroutine
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
