"""`manage.py shop_demo`: all the example orders through real workers, one of which is killed."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from rich.console import Console

from example_project.shop.books import audit
from example_project.shop.children import Workers
from example_project.shop.demo import BRANCH, QUEUE, Demo, DemoFailed
from example_project.shop.screen import LiveScreen, PlainScreen, print_checks, runs_by_kind
from workflow.models import Node

# By default a worker that has gone silent for five minutes is given up. Nobody wants to watch that.
QUICK_LEASES = {"HEARTBEAT_INTERVAL": 1, "STALE_LEASE_THRESHOLD": 6, "SWEEP_INTERVAL": 1}
LOCK = 0x53484F50  # any number that means "a demo is running on this database"


class Command(BaseCommand):
    help = "Runs the example orders through real workers, kills one of them, and checks the shop's books."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
        parser.add_argument("--limit", type=float, default=120.0, help="give up after so many seconds (120)")
        parser.add_argument("--no-kill", action="store_true", help="let all workers live")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["workers"] < 1 or options["limit"] <= 0:
            raise CommandError("--workers and --limit must be positive")
        # rich reads the terminal's width by itself; elsewhere lines may be as long as they need to be.
        console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 140, highlight=False)
        screen = LiveScreen(console) if console.is_terminal else PlainScreen(console)
        try:
            with leaving_on_signals() as heed, only_one_at_a_time():
                # Their own queue, and the default one: that is where published events are handed out.
                with Workers("--queue", QUEUE, "default", workflow_settings=QUICK_LEASES) as workers, screen:
                    kill = not options["no_kill"]
                    demo = Demo(workers, screen, options["workers"], options["limit"], kill=kill, heed=heed)
                    demo.run(prefix=secrets.token_hex(2).upper())
                self.report(console, demo)
        except DemoFailed as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("interrupted; the workers were ended", returncode=130) from None

    def report(self, console: Console, demo: Demo) -> None:
        """Prints what became of the orders and the books; CommandError unless everything adds up."""
        if not console.is_terminal:
            statuses = Counter((kind, demo.statuses[run]) for run, (_, kind) in demo.orders_by_run.items())
            console.print("", runs_by_kind(statuses, console.width), sep="\n")
        total = Counter(demo.statuses.values())
        console.print(
            f"\n{total['completed']} completed, {total['compensated']} compensated, "
            f"{total['failed'] + total['cancelled']} failed. The books:\n"
        )
        checks = audit(BRANCH, demo.ended())
        print_checks(console, checks)
        # Not shown itself: there may be a password in it.
        here = ", with DATABASE_URL set as it is now" if os.environ.get("DATABASE_URL", "").strip() else ""
        console.print(f"\nLook at a run{here}:\n")
        for text, run in runs_to_look_at(demo):
            # Not indented: the command fits 80 columns then, and what is copied is whole.
            console.print(f"# {text}\n{python()} manage.py workflow:status {run}", soft_wrap=True)
        console.print()
        if wrong := sum(not check.holds for check in checks):
            raise CommandError(f"the books do not balance: {wrong} of {len(checks)} checks are wrong")


def runs_to_look_at(demo: Demo) -> Iterator[tuple[str, UUID]]:
    """Up to three runs that show something."""
    by_kind = {kind: run for run, (_, kind) in demo.orders_by_run.items()}
    yield "shipped with the third request to the carrier", by_kind["flaky-carrier"]
    yield "undone from the last step back to the first", by_kind["undeliverable"]
    # Best one in which the kill can be seen: an action other than the flaky one has more than one attempt.
    again = Node.objects.filter(run__in=demo.orphans, attempt__gt=1).exclude(path__endswith=".ship.ship")
    for run in [*again.values_list("run_id", flat=True)[:1], *demo.orphans][:1]:
        yield "was in the hands of the worker that was killed", run


def python() -> str:
    """This interpreter, as one would type it here."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


@contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Two demos would empty each other's shelves. The lock is gone when this process is, however it ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [LOCK])
        if not cursor.fetchone()[0]:
            raise CommandError("another shop_demo is running on this database")
        try:
            yield
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK])


@contextmanager
def leaving_on_signals() -> Iterator[Callable[[], None]]:
    """SIGTERM and SIGHUP end this process as Ctrl-C does, so that no worker is left behind.

    One that comes in the middle of a statement leaves the connection in no state for the next one. What is raised then
    on the way out is no failure of the demo's. And one that comes while an object is being finalised, as each instance
    of a model is with Django 6.1, is heard by nobody: what is yielded raises it once more, to be called now and then,
    and Python need not print it.
    """
    told = False

    def leave(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = True
        raise KeyboardInterrupt

    def heed() -> None:
        if told:
            raise KeyboardInterrupt

    def ignored(lost: sys.UnraisableHookArgs) -> None:
        if not (told and lost.exc_type is KeyboardInterrupt):
            report(lost)

    report, sys.unraisablehook = sys.unraisablehook, ignored
    before = {
        number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield heed
    except Exception as error:
        if told:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = report
