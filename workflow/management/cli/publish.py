"""workflow:publish"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from workflow import terminal, workflows
from workflow.management.base import WorkflowCommand, asking, json_argument


class Command(WorkflowCommand):
    help = "Publishes a domain event to the runs that wait for it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("type", metavar="TYPE", help="the event's type, as payment.succeeded")
        parser.add_argument(
            "--payload", metavar="JSON", help='what it brings (default null); "-" reads standard input'
        )
        parser.add_argument("--correlation", metavar="ID", help="what it is about, for waits that correlate")
        parser.add_argument("--event-id", metavar="ID", help="an id of your own: the same one counts once")

    def run(self, **options: Any) -> None:
        with asking():
            counted = workflows.publish(
                options["type"],
                json_argument(options["payload"], "--payload"),
                correlation=options["correlation"],
                event_id=options["event_id"],
            )
        name, event_id = terminal.one_line(options["type"]), terminal.one_line(options["event_id"])
        self.output.line(f"Published {name}." if counted else f"Event id {event_id} was published before.")
