"""workflow:top"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from workflow.management import top
from workflow.management.base import WorkflowCommand, number
from workflow.overview import overview


class Command(WorkflowCommand):
    help = "Shows queues, rates, workers, runs that nobody serves, and pauses. On a terminal it goes on until Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--interval", metavar="SECONDS", default=2, help="on a terminal: how often to look (default 2)"
        )
        parser.add_argument("--json", action="store_true", help="print one object and leave")

    def run(self, **options: Any) -> None:
        interval = number(options["interval"], "--interval", float, 0.1, 86_400) or 2.0
        if options["json"]:
            self.output.json(overview())
        elif self.output.live:
            self.output.redraw(lambda rows: top.view(overview()), interval)
        else:
            seen = overview()
            self.output.show(lambda: top.view(seen), lambda: top.lines(seen))
