"""workflow:cancel"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from workflow import states, terminal, workflows
from workflow.conf import conf
from workflow.management.base import WorkflowCommand, asking, operator
from workflow.manager import arguments
from workflow.models import Run


class Command(WorkflowCommand):
    help = "Cancels a run that is pending, running or waiting. What it has done stays done."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("run", metavar="RUN", help="the run's id")
        parser.add_argument("--reason", metavar="TEXT", help="kept in the run's history")
        parser.add_argument("--compensate", action="store_true", help="undo what it has done")

    def run(self, **options: Any) -> None:
        # In one transaction: a worker could have undone everything by the time that we look.
        with asking(), transaction.atomic(using=conf.DATABASE):
            workflows.cancel(
                options["run"], options["reason"], compensate=options["compensate"], by=operator()
            )
            runs = Run.objects.using(conf.DATABASE).filter(pk=arguments.run_id(options["run"]))
            status = runs.values_list("status", flat=True).get()
        what = (
            "is compensating: what it has done is undone" if status == states.COMPENSATING else "is cancelled"
        )
        self.output.line(f"Run {terminal.one_line(options['run'])} {what}.")
