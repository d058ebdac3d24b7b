"""One attempt of an action, or of its compensation: user code in, a fact for the plan out.

Nothing that user code does gets past here: whatever it raises, returns or leaves behind becomes a
fact. `run` is for plain functions and is called in a thread of its own; `arun` is for `async` ones.
"""

from __future__ import annotations

import inspect
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from django.db import DatabaseError, InterfaceError
from pydantic import ValidationError

from workflow import failpoints, retry
from workflow.awaits import Awaits, NeverAwaited
from workflow.conf import conf
from workflow.context import Context
from workflow.definitions import Action, TreeNode
from workflow.definitions.handlers import Handler, finished
from workflow.errors import FailureCode, Fatal, PayloadInvalid, Retry, StepKeyReused, WaitTimeout
from workflow.executor.backoff import backoff
from workflow.executor.connections import clean_connections, limit_idleness
from workflow.executor.desk import Desk, patient_aread, patient_read
from workflow.executor.interrupt import UserCode
from workflow.executor.replay import Found, Replay, Strayed
from workflow.executor.reports import Reports
from workflow.executor.transactions import CheckpointRefused, Transaction, connect, was_applied
from workflow.executor.values import NEVER_RETRIED, Invalid, encode_output, refusals, validated
from workflow.failures import describe
from workflow.hands import Suspend
from workflow.payload import copy_json
from workflow.plan import Boundary, Completed, Failed, Notes, Start, Suspended, fault
from workflow.signals import SHUTDOWN, TIMEOUT, Signal
from workflow.steps import Steps, strayed
from workflow.store.claims import ClaimedRun
from workflow.store.pipeline import Rows, Statement
from workflow.store.settle import Lease, Rejected, Settlement
from workflow.store.trouble import is_connection_lost

logger = logging.getLogger("workflow")

Outcome = Completed | Failed | Suspended
FINAL = (Fatal, StepKeyReused, Strayed, NeverAwaited, CheckpointRefused)
"""What no other attempt would mend, with what has a code in `NEVER_RETRIED`."""


class Attempt:
    """One call of a handler."""

    def __init__(
        self,
        start: Start,
        *,
        lease: Lease,
        node: TreeNode,
        run: ClaimedRun,
        secret_keys: frozenset[str],
        checkpoint: Callable[[int, Any, str | None, int], Boundary],
        desk: Desk,
    ) -> None:
        action = node.definition
        assert isinstance(action, Action)
        self.lease = lease
        self.ordinal = start.ordinal
        self.path = node.path
        self.action = action
        self.number = start.attempt
        self.compensating = start.compensation
        self.signal = Signal()
        self.awaits = Awaits()
        self.user_code = UserCode()
        self.made = time.monotonic()
        self.expired: tuple[FailureCode, float] | None = None
        """That its time is up: the code, and the limit in seconds."""
        self.begun: float | None = None
        """When user code was entered, on this process's own clock: what the timeout is measured from. An atomic one
        has a connection by then."""
        self.leaves_steps = False
        """Whether it has settled a step that has a compensation of its own."""
        self.state = start.state
        self.secret_keys = secret_keys
        self._key = node.key
        self._run = run
        self._checkpoint = checkpoint
        self._desk = desk
        self.reports = Reports(node.path, start.attempt)
        """Its progress and log."""
        self._untold: Notes | None = None
        """Those of them that go with the checkpoint of an atomic action, until that is committed."""
        self._lock = threading.Lock()
        self._steps: Steps | None = None
        self._has_ended = False
        """Whether its handler has returned or raised: no step begins after that."""
        self._thread: int | None = None
        """Of an `async` handler: the ident of the loop's thread."""
        self._undoing = start.step
        """The key of the step that is to be undone: its handler is called again to find out how."""
        self._is_resumed = start.resumed
        self._is_replaying = start.step is not None
        self._replay: Replay | None = None
        turns_back = start.compensation and start.step is None
        handler = action.compensate_handler if turns_back else action.run_handler
        assert handler is not None
        self.handler: Handler = handler
        self.is_async = handler.is_async

    @property
    def atomic(self) -> bool:
        """Whether the handler runs in one transaction with its checkpoint."""
        return self.action.atomic and not self.handler.is_async and self._undoing is None

    @property
    def heeds_signal(self) -> bool:
        """Whether its handler is a plain one that is given `ctx.signal`, and may end by itself when its time is up."""
        return self.handler.wants_ctx and not self.is_async

    @property
    def waited(self) -> float:
        """Seconds for which it has waited for a thread, and an atomic one for the database."""
        return (time.monotonic() if self.begun is None else self.begun) - self.made

    # --- running --------------------------------------------------------------------------------

    def drop(self) -> bool:
        """Keeps an attempt that waits for its turn from calling its handler; False when that is at work already."""
        with self._lock:
            if self.begun is not None:
                return False
            self.signal.abort(SHUTDOWN)
            return True

    def run(self) -> Outcome:
        """Calls a plain handler in this thread."""
        try:
            if not self.atomic:
                self._begin()
            failpoints.hit("attempt.before")
            with clean_connections(self.path):
                return self._run_atomic() if self.atomic else self._conclude(self._call_whole())
        except BaseException as error:
            self.reports.put_back(self._untold)
            return self.failure(error)
        finally:
            self._close()

    def _begin(self) -> None:
        """User code is next. Raises `Aborted` when nobody waits for it any more."""
        with self._lock:
            self.begun = time.monotonic()
        self.signal.raise_if_aborted()

    async def arun(self) -> Outcome:
        """Calls an `async` handler on this loop.

        One that has blocked the loop past its timeout is told so here: nobody else could.
        """
        try:
            self.begun, self._thread = time.monotonic(), threading.get_ident()
            self.signal.raise_if_aborted()
            failpoints.hit("attempt.before")
            value = await self._acall_whole()
            timeout = self.action.timeout
            if timeout is not None and time.monotonic() - self.begun > timeout:
                return self.timed_out(FailureCode.ACTION_TIMEOUT, timeout)
            return self._conclude(value)
        except BaseException as error:
            return self.failure(error)
        finally:
            self._close()

    def _close(self) -> None:
        """Its fact is made. What leads back to it is let go: in a circle it would stay, with the run's state and all,
        until Python looks for garbage, and be most of what that has to look through."""
        self.awaits.close()
        for ended in (self._ended, None if self._replay is None else self._replay.ended):
            if ended is not None:
                ended.__traceback__ = None
        self._steps = self._replay = None

    def _call_whole(self) -> Any:
        """Calls the handler, and waits for steps that are still at work in other threads when it has ended."""
        try:
            return self._call()
        finally:
            if (steps := self._last_steps()) is not None:
                steps.hands.end()

    async def _acall_whole(self) -> Any:
        """The same for an `async` one, and steps in other tasks."""
        try:
            return await self._call()
        finally:
            if (steps := self._last_steps()) is not None:
                await steps.hands.aend()
            await self.awaits.asettle()

    def _last_steps(self) -> Steps | None:
        """The handler has ended; the execution's steps, if there are any."""
        with self._lock:
            self._has_ended = True
            return self._steps

    def _call(self) -> Any:
        if self._undoing is not None:
            return self._aundo_step() if self.handler.is_async else self._undo_step()
        if self.handler.is_async:
            return self._enter()
        with self.user_code:
            return finished(self._enter(), self.signal)

    def _enter(self) -> Any:
        argument = self._argument()
        context = (self._make_context(),) if self.handler.wants_ctx else ()
        return self.handler.fn(argument, *context)

    def _undo_step(self) -> None:
        with self.user_code:
            try:
                finished(self._enter(), self.signal)
            except BaseException as error:
                found = self._found(error)
            else:
                found = self._found(None)
            finished(found.call(self._make_context()), self.signal)

    async def _aundo_step(self) -> None:
        try:
            await self._enter()
        except BaseException as error:
            found = self._found(error)
        else:
            found = self._found(None)
        if inspect.isawaitable(value := found.call(self._make_context())):
            await value

    def _found(self, error: BaseException | None) -> Found:
        """The way back that the handler has led to, if it has; `error` is what it has ended with."""
        self.signal.raise_if_aborted()
        self.awaits.forgive()
        ended = None if self._replay is None else self._replay.ended
        if isinstance(ended, Found):
            self._is_replaying = False
            return ended
        if ended is not None:
            raise ended
        if error is not None:
            raise error
        raise Strayed(
            f"step {self._undoing!r} cannot be undone: its handler ended without coming to it again"
        )

    def _run_atomic(self) -> Outcome:
        using = conf.DATABASE
        connect(using, self.signal)
        self._begin()
        own = Transaction(using)
        settlement: Settlement | None = None
        fact: Completed | None = None
        try:
            with self._past_hooks(own), own.begin():
                value = self._call()
                if self.reports.any:
                    self._desk.last_notes(self)  # after the checkpoint they would be refused
                own.require_whole()
                fact = self._conclude(value)
                self._untold = fact.notes
                boundary = self._checkpoint(self.ordinal, fact.output, fact.text, self.number)
                boundary.lead_with(fact.notes)
                settlement = Settlement(self.lease, boundary)
                if own.outermost:
                    limit_idleness(using)
                own.settle(settlement)
                if self.signal.reason == TIMEOUT:
                    # Before it had the run's lock the next attempt may have begun, under the same lease.
                    self.signal.raise_if_aborted()
                failpoints.hit("atomic.before-commit")
            failpoints.hit("atomic.after-commit")
        except Rejected as rejected:
            # What the database said, as if the handler had met it.
            raise (rejected.__cause__ or rejected) from None
        except (DatabaseError, InterfaceError) as error:
            # The connection may have died in COMMIT: what became of it is asked, never guessed.
            if settlement is None or fact is None or not is_connection_lost(error):
                raise
            if not was_applied(self.lease, self.ordinal, self.number, compensating=self.compensating):
                raise
        assert settlement is not None and fact is not None
        self._untold = None
        self._desk.announce([settlement])
        fact.settled = True
        fact.notes = None
        return fact

    @contextmanager
    def _past_hooks(self, own: Transaction) -> Iterator[None]:
        """What `on_commit` hooks raise is told, and changes nothing: the action is committed with its checkpoint."""
        try:
            yield
        except BaseException:
            if not own.committed:
                raise
            logger.exception(
                "%s: an on_commit hook raised; the action is committed, and completed", self.path
            )

    # --- into and out of user code --------------------------------------------------------------

    def _argument(self) -> Any:
        adapter = self.action.input_adapter
        if adapter is None or (self.compensating and self._undoing is None):
            return copy_json(self.state)
        # It has fitted when the step was done: a way back is not given up for a validator that has a bad moment.
        kinds = BaseException if self._undoing is None else ValidationError
        with refusals(FailureCode.INPUT_INVALID, kinds):
            return validated(adapter, self.state)

    def _report(self, name: str, progress: float | None, data: dict[str, Any]) -> None:
        if not self._is_replaying:  # else it was reported when the handler did it
            self.reports.add(name, progress, data)
            self._desk.reported(self)

    def _make_context(self) -> Context:
        return Context(
            run_id=self.lease.run_id,
            node_id=self.lease.node(self.ordinal),
            path=self.path,
            workflow=self._run.workflow,
            attempt=self.number,
            state=copy_json(self.state),
            context=None if self._run.context is None else json.loads(self._run.context),
            correlation_id=self._run.correlation_id,
            idempotency_key=self._idempotency_key(),
            signal=self.signal,
            report=self._report,
            steps=self._make_steps,
            awaits=self.awaits,
        )

    def _idempotency_key(self) -> str:
        """The same for all attempts of one piece of work; a replay is given the one that its handler had."""
        key = self.lease.node(self.ordinal)
        if not self.compensating or self._is_replaying:
            return key
        return f"{key}-undo" if self._undoing is None else f"{key}-undo-{self._undoing}"

    def _make_steps(self) -> Steps:
        """The execution's steps, the same ones for all of its threads."""
        with self._lock:
            return self._known_steps()

    def _known_steps(self) -> Steps:
        if self._is_replaying:
            assert self._undoing is not None
            if self._replay is None:
                self._refuse_late_steps()
                self._replay = Replay(self, self.lease.run_id, self.lease.node(self.ordinal), self._undoing)
            return cast(Steps, self._replay)  # it has the same methods
        if self._undoing is not None:
            raise RuntimeError(f"{self.path}: ctx.step is refused in the compensation of a step")
        if self.atomic:
            raise RuntimeError(
                f"{self.path}: ctx.step is refused in an atomic=True action, whose transaction is its checkpoint"
            )
        if self._steps is None:
            self._refuse_late_steps()
            self._steps = Steps(self)
        return self._steps

    def _refuse_late_steps(self) -> None:
        if self._has_ended:
            raise RuntimeError(f"{self.path}: ctx.step was used when its handler had ended already")

    @property
    def _leaves_open(self) -> bool:
        """Whether rows may be open in its ledger, now that its handler has returned."""
        known = None if self._steps is None else self._steps.unsettled
        if known is None:  # an earlier attempt may have left some, or this one before it was suspended
            return self.number > 1 or self._is_resumed
        return bool(known)

    @property
    def _ended(self) -> BaseException | None:
        """What has ended the execution inside `ctx.step`, even if the handler has caught it."""
        return None if self._steps is None else self._steps.hands.ended

    def _conclude(self, value: Any) -> Completed:
        """A handler's result as a fact, normalised before anybody sees it."""
        failpoints.hit("attempt.after")
        if self._ended is not None:
            raise self._ended
        self.awaits.require()
        if self.compensating:
            return Completed(
                self.ordinal, None, None, notes=self.reports.take(), leaves_open=self._leaves_open
            )
        where = f"{self.path} output"
        output, text = encode_output(value, self.action.output_adapter, where, self.secret_keys, self._key)
        return Completed(self.ordinal, output, text, notes=self.reports.take(), leaves_open=self._leaves_open)

    def failure(self, error: BaseException) -> Outcome:
        """The fact of an attempt that has raised. Never raises itself: nobody would hear of the attempt again."""
        notes = self.reports.take()
        error = self._ended or error
        try:
            return self._judged(error, notes)
        except BaseException:  # of an exception's class that does anything when it is looked at
            logger.exception("%s: what it has raised cannot be judged; the attempt has failed", self.path)
            described = describe(error, FailureCode.ACTION_FAILED, self.path)
            delay = retry.default_delay(self.number, self.action.via)
            return Failed(self.ordinal, described, delay, notes=notes)

    def _judged(self, error: BaseException, notes: Notes | None) -> Outcome:
        if isinstance(error, Suspend):
            if (astray := self._strayed()) is None:
                return Suspended(self.ordinal, error.delay, notes, error.steps)
            error = astray
        code = FailureCode.ACTION_FAILED
        cause = error
        if isinstance(error, Invalid):
            code, cause = error.code, error.cause
        elif isinstance(error, PayloadInvalid):
            code = FailureCode.PAYLOAD_INVALID
        elif isinstance(error, WaitTimeout):
            code = FailureCode.WAIT_TIMEOUT
        final = isinstance(error, FINAL) or code in NEVER_RETRIED
        delay = retry.named_delay(error) if isinstance(error, Retry) else None
        if self.signal.aborted:
            delay = 0.0  # nobody takes this outcome any more, and the backoff is asked once
        described = describe(cause, code, self.path)
        return self.failed(described, delay=delay, final=final, notes=notes)

    def _strayed(self) -> Strayed | None:
        """Of a replay that is to wait: that it has gone another way than before, once too often."""
        reason = strayed(self._steps) if self._is_resumed and self._steps is not None else None
        return None if reason is None else Strayed(reason)

    def failed(
        self,
        error: dict[str, Any],
        *,
        delay: float | None = None,
        final: bool = False,
        notes: Notes | None = None,
    ) -> Failed:
        """The fact of a failed attempt; without a `delay` of its own the action's backoff says how long to wait."""
        most = self.action.compensate_attempts if self.compensating else self.action.attempts
        if delay is None and not final and self.number < most:  # after the last one nobody waits
            delay, error = backoff(self.action, self.number, error, self.path)
        return Failed(self.ordinal, error, delay or 0.0, final, notes)

    def timed_out(self, code: FailureCode, seconds: float) -> Failed:
        """The fact of an attempt whose time is up."""
        error = fault(code, f"attempt {self.number} took longer than {seconds:g} s", self.path)
        return self.failed(error, notes=self.reports.take())

    def in_time(self, outcome: Outcome) -> Outcome:
        """What its handler has come to, or that its time was up before. What an atomic one has committed stands."""
        if self.expired is None or (isinstance(outcome, Completed) and outcome.settled):
            return outcome
        self.reports.put_back(outcome.notes)
        return self.timed_out(*self.expired)

    # --- for durable steps ----------------------------------------------------------------------

    def runs_in(self, thread: int) -> bool:
        """Whether the handler itself is at work in the thread with this ident; an `async` one is on the loop's."""
        return thread == self._thread if self.is_async else self.user_code.is_in(thread)

    def settle(self, boundary: Boundary) -> bool:
        """Settles a boundary of this attempt's own; False when the lease is gone."""
        self._note_steps(boundary)
        return self._desk.settle(Settlement(self.lease, boundary)).seq is not None

    async def asettle(self, boundary: Boundary) -> bool:
        """`settle`, for `async` handlers."""
        self._note_steps(boundary)
        return (await self._desk.asettle(Settlement(self.lease, boundary))).seq is not None

    def _note_steps(self, boundary: Boundary) -> None:
        self.leaves_steps = self.leaves_steps or any(step.compensable for step in boundary.steps)

    def read(self, statement: Statement) -> Rows:
        """The rows of one statement."""
        return patient_read(self._desk, statement, self.signal)

    async def aread(self, statement: Statement) -> Rows:
        """`read`, for `async` handlers."""
        return await patient_aread(self._desk, statement, self.signal)
