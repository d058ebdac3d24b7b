"""workflow:resume"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from workflow import terminal, workflows
from workflow.management.base import WorkflowCommand, asking, json_argument, operator


class Command(WorkflowCommand):
    help = "Lets a run go on that waits for an event, as if the event had come."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("run", metavar="RUN", help="the run's id")
        parser.add_argument(
            "--payload",
            metavar="JSON",
            help='what the event would bring (default null); "-" reads standard input',
        )

    def run(self, **options: Any) -> None:
        with asking():
            payload = json_argument(options["payload"], "--payload")
            workflows.resume(options["run"], payload, by=operator())
        self.output.line(f"Run {terminal.one_line(options['run'])} goes on.")
