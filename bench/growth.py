"""The same figures in empty tables, and in tables with a past or with many runs that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench import history, measure
from bench.measure import Figures, Place

Take = Callable[[str, Callable[[], Figures]], Figures]
ROUNDS = 3


def growth(place: Place, sizes: list[int], waiting: int, runs: int, take: Take) -> dict[str, Any]:
    """Figures for each number of finished runs, ascending, and then with parked and sleeping runs beside."""
    found: dict[str, Any] = {}
    measure.clear()
    found["0"] = _figures(place, "empty tables", runs, take)
    had = 0
    for size in sizes:
        take(f"adding {size - had:,} finished runs", lambda n=size - had: _timed(lambda: history.finished(n)))
        had = size
        found[str(size)] = _figures(place, f"{size:,} finished", runs, take)
        found[str(size)]["gigabytes"] = sum(measure.sizes().values()) / 2**30
    if waiting:
        measure.clear()
        before = _figures(place, "empty tables again", runs, take)
        take(f"adding {waiting:,} waiting runs", lambda: _timed(lambda: history.parked(waiting)))
        take(f"adding {waiting:,} sleeping runs", lambda: _timed(lambda: history.asleep(waiting)))
        label = f"{waiting:,} waiting + {waiting:,} sleeping"
        found["waiting"] = {
            "waiting": waiting,
            "sleeping": waiting,
            "before": before,
            "after": _figures(place, label, runs, take),
        }
    return found


def _figures(place: Place, label: str, runs: int, take: Take) -> Figures:
    """The best of a few rounds: what the tables cost, not what else the machine had to do meanwhile."""
    rounds = [
        take(f"{label}, five sync", lambda: measure.backlog(place, "five-sync", runs)) for _ in range(ROUNDS)
    ]
    best = max(rounds, key=lambda figures: figures["runs_s"])
    figures = {
        "runs_s": best["runs_s"],
        "worker_cpu_ms": min(one["worker_cpu_ms"] for one in rounds),
        "server_cpu_ms": min(one["server_cpu_ms"] for one in rounds),
        "wal_kb": min(one["wal_kb"] for one in rounds),
        "commits": min(one["commits"] for one in rounds),
    }
    latency = take(f"{label}, latency", lambda: measure.latency("five-sync", 50))
    figures["latency_p50_ms"] = latency["p50_ms"]
    figures["latency_min_ms"] = latency["min_ms"]
    started = take(f"{label}, starts", lambda: measure.starts(500))
    # What it started is worked off, so that the next measurement does not find it.
    take(f"{label}, worked off", lambda: measure.backlog(place, "five-sync", 50))
    return {**figures, **started}


def _timed(act: Callable[[], None]) -> Figures:
    import time

    began = time.perf_counter()
    act()
    return {"seconds": time.perf_counter() - began}
