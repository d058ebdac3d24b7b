"""workflow:cancel"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from workflow import terminal, workflows
from workflow.management.base import WorkflowCommand, asking, operator


class Command(WorkflowCommand):
    help = "Cancels a run that is pending, running or waiting. What it has done stays done."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("run", metavar="RUN", help="the run's id")
        parser.add_argument("--reason", metavar="TEXT", help="kept in the run's history")
        parser.add_argument("--compensate", action="store_true", help="undo what it has done")

    def run(self, **options: Any) -> None:
        with asking():
            workflows.cancel(
                options["run"], options["reason"], compensate=options["compensate"], by=operator()
            )
        self.output.line(f"Run {terminal.one_line(options['run'])} is cancelled.")
