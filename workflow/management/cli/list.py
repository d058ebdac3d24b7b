"""workflow:list"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from workflow import states, terminal, workflows
from workflow.management.base import WorkflowCommand, asking, number, refusal
from workflow.redact import redact_run


class Command(WorkflowCommand):
    help = "Lists runs, newest first."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--workflow", metavar="NAME", help="only runs of this workflow")
        parser.add_argument(
            "--status", metavar="STATUS", help=f"only runs in this status: {', '.join(states.RUN_STATUSES)}"
        )
        parser.add_argument("--correlation", metavar="ID", help="only runs with this correlation id")
        parser.add_argument("--limit", metavar="N", default=50, help="how many at most (default 50)")
        parser.add_argument(
            "--after", metavar="CURSOR", help="the page after this cursor, the `next` of another page"
        )
        parser.add_argument(
            "--json", action="store_true", help='print {"items": [...], "next": cursor or null}'
        )

    def run(self, **options: Any) -> None:
        if options["status"] is not None and options["status"] not in states.RUN_STATUSES:
            raise refusal(
                f"--status must be one of {', '.join(states.RUN_STATUSES)}, not {options['status']!r}"
            )
        limit = number(options["limit"], "--limit", int, 1)
        with asking():
            page = workflows.list(
                workflow=options["workflow"],
                status=options["status"],
                correlation_id=options["correlation"],
                limit=50 if limit is None else limit,
                after=options["after"],
            )
        items = [redact_run(item) for item in page.items]
        if options["json"]:
            cursor = None if page.next is None else str(page.next)
            self.output.json({"items": [item.model_dump(mode="json") for item in items], "next": cursor})
        elif not items:
            self.output.line("No runs.")
        else:
            now = timezone.now()
            self.output.show(lambda: terminal.runs_view(items, now), lambda: terminal.runs_lines(items, now))
            if page.next is not None:
                self.output.line(f"More: --after {terminal.printable(page.next)}")
