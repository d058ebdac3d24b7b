"""workflow:list"""

from __future__ import annotations

import functools
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from workflow import states, terminal, workflows
from workflow.management import watch
from workflow.management.base import WorkflowCommand, asking, number, refusal
from workflow.redact import redact_run
from workflow.results import RunPage


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

        parser.add_argument("--watch", action="store_true", help="go on until Ctrl-C, looking every second")

    def run(self, **options: Any) -> None:
        if options["status"] is not None and options["status"] not in states.RUN_STATUSES:
            raise refusal(
                f"--status must be one of {', '.join(states.RUN_STATUSES)}, not {options['status']!r}"
            )
        limit = number(options["limit"], "--limit", int, 1)
        look = functools.partial(self._look, options)
        if options["watch"]:
            watch.follow_list(look, 50 if limit is None else limit, self.output, as_json=options["json"])
        self._print(look(50 if limit is None else limit), as_json=options["json"])

    def _look(self, options: dict[str, Any], limit: int) -> RunPage:
        with asking():
            page = workflows.list(
                workflow=options["workflow"],
                status=options["status"],
                correlation_id=options["correlation"],
                limit=limit,
                after=options["after"],
            )
        return page.model_copy(update={"items": [redact_run(item) for item in page.items]})

    def _print(self, page: RunPage, as_json: bool) -> None:
        if as_json:
            self.output.json(page)
        elif not page.items:
            self.output.line("No runs.")
        else:
            now = timezone.now()
            self.output.show(
                lambda: terminal.runs_view(page.items, now), lambda: terminal.runs_lines(page.items, now)
            )
            if page.next is not None:
                self.output.line(f"More: --after {terminal.printable(page.next)}")
