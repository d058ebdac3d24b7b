"""workflow:publish"""

from __future__ import annotations

import difflib
from typing import Any

from django.core.management.base import CommandParser

from workflow import Stage, terminal, workflows
from workflow.management.base import WorkflowCommand, asking, json_argument
from workflow.registry import registry


def _meant(published: str) -> str | None:
    """The event that a stage here waits for, if its name is nearly that of the published one."""
    stages = (node.definition for workflow in registry.all() for node in workflow.tree.nodes)
    awaited = {each.wait_for.event for each in stages if isinstance(each, Stage) and each.wait_for}
    if published in awaited:
        return None
    return next(iter(difflib.get_close_matches(published, awaited, n=1, cutoff=0.85)), None)


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
        if counted and (meant := _meant(options["type"])) is not None:
            # It may be for another service, so it is published; only a likely slip is worth a word.
            self.stderr.write(
                f'no workflow here waits for "{name}"; did you mean "{meant}"?', lambda text: text
            )
        self.output.line(f"Published {name}." if counted else f"Event id {event_id} was published before.")
