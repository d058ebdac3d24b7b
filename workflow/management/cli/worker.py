"""workflow:worker"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

from django.core.management.base import CommandParser
from django.db import OperationalError

from workflow import worker
from workflow.management.base import (
    NONE_REGISTERED,
    WorkflowCommand,
    asking,
    look_for_tables,
    number,
    refusal,
)
from workflow.manager import arguments
from workflow.registry import registry
from workflow.terminal import one_line
from workflow.worker import leaving

MOST_NAMES = 10
"""Workflows that are named at the start."""


class Command(WorkflowCommand):
    help = "Runs due jobs until it is stopped. The first SIGTERM or SIGINT lets running handlers finish."

    requires_system_checks = "__all__"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--concurrency", metavar="N", help='units at once in a process (default: WORKFLOW["CONCURRENCY"])'
        )
        parser.add_argument("--processes", metavar="N", default=1, help="worker processes (default 1)")
        parser.add_argument(
            "--queue", metavar="QUEUE", nargs="+", action="extend",
            help="only jobs of these queues (default: all); may be repeated",
        )  # fmt: skip
        parser.add_argument("--burst", action="store_true", help="leave when nothing is due")
        parser.add_argument(
            "--max-jobs", metavar="N", help="replace a process that has taken so many jobs by a new one"
        )
        parser.add_argument(
            "--max-rss", metavar="MB", help="replace a process that has so much memory resident by a new one"
        )
        parser.add_argument(
            "--check", action="store_true",
            help="start nothing: exit with 0 if a worker of this host is alive, else with 1",
        )  # fmt: skip

    def run(self, **options: Any) -> None:
        if options["check"]:
            health = worker.check()
            if not health:
                raise refusal(health.message)
            self.output.line(health.message)
            return
        concurrency = number(options["concurrency"], "--concurrency", int, 1, 100_000)
        processes = number(options["processes"], "--processes", int, 1, 1_000) or 1
        queues = [options["queue"]] if isinstance(options["queue"], str) else options["queue"]
        with asking():
            for queue in queues or ():
                arguments.text(queue, "--queue", arguments.MAX_QUEUE)
                if "," in queue:  # it is a name that a queue may have, though hardly any does
                    self.stderr.write(
                        f"--queue: {one_line(queue)} is one queue; names of several are separated by spaces"
                    )
        max_jobs = number(options["max_jobs"], "--max-jobs", int, 1)
        max_rss = number(options["max_rss"], "--max-rss", int, 1)
        # The worker knows what to do about a database that is away: it waits for it, unless it is a burst.
        with nullcontext() if options["burst"] else suppress(OperationalError):
            look_for_tables()
        if (reason := worker.refusal()) is not None:
            raise refusal(reason)
        if options["verbosity"]:
            self._introduce(queues)
        code = worker.run(
            concurrency=concurrency,
            processes=processes,
            queues=queues,
            burst=bool(options["burst"]),
            max_jobs=max_jobs,
            max_rss=max_rss,
        )
        if getattr(self, "_called_from_command_line", False):  # else the process is not ours to end
            leaving.leave_in_time(code)
        if code:
            sys.exit(code)

    def _introduce(self, queues: Sequence[str] | None) -> None:
        """Says what will be run. To people only: elsewhere the log tells of it, and a burst may be a cron job."""
        names = sorted(f"{definition.name} v{definition.version}" for definition in registry.all())
        if not names:
            self.stderr.write(NONE_REGISTERED)
        elif self.output.rich:
            where = f"of {', '.join(queues)}" if queues else "of every queue"
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            shown = ", ".join(names[:MOST_NAMES])
            self.output.line(one_line(f"Takes the jobs {where}: {shown}{more}. Ctrl-C stops it."))
