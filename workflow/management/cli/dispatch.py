"""workflow:dispatch"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandParser

from workflow import states, terminal, workflows
from workflow.errors import InputInvalid, WorkflowUnknown
from workflow.management import watch
from workflow.management.base import (
    NONE_REGISTERED,
    WorkflowCommand,
    asking,
    json_argument,
    number,
    operator,
    refusal,
)
from workflow.manager import arguments
from workflow.redact import redact_status, redact_text, secrets_of
from workflow.registry import registry
from workflow.results import RunHandle

PRIORITIES = (-arguments.MAX_PRIORITY - 1, arguments.MAX_PRIORITY)


@contextlib.contextmanager
def _explaining(name: str, given: Any) -> Iterator[None]:
    """Around a dispatch: a validator's message may repeat what it was given, and must not show what is secret."""
    try:
        yield
    except WorkflowUnknown as error:
        if registry.all() or registry.faults:
            raise
        raise refusal(f"{error}. {NONE_REGISTERED}") from error
    except InputInvalid as error:
        secrets = secrets_of(given, workflow=name)
        raise refusal(redact_text(str(error), secrets=secrets, workflow=name)) from None


class Command(WorkflowCommand):
    help = "Dispatches a run and prints its id. With --wait the exit status is 1 unless the run completed."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", help="the workflow's name")
        parser.add_argument(
            "--input", metavar="JSON", help='the input (default null); "-" reads standard input'
        )
        parser.add_argument("--context", metavar="JSON", help="data for ctx.context")
        parser.add_argument("--correlation-id", metavar="ID", help="what else the run belongs to")
        parser.add_argument("--idempotency-key", metavar="KEY", help="dispatch once only for this key")
        parser.add_argument(
            "--queue", metavar="QUEUE", default="default", help="the queue (default: default)"
        )
        parser.add_argument("--priority", metavar="N", default=0, help="higher goes first (default 0)")
        parser.add_argument("--delay", metavar="SECONDS", help="how long to wait before it may start")
        parser.add_argument("--wait", action="store_true", help="wait until the run is over and show it")
        parser.add_argument("--timeout", metavar="SECONDS", help="with --wait: give up waiting after so long")

    def run(self, **options: Any) -> None:
        timeout = number(options["timeout"], "--timeout", float, 0, arguments.MAX_DELAY)
        if timeout is not None and not options["wait"]:
            raise refusal("--timeout goes with --wait")
        given = json_argument(options["input"], "--input")
        with asking(), _explaining(options["name"], given):
            handle = workflows.dispatch(
                options["name"],
                given,
                context=json_argument(options["context"], "--context"),
                correlation_id=options["correlation_id"],
                idempotency_key=options["idempotency_key"],
                queue=options["queue"],
                priority=number(options["priority"], "--priority", int, *PRIORITIES) or 0,
                delay=number(options["delay"], "--delay", float, 0),
                by=operator(),
            )
        self.output.line(str(handle.run_id))
        if not handle.created:
            self.stderr.write(
                "This idempotency key was used before; the id is that run's.", lambda text: text
            )
        if options["wait"]:
            self._wait(handle, timeout, detail=options["verbosity"] > 1)

    def _wait(self, handle: RunHandle, timeout: float | None, detail: bool) -> None:
        try:
            if self.output.rich:
                status = watch.follow(handle.run_id, self.output, timeout=timeout)
            else:
                status = redact_status(handle.wait(timeout))
        except TimeoutError as error:
            raise refusal(
                f"run {handle.run_id} was not over after {timeout:g} seconds; it goes on"
            ) from error
        watch.show(status, self.output, detail)
        if status.run.status != states.COMPLETED:
            reason = terminal.error_line(status.run.error)
            raise refusal(
                f"run {handle.run_id} ended {status.run.status}" + (f": {reason}" if reason else "")
            )
