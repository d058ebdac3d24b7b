"""Celery's signals: when relays and engines start and stop.

A worker's main process has the relay; each process of its pool has an engine, the main process itself where the pool is
one of threads. A child of a prefork pool hears of a warm shutdown only between two messages, and a handler may run for
long: so the main process writes into a pipe that nobody reads, and all its children see that there is something in it.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from contextlib import suppress
from typing import Any, Final

from celery import bootsteps, signals
from celery.concurrency.base import BasePool

from workflow import states
from workflow.celery.engine import Engine
from workflow.celery.relay import Relay
from workflow.conf import conf
from workflow.transports.celery import NAME, TASK, Sender
from workflow.worker.forks import let_children_be

logger = logging.getLogger("workflow")

LAST_WORDS: Final = 5.0
"""Seconds that a process of the pool gets, once its last message is done, to sign off."""


class _Place:
    """What there is of ours in this process."""

    def __init__(
        self, main: int | None = None, pipe: tuple[int, int] | None = None, eager: bool = True
    ) -> None:
        self.main = main
        """The id of a Celery worker's main process, this one or the one above."""
        self.pipe = pipe
        """Of the main process: what can be read from it tells its children that the worker shuts down."""
        self.eager = eager
        """Whether messages are to be expected: engines start before the first one."""
        self.engine: Engine | None = None
        self.relay: Relay | None = None
        self.concurrency = 1
        """How many tasks this process runs at once."""
        self.refuses = False


_place = _Place()
_lock = threading.Lock()


def serve(job_id: str) -> None:
    """What the task does: claims the job if it is there to be claimed, and returns when its unit is over."""
    if not _place.refuses:
        _engine().serve(job_id)


def _engine() -> Engine:
    """That of this process."""
    with _lock:
        if _place.engine is None:
            _place.engine = Engine(_place.concurrency)
            _place.engine.start()
            if _place.pipe is not None and _place.main != os.getpid():
                reading, _ = _place.pipe
                arguments = (reading, _place.engine)
                threading.Thread(
                    target=_stop_with, args=arguments, name="workflow-shutdown", daemon=True
                ).start()
        return _place.engine


def _stop_with(reading: int, engine: Engine) -> None:
    select.select([reading], [], [])
    engine.stop()


def _is_consumed(worker: Any) -> bool:
    """Whether messages may come to this worker: not if all are routed to one queue, and it consumes another."""
    amqp = worker.app.amqp
    try:
        routed = [
            amqp.router.route({}, TASK, ("",), {"queue": queue, "priority": 0})["queue"].name
            for queue in ("default", "another", states.EVENTS_QUEUE)
        ]
    except Exception:  # a router of the project's that wants to know more, or names no queue
        return True
    return len(set(routed)) > 1 or routed[0] in amqp.queues.consume_from


class _Leaving(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Whatever a Celery worker ends for (a remote command, an error of its own), it comes by here before it waits for
    its pool. Only signals are told of otherwise.
    """

    def start(self, parent: Any) -> None:
        """Nothing yet."""

    def stop(self, parent: Any) -> None:
        """It was told already."""

    def close(self, parent: Any) -> None:
        _worker_is_to_stop()


def _worker_begins(sender: Any = None, **kwargs: Any) -> None:
    """In the main process, before its pool."""
    global _place
    if conf.TRANSPORT != NAME:
        return
    _leave_pipe()
    _place = _Place(os.getpid(), os.pipe(), _is_consumed(sender))
    sender.app.steps["worker"].add(_Leaving)


def _worker_is_ready(sender: Any = None, **kwargs: Any) -> None:
    """In the main process, before its first message. Sent again when the broker was away."""
    if conf.TRANSPORT != NAME or _place.relay is not None or _place.refuses:
        return
    pool = sender.pool
    if (reason := _against(pool, sender.app)) is not None:
        _place.refuses = True
        logger.error("no unit is run here: %s", reason)
        return
    if not pool.uses_semaphore:  # its tasks run in this process
        let_children_be()
        if (
            type(pool).terminate_job is BasePool.terminate_job
        ):  # else a cold shutdown would fail for want of it
            pool.terminate_job = _hurry
        _place.concurrency = pool.limit or 1
        if _place.eager:
            _engine()
    _place.relay = Relay(Sender(sender.app))
    _place.relay.start()


def _against(pool: Any, app: Any) -> str | None:
    """Why this worker cannot run units, or None."""
    if pool.is_green:
        name = type(pool).__module__.rpartition(".")[2]
        return f"the pool {name} has no threads; use prefork, threads or solo"
    if app.conf.task_always_eager:
        return "with task_always_eager no message is sent, and all units would run one by one in the relay"
    return None


def _hurry(*args: Any, **kwargs: Any) -> None:
    """A cold shutdown where tasks are threads, which nobody can end: their units are given back."""
    if _place.engine is not None:
        _place.engine.hurry()


def _child_begins(**kwargs: Any) -> None:
    """In a process of the pool, after the fork; in the main process with the pool solo."""
    global _place
    if conf.TRANSPORT != NAME or os.getpid() == _place.main:
        return
    _place = _Place(_place.main, _place.pipe, _place.eager)
    if _place.pipe is not None:
        with suppress(OSError):
            os.close(_place.pipe[1])
    if _place.eager:
        _engine()


def _worker_is_to_stop(how: str = "Warm", **kwargs: Any) -> None:
    """In the main process, inside of its signal handler, or as it shuts down for another reason."""
    if _place.main not in (None, os.getpid()):
        return  # a child that a handler has forked
    if _place.pipe is not None:
        with suppress(OSError):
            os.write(_place.pipe[1], b"!")
    if _place.relay is not None:
        _place.relay.stop()
    if _place.engine is not None:
        if how == "Cold":
            _place.engine.hurry()
        else:
            _place.engine.stop()


def _worker_ends(**kwargs: Any) -> None:
    """In the main process, after its pool."""
    if _place.relay is not None:
        _place.relay.stop()
        _place.relay.join(LAST_WORDS)
    if _place.engine is not None and _place.main == os.getpid():
        _place.engine.stop()
        _place.engine.join(conf.SHUTDOWN_GRACE + LAST_WORDS)
    _leave_pipe()


def _child_ends(**kwargs: Any) -> None:
    """In a process of the pool that leaves: its message is done, or it was told to leave in the middle of one."""
    if _place.engine is not None and _place.main != os.getpid():
        _place.engine.hurry()
        _place.engine.join(LAST_WORDS)


def _leave_pipe() -> None:
    pipe, _place.pipe = _place.pipe, None
    for end in pipe or ():
        with suppress(OSError):
            os.close(end)


signals.worker_init.connect(_worker_begins)
signals.worker_ready.connect(_worker_is_ready)
signals.worker_process_init.connect(_child_begins)
signals.worker_shutting_down.connect(_worker_is_to_stop)
signals.worker_shutdown.connect(_worker_ends)
signals.worker_process_shutdown.connect(_child_ends)
