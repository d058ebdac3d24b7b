"""workflow:unpause"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from workflow import terminal, workflows
from workflow.management.base import WorkflowCommand, asking, operator


class Command(WorkflowCommand):
    help = "Resumes a queue that is paused."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queue", metavar="QUEUE", help="the queue's name")

    def run(self, **options: Any) -> None:
        with asking():
            resumed = workflows.resume_queue(options["queue"], by=operator())
        name = terminal.one_line(options["queue"])
        self.output.line(f"Queue {name} is resumed." if resumed else f"Queue {name} was not paused.")
