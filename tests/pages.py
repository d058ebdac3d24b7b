"""What pages cost in a database with a past: `python -m tests.pages [RUNS]`.

Makes a database of its own with so many finished runs (a million by default) of three nodes each, a thousand runs that
are due, and two of 20,000 history entries: a large one of 1,001 nodes and a huge one of 10,001. Asks each page, address
and command for what it shows, six times over, and prints the queries, and the milliseconds of the first time and of
the median. Exits with 1 if a median is above a second.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import sys
import time
from collections.abc import Callable
from uuid import UUID

BOUND = 1.0
TIMES = 6
Look = Callable[[], int]
"""Does it, and tells how many bytes came of it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pages", description=__doc__)
    parser.add_argument("runs", nargs="?", type=int, default=1_000_000, help="finished runs (1,000,000)")
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    os.environ.setdefault("LOG_LEVEL", "ERROR")
    import django

    django.setup()
    from django.test.utils import setup_databases, setup_test_environment, teardown_databases

    setup_test_environment()
    made = setup_databases(verbosity=0, interactive=False)
    try:
        return _measure(options.runs)
    finally:
        teardown_databases(made, verbosity=0)


def _measure(count: int) -> int:
    from tests.support import past

    begun = time.monotonic()
    past.finished(count, nodes=3)
    past.due(1_000)
    runs = {"<large>": past.large(500, 20_000), "<huge>": past.large(5_000, 20_000)}
    print(f"{count:,} runs, {3 * count:,} nodes in {time.monotonic() - begun:.0f} s\n", flush=True)
    print(f"{'':58} queries  first ms  median ms      kB")
    worst = 0.0
    for name, look in _looks(runs).items():
        queries, seconds, size = _cost(look)
        worst = max(worst, statistics.median(seconds))
        first, median = seconds[0] * 1000, statistics.median(seconds) * 1000
        print(f"{name:58} {queries:7} {first:9.0f} {median:10.0f} {size / 1000:7.0f}", flush=True)
    print(f"\nThe slowest median is {worst * 1000:.0f} ms.")
    return 0 if worst <= BOUND else 1


def _cost(look: Look) -> tuple[int, list[float], int]:
    """(queries, seconds of each time, bytes). What pages keep for some seconds is forgotten between two times."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from workflow.dashboard import reading

    seconds = []
    for _ in range(TIMES):
        reading.forget()
        begun = time.perf_counter()
        size = look()
        seconds.append(time.perf_counter() - begun)
    reading.forget()
    with CaptureQueriesContext(connection) as asked:
        look()
    return len(asked), seconds, size


def _looks(runs: dict[str, UUID]) -> dict[str, Look]:
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    from workflow.consumers import reading
    from workflow.models import Run

    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    middle = Run.objects.filter(correlation_id="customer-100").order_by("id")[0].pk
    known = {**runs, "<old>": middle, "<begin>": str(middle)[:8]}

    def get(address: str) -> Look:
        for name, text in known.items():
            address = address.replace(name, str(text))

        def look() -> int:
            response = client.get(address)
            assert response.status_code == 200, (address, response.status_code)
            return len(response.content)

        return look

    def command(*arguments: str) -> Look:
        def look() -> int:
            out = io.StringIO()
            call_command(*arguments, stdout=out)
            return len(out.getvalue())

        return look

    def snapshot(read: Callable[[], object]) -> Look:
        return lambda: len(repr(read()))

    return {
        **{address: get(address) for address in ADDRESSES},
        "socket of all runs, snapshot": snapshot(reading.recent),
        "socket of <large>, snapshot": snapshot(lambda: reading.snapshot(runs["<large>"])),
        "socket of <huge>, snapshot": snapshot(lambda: reading.snapshot(runs["<huge>"])),
        "workflow:list": command("workflow:list"),
        "workflow:list --status failed": command("workflow:list", "--status", "failed"),
        "workflow:status <huge>": command("workflow:status", str(runs["<huge>"])),
        "workflow:top": command("workflow:top"),
    }


ADDRESSES = [
    "/dashboard/",
    "/dashboard/?fragment=1",
    "/dashboard/?workflow=past-order",
    "/dashboard/?status=failed",
    "/dashboard/?status=live",
    "/dashboard/?correlation=customer-100",
    "/dashboard/?age=1d",
    "/dashboard/?age=older-1d",
    "/dashboard/?workflow=past-refund&status=failed",
    "/dashboard/?workflow=past-large-500&status=failed",
    "/dashboard/?workflow=past-mail&age=1d&status=compensated",
    "/dashboard/?q=customer-100",
    "/dashboard/?q=key-100",
    "/dashboard/?q=nothing-like-it",
    "/dashboard/?q=<old>",
    "/dashboard/?q=<begin>",
    "/dashboard/?older=<old>",
    "/dashboard/?status=failed&older=<old>",
    "/dashboard/<large>/",
    "/dashboard/<large>/state/",
    "/dashboard/<large>/timeline/",
    "/dashboard/<large>/node/?path=past-large-500.s400",
    "/dashboard/<large>/data/",
    "/dashboard/<large>/history/",
    "/dashboard/<large>/history/?after=19000",
    "/dashboard/definitions/past-large-500/",
    "/admin/workflow/run/",
    "/admin/workflow/run/?status__exact=failed",
    "/admin/workflow/run/?workflow__exact=past-mail",
    "/admin/workflow/run/?created=week&status__exact=completed",
    "/admin/workflow/run/?q=customer-100",
    "/admin/workflow/run/?q=key-100",
    "/admin/workflow/run/?q=<old>",
    "/admin/workflow/run/<huge>/change/",
    "/admin/workflow/node/",
    "/admin/workflow/node/?q=<huge>",
    "/admin/workflow/job/",
    "/admin/workflow/event/",
    "/admin/workflow/worker/",
    "/workflow/",
    "/workflow/?status=failed&limit=1000",
    "/workflow/?workflow=past-order",
    "/workflow/?correlation=customer-100&after=<old>",
    "/workflow/<huge>/",
    "/workflow/<huge>/history/?after=19000",
]
"""Lists with each of their filters, and the pages of one run; the names in brackets stand for ids."""


if __name__ == "__main__":
    sys.exit(main())
