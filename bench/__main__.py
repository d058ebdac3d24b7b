"""`python -m bench [--quick] [--json FILE]`: the benchmarks of this engine alone, as one table."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five sync actions only")
    parser.add_argument("--runs", type=int, default=1000, help="runs of each shape (default 1000)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    parameters = server.prepare()
    from bench import measure

    figures: dict[str, dict[str, float]] = {}

    def take(name: str, one: Callable[[], dict[str, float]]) -> None:
        measure.clear()
        figures[name] = one()
        print(
            f"{name:28s} " + "  ".join(f"{key} {_round(value)}" for key, value in figures[name].items()),
            flush=True,
        )

    runs = options.runs
    take("floor", lambda: measure.commit_rate(parameters))
    take("five sync actions", lambda: measure.backlog(parameters, "five-sync", runs))
    if not options.quick:
        take("five async actions", lambda: measure.backlog(parameters, "five-async", runs))
        take("five sync, 2 processes", lambda: measure.backlog(parameters, "five-sync", runs, processes=2))
        take("twenty parallel actions", lambda: measure.backlog(parameters, "twenty-parallel", runs // 2))
        take("five queued stages", lambda: measure.backlog(parameters, "five-queued-stages", runs // 2))
        take("four compensations", lambda: measure.backlog(parameters, "compensate-four", runs // 2))
        take("a hundred stages", lambda: measure.backlog(parameters, "hundred-stages", runs // 10))
        take("latency, five sync", lambda: measure.latency("five-sync"))
        take("starts", measure.starts)
        take("one event, 1000 waits", measure.waking)
        for size in (10_000, 100_000, 1_000_000):
            data: Any = {"bytes": size}
            count = max(10, runs * 2_000 // size)
            take(
                f"state grows by {size}",
                lambda d=data, n=count: measure.backlog(parameters, "growing", n, data=d),
            )
    plain = figures["five sync actions"]
    ratio = plain["runs_per_s"] * 6 / figures["floor"]["commits_per_s"]
    print(
        f"\n{plain['runs_per_s']:.0f} workflows/s of five empty actions with one worker process. Counted in "
        f"boundaries that is {ratio:.1f} x the {figures['floor']['commits_per_s']:.0f} commits/s of the same "
        f"PostgreSQL on one connection; "
        f"{plain['boundaries_per_commit']:.1f} boundaries a commit."
    )
    if options.json:
        report = {"python": platform.python_version(), "figures": figures}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def _round(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    main()
