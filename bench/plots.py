"""`python -m bench.plots`: draws docs/performance/*.svg from docs/performance/results.json.

Needs matplotlib (`pip install 'django-saga[plots]'`). What has not been measured yet is not drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.axes import Axes

from bench import results

FOLDER = results.FILE.parent
INK, SECOND = "#1f5fa8", "#c2571a"


def main() -> None:
    mpl.rcParams.update({
        "svg.hashsalt": "django-saga",  # the same figures give the same file
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.3,
    })  # fmt: skip
    measured = results.read()
    for name, part, draw in (
        ("concurrency", "engine", _concurrency),
        ("load", "engine", _load),
        ("history", "growth", _history),
        ("peers", "peers", _peers),
    ):
        if part in measured:
            print(_save(name, measured[part], draw))


def _save(name: str, measured: dict[str, Any], draw: Callable[[Axes, dict[str, Any]], None]) -> Path:
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    draw(axes, measured)
    path = FOLDER / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def _concurrency(axes: Axes, engine: dict[str, Any]) -> None:
    """Throughput over units at once."""
    points = _points(engine["concurrency"])
    axes.plot([x for x, _ in points], [y["runs_s"] for _, y in points], "o-", color=INK)
    axes.set(
        title="Throughput over concurrency, five empty actions, one process",
        xlabel="units at once",
        ylabel="workflows a second",
        xscale="log",
        ylim=(0, None),
    )


def _load(axes: Axes, engine: dict[str, Any]) -> None:
    """Latency over arrivals."""
    points = _points(engine["load"])
    for name, label, colour in (("p50_ms", "median", INK), ("p99_ms", "99 of 100", SECOND)):
        axes.plot([x for x, _ in points], [y[name] for _, y in points], "o-", color=colour, label=label)
    axes.set(
        title="Dispatch to completed over load, five empty actions",
        xlabel="workflows dispatched a second",
        ylabel="milliseconds",
        yscale="log",
    )
    axes.legend(frameon=False)


def _history(axes: Axes, growth: dict[str, Any]) -> None:
    """Cost over the number of finished runs in the tables."""
    points = _points({size: figures for size, figures in growth.items() if size.isdigit()})
    labels = [f"{size:,.0f}" for size, _ in points]
    worker = [figures["worker_cpu_ms"] for _, figures in points]
    axes.bar(labels, worker, width=0.5, color=INK, label="worker")
    axes.bar(
        labels,
        [f["server_cpu_ms"] for _, f in points],
        width=0.5,
        bottom=worker,
        color=SECOND,
        label="server",
    )
    axes.set(
        title="CPU of a workflow over the history beside it",
        xlabel="finished runs in the tables",
        ylabel="ms",
    )
    axes.legend(frameon=False)


def _peers(axes: Axes, peers: dict[str, Any]) -> None:
    """Throughput of each engine."""
    rates = {
        label: (engine.get("drain") or engine["live"])["workflows_s"]
        for label, engine in peers["engines"].items()
    }
    ordered = sorted(rates.items(), key=lambda item: item[1])
    colours = [INK if label.startswith("ours") else "#9aa5b1" for label, _ in ordered]
    bars = axes.barh([label for label, _ in ordered], [rate for _, rate in ordered], color=colours)
    axes.bar_label(bars, fmt="{:,.0f}", padding=3)
    axes.set(title="Workflows a second, five empty steps, one worker process")
    axes.grid(visible=False)


def _points(by_number: dict[str, Any]) -> list[tuple[float, Any]]:
    return sorted((float(key), value) for key, value in by_number.items())


if __name__ == "__main__":
    main()
