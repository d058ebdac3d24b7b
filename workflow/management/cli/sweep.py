"""workflow:sweep"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser
from django.db import close_old_connections

from workflow import sweeps
from workflow.conf import conf
from workflow.management.base import WorkflowCommand, database_trouble, look_for_tables
from workflow.management.stopping import told_to_stop
from workflow.terminal import one_line


class Command(WorkflowCommand):
    help = "Looks for stale leases, expired waits and stuck runs, as each worker does, until it is stopped."

    requires_system_checks = "__all__"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="one pass, then leave")

    def run(self, **options: Any) -> None:
        if options["once"]:
            self._report(_sweep(), always=True)
            return
        with told_to_stop() as stopped:
            while not stopped.is_set():
                self._pass(verbose=options["verbosity"] > 1)
                stopped.wait(conf.SWEEP_INTERVAL)

    def _pass(self, verbose: bool) -> None:
        """One pass of many: a database that is away for a while is said so, and tried again next time."""
        close_old_connections()
        try:
            self._report(_sweep(), always=verbose)
        except Exception as error:
            if (reason := database_trouble(error)) is None:
                raise
            self.stderr.write(one_line(reason))

    def _report(self, counts: Mapping[str, int], always: bool) -> None:
        found = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in counts.items() if count)
        if found or always:
            self.output.line(found or "Nothing to do.")


def _sweep() -> dict[str, int]:
    # A sweep logs its errors and goes on; without a database, or tables in it, there is nothing to go on with.
    look_for_tables()
    return sweeps.run_once()
