"""The `workflows` object: every public command, in its plain and its async form."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import sync_to_async

from workflow import payload as payloads
from workflow import states
from workflow.conf import conf
from workflow.database import postgresql
from workflow.definitions import Pipeline, Workflow
from workflow.errors import VersionConflict
from workflow.manager import arguments as check
from workflow.manager.inputs import codec
from workflow.manager.resets import to_reset
from workflow.manager.statuses import to_status
from workflow.manager.twins import plain, twin
from workflow.manager.waiting import Patience, refuse_endless
from workflow.registry import registry
from workflow.results import PausedQueueInfo, RunHandle, RunInfo, RunPage, RunStatus
from workflow.store import commands as store
from workflow.store import pauses

Definition = str | Workflow | Pipeline
RunId = uuid.UUID | str
Handles = list[RunHandle]
Pauses = list[PausedQueueInfo]
_Delay = float | timedelta | None
_Until = datetime | float | timedelta | None

logger = logging.getLogger("workflow")


def pruned(days: float, batch_size: int) -> tuple[int, int]:
    """What ``Workflows.prune`` does; how many runs and how many events it has dropped."""
    seconds = check.days(days) * 86_400
    return store.prune(postgresql(), seconds, check.whole(batch_size, "batch_size", 1, check.MAX_BATCH))


class Workflows:
    """Dispatches, looks at and steers runs.

    Every call works on ``WORKFLOW["DATABASE"]`` through Django's connection: inside ``atomic()`` it takes
    part in that transaction, outside it is one of its own. A refusal changes nothing and leaves the
    transaction usable. Arguments that can't be right raise ``TypeError``, ``ValueError`` or a
    ``WorkflowError``; a run id that is none raises ``RunNotFound``. ``by`` is who asked, for the history.
    """

    def register(self, definition: Workflow | Pipeline) -> Workflow:
        """Make a definition known to this process. Raises ``WorkflowInvalid`` or ``VersionConflict``."""
        return registry.register(definition)

    # --- dispatch -------------------------------------------------------------------------------

    @plain("workflows.adispatch")
    def dispatch(
        self,
        name_or_definition: Definition,
        input: Any = None,  # noqa: A002  the contract's name
        *,
        context: Any = None,
        correlation_id: str | None = None,
        idempotency_key: str | None = None,
        queue: str = "default",
        priority: int = 0,
        delay: _Delay = None,
        by: str | None = None,
    ) -> RunHandle:
        """Start a run of a registered workflow, or of a definition, which registers it in this process.

        ``delay`` is in seconds or a ``timedelta``; a higher ``priority`` goes first. The same
        ``idempotency_key`` for the same workflow gives the first run, with ``created=False``, whatever else
        is asked. Raises ``WorkflowUnknown``, ``InputInvalid`` or ``PayloadInvalid`` and writes nothing then.
        """
        workflow = registry.as_workflow(name_or_definition)
        placement = _placement(workflow, context, queue, priority, delay, by)
        run = store.NewRun(
            codec(workflow).encode(input),
            None if correlation_id is None else check.text(correlation_id, "correlation_id"),
            None if idempotency_key is None else check.text(idempotency_key, "idempotency_key"),
        )
        return RunHandle(*store.dispatch(postgresql(), placement, run), self)

    @plain("workflows.adispatch_many")
    def dispatch_many(
        self,
        name: Definition,
        inputs: Iterable[Any],
        *,
        context: Any = None,
        correlation_id: str | None = None,
        correlation_ids: Sequence[str | None] | None = None,
        idempotency_keys: Sequence[str | None] | None = None,
        queue: str = "default",
        priority: int = 0,
        delay: _Delay = None,
        by: str | None = None,
    ) -> Handles:
        """Start one run for each input, all or none, in a few statements; the handles in the inputs' order.

        ``name`` may be a definition too. ``correlation_ids`` and ``idempotency_keys`` have an entry for each
        input, which may be None; the other options hold for all. Of several with one key the first counts.
        Raises what ``dispatch`` does.
        """
        workflow = registry.as_workflow(name)
        placement = _placement(workflow, context, queue, priority, delay, by)
        if isinstance(inputs, str | bytes | dict) or not isinstance(inputs, Iterable):
            raise TypeError(f"inputs must be a list of inputs, not a {type(inputs).__name__}")
        encode = codec(workflow).encode
        encoded = [encode(value, f"inputs[{index}]") for index, value in enumerate(inputs)]
        if correlation_id is not None and correlation_ids is not None:
            raise TypeError("correlation_id and correlation_ids can't be given together")
        if correlation_id is not None:
            correlations = [check.optional_text(correlation_id, "correlation_id")] * len(encoded)
        else:
            correlations = check.texts(correlation_ids, "correlation_ids", len(encoded))
        keys = check.texts(idempotency_keys, "idempotency_keys", len(encoded))
        new = [store.NewRun(*run) for run in zip(encoded, correlations, keys, strict=True)]
        if not new:
            return []
        found = store.dispatch_many(postgresql(), placement, new)
        return [RunHandle(run_id, created, self) for run_id, created in found]

    # --- looking --------------------------------------------------------------------------------

    @plain("workflows.astatus")
    def status(self, run_id: RunId) -> RunStatus:
        """The run and its nodes in tree order, as one moment saw them."""
        return to_status(store.status(postgresql(), check.run_id(run_id)))

    @plain("workflows.alist")
    def list(
        self,
        workflow: str | None = None,
        status: str | None = None,
        correlation_id: str | None = None,
        limit: int = 50,
        after: RunId | None = None,
    ) -> RunPage:
        """A page of runs, newest first: at most ``limit`` (1 to 1,000).

        ``after`` is the ``next`` of the page before. An unknown status is ``ValueError``.
        """
        count = check.whole(limit, "limit", 1, check.MAX_LIMIT)
        rows = store.list_runs(
            postgresql(),
            count + 1,
            workflow=check.optional_text(workflow, "workflow", empty=True),
            status=check.status(status),
            correlation_id=check.optional_text(correlation_id, "correlation_id", empty=True),
            after=check.cursor(after),
        )
        items = [RunInfo(**row) for row in rows[:count]]
        return RunPage(items=items, next=str(items[-1].id) if len(rows) > count else None)

    @plain("workflows.await_finished")
    def wait(self, run_id: RunId, timeout: _Delay = None) -> RunStatus:
        """The run's final status, once it is over; see ``RunHandle.wait``."""
        known, patience = _patience(run_id, timeout)
        while True:
            found = store.run_status(postgresql(), known)
            if found in states.RUN_TERMINAL:
                final = self.status(known)
                if final.run.status in states.RUN_TERMINAL:  # or else somebody retried it in between
                    return final
            refuse_endless(postgresql(), patience.timeout)
            time.sleep(patience.next(found))

    async def await_finished(self, run_id: RunId, timeout: _Delay = None) -> RunStatus:  # noqa: ASYNC109
        """``wait``, for async code; holds no thread between two looks."""
        known, patience = _patience(run_id, timeout)
        while True:
            final = await self.astatus(known)
            if final.run.status in states.RUN_TERMINAL:
                return final
            if patience.timeout is None:
                await sync_to_async(refuse_endless)(postgresql(), None)
            await asyncio.sleep(patience.next(final.run.status))

    # --- steering -------------------------------------------------------------------------------

    @plain("workflows.acancel")
    def cancel(
        self, run_id: RunId, reason: str | None = None, *, compensate: bool = False, by: str | None = None
    ) -> None:
        """End a pending, running or waiting run ``cancelled``, with its live nodes, its jobs and its waits.

        A handler at work is told within a second or so, and what it still returns is discarded. With
        ``compensate`` a run that has begun goes ``compensating`` instead, and undoes what it has completed.
        Raises ``RunConflict`` for a run that is over or compensating.
        """
        data = {
            "reason": check.optional_text(reason, "reason", check.MAX_REASON, empty=True),
            "by": check.optional_text(by, "by"),
        }
        undo = check.flag(compensate, "compensate")
        store.cancel(postgresql(), check.run_id(run_id), data, compensate=undo)

    @plain("workflows.aretry")
    def retry(self, run_id: RunId, from_node: str | None = None, *, by: str | None = None) -> None:
        """Let a ``failed`` run go on from its failure, with fresh attempts.

        ``from_node`` is a path: its subtree and all that comes after it is done again too. The state is made
        again from the input and the outputs that stand. Raises ``RunConflict`` for a run that is not failed
        or has begun to compensate, and ``NodeUnknown``; with ``from_node`` also ``WorkflowUnknown`` and
        ``VersionConflict``, when this process does not know the run's definition.
        """
        path = check.optional_text(from_node, "from_node", check.MAX_PATH)
        data = {"retry": True, "from_node": path, "by": check.optional_text(by, "by")}
        store.retry(postgresql(), check.run_id(run_id), path, data, _to_reset)

    @plain("workflows.aresume")
    def resume(self, run_id: RunId, payload: Any = None, *, by: str | None = None) -> None:
        """Satisfy all that the run is parked on with ``payload``, as if that had been the event's.

        That is every parked wait stage, and every ``ctx.step.wait_event`` and ``wait_for`` on which a handler,
        of a compensation too, is suspended: ``payload`` is what it returns there. A ``ctx.step.sleep`` goes on.
        Raises ``RunConflict`` when nothing is parked, and ``PayloadInvalid``.
        """
        text = payloads.dumps(payload, "payload", conf.MAX_PAYLOAD_BYTES)
        data = {"by": check.optional_text(by, "by")}
        store.resume(postgresql(), check.run_id(run_id), text, data)

    @plain("workflows.apublish")
    def publish(
        self,
        type: str,  # noqa: A002
        payload: Any = None,
        *,
        correlation: str | None = None,
        event_id: str | None = None,
    ) -> bool:
        """Publish a domain event. False when its ``event_id`` has been published before: it counts once.

        Raises ``PayloadInvalid`` before anything is written.
        """
        return store.publish(
            postgresql(),
            check.text(type, "type"),
            None if payload is None else payloads.dumps(payload, "payload", conf.MAX_PAYLOAD_BYTES),
            check.optional_text(correlation, "correlation"),
            check.optional_text(event_id, "event_id"),
        )

    @plain("workflows.aprune")
    def prune(self, days: float, batch_size: int = 1000) -> int:
        """Drop runs that finished ``days`` ago or earlier, with all that is theirs; returns how many.

        Events of that age go too, except those that a run could still take: see the statement. Works in
        batches, each a transaction of its own unless the caller has one; can be broken off at any time.
        """
        return pruned(days, batch_size)[0]

    # --- queues ---------------------------------------------------------------------------------

    @plain("workflows.apause_queue")
    def pause_queue(
        self, queue: str, *, until: _Until = None, reason: str = "", by: str | None = None
    ) -> PausedQueueInfo:
        """Let workers claim nothing of the queue: what is in hand goes on, all else waits and spends no attempt.

        ``until`` is an aware ``datetime``, or a ``timedelta`` or seconds from now by the database's clock; None
        is until ``resume_queue``. Pausing again replaces ``until``, ``reason`` and ``by``. ``ValueError`` for an
        end that is not in the future. Workers heed it from the commit on, also those that are started later.
        """
        name = check.ordinary_queue(queue)
        moment, seconds = check.moment_or_seconds(until, "until")
        why = check.text(reason, "reason", check.MAX_REASON, empty=True)
        who = check.optional_text(by, "by")
        found = pauses.pause(postgresql(), name, moment, seconds, why, who)
        if found is None:
            raise ValueError("until must be in the future, by the database's clock")
        return found

    @plain("workflows.aresume_queue")
    def resume_queue(self, queue: str, *, by: str | None = None) -> bool:
        """End the queue's pause and wake the workers; False when it was not paused. ``by`` is for the log."""
        name = check.text(queue, "queue", check.MAX_QUEUE)
        who = check.optional_text(by, "by")
        resumed = pauses.resume(postgresql(), name)
        if resumed:
            logger.info("queue %r is resumed%s", name, f" by {ascii(who)[1:-1]}" if who else "")
        return resumed

    @plain("workflows.apaused_queues")
    def paused_queues(self) -> Pauses:
        """The queues that are paused now, by name."""
        return pauses.paused(postgresql())

    # --- the async twins ------------------------------------------------------------------------

    adispatch = twin(dispatch)
    adispatch_many = twin(dispatch_many)
    astatus = twin(status)
    alist = twin(list)  # noqa: A003  the method above
    acancel = twin(cancel)
    aretry = twin(retry)
    aresume = twin(resume)
    apublish = twin(publish)
    aprune = twin(prune)
    apause_queue = twin(pause_queue)
    aresume_queue = twin(resume_queue)
    apaused_queues = twin(paused_queues)


workflows = Workflows()


def _placement(
    workflow: Workflow, context: Any, queue: object, priority: object, delay: _Delay, by: object
) -> store.Placement:
    """The checked options of a dispatch."""
    return store.Placement(
        workflow,
        check.ordinary_queue(queue),
        check.priority(priority),
        None if context is None else _context(workflow, context),
        0.0 if delay is None else check.seconds(delay, "delay"),
        check.optional_text(by, "by"),
    )


def _context(workflow: Workflow, context: Any) -> str:
    return payloads.dumps(context, "context", conf.MAX_PAYLOAD_BYTES, workflow.secret_keys, "context")


def _to_reset(name: str, version: int, path: str) -> list[str]:
    """What a retry from ``path`` does again, by the definition that serves the run in this process."""
    workflow = registry.serves(name, version)
    if workflow is None:
        known = registry.get(name)
        rule = f"the run is of version {version}, this process serves version {known.version}"
        raise VersionConflict(f'workflow "{name}": {rule}')
    return to_reset(workflow.tree, path)


def _patience(run_id: RunId, timeout: _Delay) -> tuple[uuid.UUID, Patience]:
    known = check.run_id(run_id)
    return known, Patience(known, None if timeout is None else check.seconds(timeout, "timeout"))
