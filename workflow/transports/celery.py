"""Celery's messages: `workflow.celery` sends one for each job that is due, to whoever consumes them.

What a message says is an id. Whether there is something to do is asked of PostgreSQL, and so is everything else that a
doorbell tells: signals for handlers at work, and new jobs for relays and for `workflow:worker`, which goes on as ever.
"""

from __future__ import annotations

from typing import Any, Final

try:
    from celery.exceptions import OperationalError
except ModuleNotFoundError as error:
    raise ImportError('Celery is not installed (pip install "django-saga[celery]")') from error

from workflow.transports.postgres import Doorbell

__all__ = ["NAME", "TASK", "Doorbell", "Sender", "Unreachable", "Unroutable"]

NAME: Final = "workflow.transports.celery"
"""What `WORKFLOW["TRANSPORT"]` says."""
TASK: Final = "workflow.job"
"""The name of the task, for routes."""
PATIENCE: Final = 5.0
"""Seconds that a broker gets to take a connection."""


class Unreachable(Exception):
    """The broker takes no messages at the moment."""


class Unroutable(Exception):
    """The project's routes raised for this job."""


class _Router:
    """The app's, with its errors told apart: those of brokers may be of any kind, for Redis a plain `KeyError` too."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def route(self, *arguments: Any, **options: Any) -> Any:
        try:
            return self._app.amqp.router.route(*arguments, **options)
        except Exception as error:
            raise Unroutable(repr(error)) from error


class Sender:
    """Sends messages over a connection of its own; `app` is a Celery app that knows the task. Used by one thread."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._router = _Router(app)
        self._connection: Any = None
        self._producer: Any = None

    def connect(self) -> None:
        """Connects where there is no connection. Raises `Unreachable`."""
        if self._connection is not None:
            return
        connection = self._app.connection_for_write()
        try:
            connection.ensure_connection(
                max_retries=len(connection.alt or ()), interval_start=0, interval_step=0, timeout=PATIENCE
            )
            self._producer = self._app.amqp.Producer(connection)
        except (OperationalError, OSError, *connection.recoverable_connection_errors) as error:
            _end(connection)
            raise Unreachable(str(error)) from error
        self._connection = connection

    def send(self, job_id: str, queue: str, priority: int) -> None:
        """One message. `queue` and `priority` are the job's, for routes that go by them. Raises `Unreachable`, and
        `Unroutable`.
        """
        task = self._app.tasks[TASK]
        try:
            task.apply_async(
                (job_id,),
                {"queue": queue, "priority": priority},
                producer=self._producer,
                router=self._router,
                retry=False,
            )
        except (OperationalError, OSError, *self._connection.recoverable_connection_errors) as error:
            self.close()
            raise Unreachable(str(error)) from error

    def close(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            _end(connection)


def _end(connection: Any) -> None:
    try:
        connection.release()
    except Exception:  # it is broken: that is why
        return
