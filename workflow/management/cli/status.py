"""workflow:status"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from workflow import workflows
from workflow.management import watch
from workflow.management.base import WorkflowCommand, asking
from workflow.redact import redact_status


class Command(WorkflowCommand):
    help = "Shows a run and its tree. With -v 2 also its input, state, outputs and tracebacks."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("run", metavar="RUN", help="the run's id")
        parser.add_argument("--watch", action="store_true", help="go on until the run is over; Ctrl-C leaves")
        parser.add_argument(
            "--json", action="store_true", help="print a RunStatus; with --watch one line for each change"
        )

    def run(self, **options: Any) -> None:
        run_id, as_json = options["run"], bool(options["json"])
        with asking():
            if options["watch"]:
                status = watch.follow(run_id, self.output, as_json=as_json)
            else:
                status = redact_status(workflows.status(run_id))
        if not as_json:
            watch.show(status, self.output, detail=options["verbosity"] > 1)
        elif not options["watch"]:
            self.output.json(status)
