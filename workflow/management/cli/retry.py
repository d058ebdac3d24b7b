"""workflow:retry"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from workflow import terminal, workflows
from workflow.management.base import WorkflowCommand, asking, operator


class Command(WorkflowCommand):
    help = "Lets a failed run go on from its failure, or from a node, with fresh attempts."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("run", metavar="RUN", help="the run's id")
        parser.add_argument(
            "--from", dest="from_node", metavar="PATH",
            help="reset this node (pipeline.stage[.action]) and all that comes after it",
        )  # fmt: skip

    def run(self, **options: Any) -> None:
        with asking():
            workflows.retry(options["run"], from_node=options["from_node"], by=operator())
        place = "its failure" if options["from_node"] is None else terminal.one_line(options["from_node"])
        self.output.line(f"Run {terminal.one_line(options['run'])} goes on from {place}.")
