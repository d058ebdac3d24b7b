"""`python -m bench.worker`: the product's worker, with a clock on each boundary. Reports in one line of JSON.

The clock is all that is added: the committer is the product's own.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from array import array
from pathlib import Path
from typing import Any

KEPT = 20_000


def main() -> None:
    import django

    django.setup()
    from django.core.management import call_command

    from workflow.store.committer import Committer
    from workflow.store.settle import Settlement
    from workflow.worker import process

    committers: list[Committer] = []
    took = array("d")
    seen = 0

    def remember(seconds: float) -> None:
        """Keeps the latest: what is kept must not look like a worker that grows."""
        nonlocal seen
        if len(took) < KEPT:
            took.append(seconds)
        else:
            took[seen % KEPT] = seconds
        seen += 1

    class Timed(Committer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            committers.append(self)

        async def settle(self, settlement: Settlement) -> Settlement:
            began = time.perf_counter()
            settled = await super().settle(settlement)
            remember(time.perf_counter() - began)
            return settled

    process.Committer = Timed  # type: ignore[misc]
    call_command("workflow:worker")
    ordered = sorted(took)
    print(
        json.dumps(
            {
                "boundaries": sum(committer.boundaries for committer in committers),
                "commits": sum(committer.commits for committer in committers),
                "boundary_p50_ms": _percentile(ordered, 0.5),
                "boundary_p99_ms": _percentile(ordered, 0.99),
                "boundary_max_ms": _percentile(ordered, 1.0),
                "peak_rss_mb": _peak(),
            }
        ),
        flush=True,
    )


def _percentile(ordered: list[float], share: float) -> float:
    return 1000 * ordered[round(share * (len(ordered) - 1))] if ordered else 0.0


def _peak() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bench.settings")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    main()
