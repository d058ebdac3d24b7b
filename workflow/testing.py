"""For users' tests: run what is due in this thread, let time pass, or wait for a worker elsewhere.

    class OrderTests(TestCase):
        def test_an_order_is_charged(self):
            handle = workflows.dispatch("order-fulfillment", {"order_id": "o-1"})
            drain(handle.run_id)
            self.assertEqual(handle.status().run.status, "completed")

Everything runs on Django's own connection of this thread, so it works inside `TestCase`'s
transaction as well as in a `TransactionTestCase`, and needs no plugin and no worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.postgres.functions import TransactionNow
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q
from psycopg.pq import TransactionStatus

from workflow import ids
from workflow.conf import conf
from workflow.definitions.handlers import Handler, finished
from workflow.errors import FailureCode
from workflow.executor import Attempt, Desk, Execution, Question, clean_connections, execute
from workflow.executor.attempt import Outcome
from workflow.manager import arguments, workflows
from workflow.manager.twins import plain
from workflow.models import Job, Node
from workflow.plan import Fact, HistoryRow
from workflow.progress import announce as announce_history
from workflow.results import RunStatus
from workflow.signals import HEED
from workflow.sql import testing as sql
from workflow.store import claims as claims_store
from workflow.store import commands as commands_store
from workflow.store.drive import drive
from workflow.store.events import expire_waits
from workflow.store.pipeline import Rows, Statement
from workflow.store.ports import DjangoPort
from workflow.store.settle import Settlement, history_rows, settle_now
from workflow.sweeps import reap_leases

logger = logging.getLogger("workflow")

__all__ = ["advance", "drain", "settle"]

MOST_DUE: Final = 3
"""Units that a `drain` which gives up names."""


@plain("sync_to_async(drain)(...)")
def drain(run_id: UUID | str | None = None, timeout: float | timedelta = 10) -> None:
    """Runs all that is due, here and now, until nothing is.

    Retries, sleeps and waits that come due later stay; `advance` brings them nearer. With `run_id`
    only that run's jobs are run, and the deliveries of events. `timeout` in seconds or a `timedelta`: `TimeoutError`
    when that much time has passed and still something is due, `RunNotFound` for an id that no run has.
    """
    runtime = _InlineRuntime()
    limit = arguments.seconds(timeout, "timeout")
    deadline = time.monotonic() + limit
    only = None if run_id is None else str(_known(run_id))
    while True:
        drive(expire_waits(runtime.port, runtime.announce_rows))
        drive(reap_leases(runtime.port))
        claimed, _ = drive(claims_store.claim(runtime.port, runtime.id, 1, None, only))
        if not claimed:
            return
        executions: list[Execution] = []
        drive(execute(claimed, runtime, executions.append))
        for execution in executions:
            runtime.begin(deadline)
            drive(execution.run())
        if time.monotonic() > deadline and (due := _still_due(only)):
            raise TimeoutError(f"something was still due after {limit:g} s: {due}")


def _known(run_id: UUID | str) -> UUID:
    found = arguments.run_id(run_id)
    commands_store.run_status(conf.DATABASE, found)  # it raises where there is none
    return found


def _still_due(only: str | None) -> str:
    """What is due by the clock of the claim, the longest first: a few units by run and node, and how many more; "" for
    nothing."""
    jobs = Job.objects.using(conf.DATABASE).filter(available_at__lte=TransactionNow(), lease_token=None)
    if only is not None:
        jobs = jobs.filter(Q(run=only) | Q(run=None))
    found = list(jobs.order_by("available_at", "id")[:MOST_DUE])
    nodes = Node.objects.using(conf.DATABASE).filter(id__in=[job.node_id for job in found])
    paths = dict(nodes.values_list("id", "path"))
    shown = [
        f"run {job.run_id} at {paths.get(job.node_id, job.kind)}" if job.run_id else job.kind for job in found
    ]
    more = jobs.count() - len(found)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


@plain("sync_to_async(advance)(...)")
def advance(seconds: float | timedelta) -> None:
    """As if so many seconds had passed: backoffs, sleeps, polls, deadlines of waits, and leases.

    Moves the times that decisions are made of back by that much, in the caller's transaction if
    there is one. Nothing is run: call `drain` afterwards. `ValueError` or `TypeError` for what is no time to pass.
    """
    interval = arguments.seconds(seconds, "seconds")
    with transaction.atomic(using=conf.DATABASE), connections[conf.DATABASE].cursor() as cursor:
        for statement in sql.ADVANCE:
            cursor.execute(statement, {"seconds": interval})


@plain("sync_to_async(settle)(...)")
def settle(run_id: UUID | str, timeout: float | timedelta = 10) -> RunStatus:
    """Waits until a worker elsewhere has brought the run to its end; its final status, or `TimeoutError`.

    `timeout` is in seconds or a `timedelta`.
    """
    limit = arguments.seconds(timeout, "timeout")
    deadline = time.monotonic() + limit
    pause = 0.01
    while True:
        status = workflows.status(run_id)
        if status.run.finished_at is not None:
            return status
        if time.monotonic() > deadline:
            raise TimeoutError(f"run {run_id} is still {status.run.status} after {limit:g} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)


class _InlineRuntime:
    """Implements `workflow.executor.Runtime` in one thread: what is started runs when its fact is asked for."""

    def __init__(self) -> None:
        self.id = str(ids.new_id())
        self.port = DjangoPort()
        self.mover = None
        self.deadline = float("inf")
        self._started: list[Attempt | Question] = []

    def begin(self, deadline: float) -> None:
        """The next unit; what the one before it has started and never asked for, since it was lost, is forgotten."""
        self.deadline = deadline
        self._started.clear()

    async def settle(self, settlement: Settlement) -> Settlement:
        settle_now(self.port, settlement)
        self.announce([settlement])
        return settlement

    def start(self, execution: Execution, attempt: Attempt) -> None:
        self._started.append(attempt)

    def ask(self, execution: Execution, question: Question) -> None:
        self._started.append(question)

    def after(self, execution: Execution, seconds: float, fact: Fact) -> None:
        """A retry that comes due while its mates are at work: here they are never at work meanwhile."""

    def desk(self) -> Desk:
        return _Desk(self)

    async def facts(self, execution: Execution) -> list[Fact]:
        while not execution.inbox:
            if time.monotonic() > self.deadline:
                self._started.clear()
                execution.interrupt()  # its job is due again for whoever comes next
                break
            started = self._started.pop(0)
            if isinstance(started, Attempt):
                with _mended(started.path), _Watch(execution, started):
                    outcome = _outcome(started)
                execution.ended(outcome, started)
            else:
                with _mended(started.path):
                    answer = await started.answer(_call)
                execution.post(answer)
        facts, execution.inbox = execution.inbox, []
        return facts

    def announce(self, settlements: Sequence[Settlement]) -> None:
        self.announce_rows([row for settlement in settlements for row in history_rows(settlement)])

    def announce_rows(self, rows: Sequence[HistoryRow]) -> None:
        announce_history(rows, self.port.using)


class _Desk:
    """Implements `workflow.executor.Desk` on Django's connections; notes are written with the outcome.

    Whichever thread a handler calls a step in, that is settled in the test's transaction, if it has one: another
    connection would see nothing of it. Else a thread has a connection of its own, as in a worker: what the handler's
    own thread does meanwhile, in transactions of its own, is none of the step's.
    """

    def __init__(self, runtime: _InlineRuntime) -> None:
        self._runtime = runtime
        self._connection = connections[runtime.port.using]
        self._is_shared = self._connection.in_atomic_block
        self._lock = threading.RLock()
        self.announce = runtime.announce

    def _at_hand(self) -> contextlib.AbstractContextManager[None]:
        return self._sharing() if self._is_shared else self._leaving_none()

    @contextlib.contextmanager
    def _sharing(self) -> Iterator[None]:
        """The connection of the thread that drains is in this one, whose own comes back."""
        alias = self._runtime.port.using
        own = connections[alias]
        with self._lock:
            self._connection.inc_thread_sharing()
            connections[alias] = self._connection
            try:
                yield
            finally:
                connections[alias] = own
                self._connection.dec_thread_sharing()

    @contextlib.contextmanager
    def _leaving_none(self) -> Iterator[None]:
        """A connection that is opened for this is closed again: nobody else would close that of the thread."""
        own = connections[self._runtime.port.using]
        is_new = own is not self._connection and own.connection is None
        try:
            yield
        finally:
            if is_new:
                own.close()

    def settle(self, settlement: Settlement) -> Settlement:
        with self._at_hand():
            return drive(self._runtime.settle(settlement))

    async def asettle(self, settlement: Settlement) -> Settlement:
        return await sync_to_async(self.settle)(settlement)

    def read(self, statement: Statement) -> Rows:
        with self._at_hand():
            return self._runtime.port.run_now([statement])[0]

    async def aread(self, statement: Statement) -> Rows:
        return await sync_to_async(self.read)(statement)

    def reported(self, attempt: Attempt) -> None:
        """Nothing to do now."""

    def last_notes(self, attempt: Attempt) -> None:
        """Nothing is ever on its way."""


@contextlib.contextmanager
def _mended(path: str) -> Iterator[None]:
    """Around user code in a transaction of the test's: an error of the database that user code has met there, which
    would be the end of the transaction, costs only what that code wrote.
    """
    held = [
        (connection, savepoint)
        for connection in connections.all(initialized_only=True)
        if connection.in_atomic_block and (savepoint := connection.savepoint())
    ]
    try:
        with clean_connections(path):
            yield
    finally:
        for connection, savepoint in held:
            if connection.needs_rollback or _has_failed(connection):
                connection.needs_rollback = False
                connection.savepoint_rollback(savepoint)
            else:
                connection.savepoint_commit(savepoint)


def _has_failed(connection: BaseDatabaseWrapper) -> bool:
    raw = connection.connection
    return isinstance(raw, psycopg.Connection) and raw.info.transaction_status == TransactionStatus.INERROR


def _outcome(attempt: Attempt) -> Outcome:
    if not attempt.handler.is_async:
        return attempt.run()
    try:
        return async_to_sync(_arun)(attempt)
    except (
        SystemExit
    ) as error:  # of a task that the handler has begun: it has ended the loop, and the handler with it
        return attempt.failure(error)


async def _arun(attempt: Attempt) -> Outcome:
    """Calls an `async` handler on this loop, and cancels it there when its time is up, as a worker does."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel() -> None:
        with contextlib.suppress(
            RuntimeError
        ):  # the loop is closed: the handler has come to its end just now
            loop.call_soon_threadsafe(task.cancel)

    attempt.signal.add_callback(cancel)
    return await attempt.arun()


async def _call(handler: Handler, argument: Any) -> Any:
    return finished(handler.fn(argument))


class _Watch:
    """Holds an attempt to its timeout: its handler is interrupted, or cancelled, in this very thread."""

    def __init__(self, execution: Execution, attempt: Attempt) -> None:
        self._execution = execution
        self._attempt = attempt
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="workflow-watch", daemon=True)

    def _keep(self) -> None:
        attempt, timeout = self._attempt, self._attempt.action.timeout
        assert timeout is not None
        if not self._over.wait(min(timeout, threading.TIMEOUT_MAX)):
            self._execution.expire(attempt, FailureCode.ACTION_TIMEOUT, timeout)
            if not attempt.heeds_signal or not self._over.wait(HEED):
                self._execution.cut(attempt)

    def __enter__(self) -> None:
        if self._attempt.action.timeout is not None:
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._attempt.action.timeout is not None:
            self._thread.join()  # one that has gone off says what ended the attempt, not the handler that it woke
