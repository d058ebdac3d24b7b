"""`python -m bench`: the benchmarks of this engine alone, as a table; writes docs/performance/results.json.

Without options some minutes. `--growth` measures in tables with 100,000 and 1,000,000 finished runs instead, and with
50,000 waiting and 50,000 sleeping ones: some minutes and some gigabytes. `--preload N`: the same with N finished runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench import machine, results, server

Figures = dict[str, float]
CONCURRENCIES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
RATES = (10, 50, 100, 200, 400, 600)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five sync actions only; writes nothing")
    parser.add_argument("--runs", type=int, default=1000, help="runs of the plain shape (default 1000)")
    parser.add_argument("--growth", action="store_true", help="in tables with a past")
    parser.add_argument("--preload", type=int, action="append", metavar="N", help="finished runs; repeatable")
    parser.add_argument(
        "--waiting", type=int, metavar="N", help="also with so many waiting and sleeping runs"
    )
    parser.add_argument(
        "--no-write", action="store_true", help="leave docs/performance/results.json as it is"
    )
    asked = parser.parse_args()
    began = time.monotonic()
    with server.scratch() as dsn:
        from bench import measure

        place = measure.Place.of(dsn)
        grows = asked.growth or asked.preload or asked.waiting
        found = _growth(place, asked) if grows else _engine(place, asked)
        facts = machine.facts(dsn)
    print(f"\n{time.monotonic() - began:.0f} s in all")
    if not (asked.no_write or asked.quick):
        results.write("growth" if grows else "engine", found, facts)


def take(name: str, one: Callable[[], Figures]) -> Figures:
    """Measures one thing and prints it."""
    figures = one()
    cells = "  ".join(f"{key} {_round(value)}" for key, value in figures.items())
    print(f"{name:34s} {cells}", flush=True)
    return figures


def _growth(place: Any, asked: argparse.Namespace) -> dict[str, Any]:
    from bench.growth import growth

    sizes = sorted(asked.preload or ([100_000, 1_000_000] if asked.growth else []))
    waiting = asked.waiting or (50_000 if asked.growth else 0)
    return growth(place, sizes, waiting, asked.runs, take)


def _engine(place: Any, asked: argparse.Namespace) -> dict[str, Any]:
    from bench import measure

    runs = asked.runs

    def fresh(name: str, one: Callable[..., Figures], *arguments: Any, **options: Any) -> Figures:
        measure.clear()
        return take(name, partial(one, *arguments, **options))

    found: dict[str, Any] = {"floor": fresh("floor", measure.commit_rate, place)}
    plain = fresh("five sync actions", measure.backlog, place, "five-sync", runs)
    shapes = found["shapes"] = {"five sync actions": plain}
    if not asked.quick:
        for name, workflow, count, options in _shapes(runs):
            shapes[name] = fresh(name, measure.backlog, place, workflow, count, **options)
        found["latency"] = fresh("latency, five sync", measure.latency, "five-sync")
        found["latency_async"] = fresh("latency, five async", measure.latency, "five-async")
        found["starts"] = fresh("starts", measure.starts)
        found["waking"] = fresh("one event, 1000 waits", measure.waking)
        found["in_flight"] = fresh("200 runs in flight", measure.boundaries_in_flight, place)
        found["disk"] = fresh("disk", measure.disk)
        found["memory"] = fresh("memory", measure.memory, (1000, 10_000, 30_000))
        found["state"] = {
            str(size): fresh(f"state grows by {size}", _growing, place, size, runs) for size in STATES
        }
        found["concurrency"] = {
            str(units): fresh(
                f"{units} units",
                measure.backlog,
                place,
                "five-sync",
                min(runs, 40 * units + 100),
                concurrency=units,
            )
            for units in CONCURRENCIES
        }
        found["load"] = {str(rate): fresh(f"{rate} a second", measure.under_load, rate) for rate in RATES}
    _conclude(plain, found["floor"])
    return found


STATES = (0, 10_000, 100_000, 1_000_000)


def _growing(place: Any, size: int, runs: int) -> Figures:
    from bench import measure

    count = max(5, min(runs, runs * 2_000 // max(size, 1)))
    return measure.backlog(place, "growing", count, data={"bytes": size})


def _shapes(runs: int) -> list[tuple[str, str, int, dict[str, Any]]]:
    two = {"processes": 2}
    return [
        ("five async actions", "five-async", runs, {}),
        ("five sync, 2 processes", "five-sync", 2 * runs, two),
        ("five async, 2 processes", "five-async", 2 * runs, two),
        ("twenty parallel actions", "twenty-parallel", runs // 3, {}),
        ("five queued stages", "five-queued-stages", runs // 2, {}),
        ("four compensations", "compensate-four", runs // 2, {}),
        ("a hundred stages", "hundred-stages", runs // 10, {}),
    ]


def _conclude(plain: Figures, floor: Figures) -> None:
    boundaries = plain["runs_s"] * 6 / floor["commits_s"]
    print(
        f"\n{plain['runs_s']:.0f} workflows/s of five empty actions with one worker process: counted in boundaries, "
        f"{boundaries:.1f} x the {floor['commits_s']:.0f} commits/s of the same PostgreSQL on one connection; "
        f"{plain['boundaries_per_commit']:.1f} boundaries a commit."
    )


def _round(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    main()
