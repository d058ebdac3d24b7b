"""workflow:prune"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.db.models import Exists, Min, OuterRef, Q
from django.db.models.functions import Now

from workflow.conf import conf
from workflow.management.base import WorkflowCommand, asking, number
from workflow.manager import arguments
from workflow.manager.workflows import pruned
from workflow.models import Event, Job, Node, Run, Step


class Command(WorkflowCommand):
    help = "Drops runs that finished long ago, and old events."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--days",
            metavar="N",
            help='how long ago, fractions allowed (default: WORKFLOW["RETENTION_DAYS"])',
        )
        parser.add_argument(
            "--batch-size", metavar="N", default=1000, help="runs in one transaction (default 1000)"
        )
        parser.add_argument("--dry-run", action="store_true", help="only count them")

    def run(self, **options: Any) -> None:
        given = number(options["days"], "--days", float, 0, arguments.MAX_DAYS)
        days = conf.RETENTION_DAYS if given is None else given
        batch_size = number(options["batch_size"], "--batch-size", int, 1) or 1000
        if options["dry_run"]:
            runs, events = self._count(days)
            self.output.line(f"Would drop {_counted(runs, 'run')} and {_counted(events, 'event')}.")
            return
        with asking():
            runs, events = pruned(days, batch_size)
        self.output.line(f"Dropped {_counted(runs, 'run')} and {_counted(events, 'event')}.")

    def _count(self, days: float) -> tuple[int, int]:
        """(runs, events) that `workflows.prune` would drop now: the same conditions, by the same clock."""
        cutoff = Now() - timedelta(days=days)
        runs = Run.objects.using(conf.DATABASE)
        oldest_live = runs.filter(finished_at__isnull=True).aggregate(at=Min("created_at"))["at"]
        not_needed = Q() if oldest_live is None else Q(correlation__isnull=True) | Q(at__lt=oldest_live)
        undelivered = Exists(Job.objects.filter(run__isnull=True, node_id=OuterRef("pk")))
        waited_for = Exists(Node.objects.filter(wait_event=OuterRef("type"))) | Exists(
            Step.objects.filter(wait_event=OuterRef("type"))
        )
        events = Event.objects.using(conf.DATABASE).filter(not_needed, at__lte=cutoff)
        return runs.filter(finished_at__lte=cutoff).count(), events.exclude(undelivered & waited_for).count()


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")
