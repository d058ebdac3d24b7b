"""workflow:pause"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from workflow import terminal, workflows
from workflow.management.base import WorkflowCommand, asking, number, operator, refusal
from workflow.manager.arguments import MAX_DELAY
from workflow.results import PausedQueueInfo


class Command(WorkflowCommand):
    help = "Pauses a queue: workers claim nothing of it. Or lists the queues that are paused."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queue", metavar="QUEUE", nargs="?", help="the queue's name")
        end = parser.add_mutually_exclusive_group()
        end.add_argument("--for", dest="seconds", metavar="SECONDS", help="for how long (default: no end)")
        end.add_argument("--until", metavar="TIME", help="in ISO 8601; without an offset in TIME_ZONE")
        parser.add_argument("--reason", metavar="TEXT", default="", help="for whoever finds it paused")
        parser.add_argument("--list", action="store_true", help="only list the queues that are paused")
        parser.add_argument("--json", action="store_true", help="print what is paused as JSON")

    def run(self, **options: Any) -> None:
        if options["list"]:
            if options["queue"] is not None:
                raise refusal("--list takes no queue")
            self._list(as_json=bool(options["json"]))
            return
        if options["queue"] is None:
            raise refusal("which queue? workflow:pause QUEUE, or workflow:pause --list")
        end = _end(options["seconds"], options["until"])
        with asking():
            pause = workflows.pause_queue(
                options["queue"], until=end, reason=options["reason"], by=operator()
            )
        if options["json"]:
            self.output.json(pause)
        else:
            self.output.line(_sentence(pause))

    def _list(self, *, as_json: bool) -> None:
        found = workflows.paused_queues()
        if as_json:
            self.output.json(found)
        elif found:
            rows = [("QUEUE", "SINCE", "UNTIL", "BY", "REASON"), *(_row(pause) for pause in found)]
            self.output.lines(terminal.columns(rows))
        else:
            self.output.line("No queue is paused.")


def _end(seconds: Any, until: Any) -> datetime | float | None:
    """When the pause ends, or in how many seconds, of `--for` and `--until`; None for no end."""
    if seconds is not None and until is not None:
        raise refusal("either --for or --until")
    if until is None:
        return number(seconds, "--for", float, 0, MAX_DELAY)
    if isinstance(until, datetime):  # of a caller in Python
        return until
    until = str(until)
    try:
        moment = parse_datetime(until)
    except ValueError:  # of the right form, and no time that there is
        moment = None
    if moment is None:
        shown = terminal.one_line(until, 60)
        raise refusal(
            f"--until must be a time like 2026-03-04T12:00 or 2026-03-04T12:00+01:00, not {shown!r}"
        )
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


def _sentence(pause: PausedQueueInfo) -> str:
    end = "it is resumed" if pause.until is None else terminal.moment(pause.until)
    return f"Queue {terminal.one_line(pause.queue)} is paused until {end}. What is in hand goes on."


def _row(pause: PausedQueueInfo) -> tuple[str, ...]:
    return (
        terminal.one_line(pause.queue, 100),
        terminal.moment(pause.paused_at),
        terminal.moment(pause.until),
        terminal.one_line(pause.by or "-", 60),
        terminal.one_line(pause.reason or "-", 200),
    )
