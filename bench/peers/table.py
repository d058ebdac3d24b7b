"""Medians over the rounds, ratios within them, and the table that shows both."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.peers import environments

Rounds = dict[str, list[dict[str, Any]]]

COLUMNS = (
    ("workflows/s, drained", ("drain", "workflows_s"), 0),
    ("live", ("live", "workflows_s"), 0),
    ("starts/s", ("drain", "starts_s"), 0),
    ("first step p50 ms", ("latency", "first_step_p50_ms"), 1),
    ("end p50 ms", ("latency", "end_p50_ms"), 1),
    ("worker CPU ms", ("drain", "worker_cpu_ms_per_workflow"), 2),
    ("server CPU ms", ("drain", "server_cpu_ms_per_workflow"), 2),
    ("commits", ("drain", "commits_per_workflow"), 2),
    ("statements", ("drain", "statements_per_workflow"), 2),
    ("WAL kB", ("drain", "wal_kb_per_workflow"), 1),
)
OURS = ("ours, plain", "ours, async")


def summarise(found: Rounds, floors: Sequence[float]) -> dict[str, Any]:
    """Medians of each engine, and how many times its throughput ours is: the median of the rounds' ratios."""
    engines: dict[str, Any] = {}
    for label, rounds in found.items():
        if not rounds:
            continue
        engines[label] = {
            "setup": rounds[0]["setup"],
            "workflows": rounds[0]["workflows"],
            "rounds": len(rounds),
            **{
                phase: _medians(rounds, phase) for phase in ("drain", "live", "latency") if phase in rounds[0]
            },
        }
    return {
        "floor_commits_s": statistics.median(floors),
        "engines": engines,
        "ratios": {ours: _ratios(found, ours) for ours in OURS if found.get(ours)},
    }


def _medians(rounds: Sequence[dict[str, Any]], phase: str) -> dict[str, float]:
    return {
        name: statistics.median(one[phase][name] for one in rounds if phase in one and name in one[phase])
        for name in rounds[0][phase]
    }


def _throughput(one: dict[str, Any]) -> float:
    """Drained, or live where there is no backlog to drain."""
    return float((one.get("drain") or one["live"])["workflows_s"])


def _ratios(found: Rounds, ours: str) -> dict[str, dict[str, float]]:
    ratios: dict[str, dict[str, float]] = {}
    for label, rounds in found.items():
        pairs = list(zip(found[ours], rounds, strict=False))
        if not pairs or label == ours:
            continue
        ratios[label] = {"throughput": statistics.median(_throughput(a) / _throughput(b) for a, b in pairs)}
        timed = [(a["latency"], b["latency"]) for a, b in pairs if "latency" in a and "latency" in b]
        for name in ("first_step_p50_ms", "end_p50_ms"):
            if timed:
                ratios[label][name] = statistics.median(a[name] / b[name] for a, b in timed)
        starts = [(a, b) for a, b in pairs if "drain" in a and "drain" in b]
        if starts:
            ratios[label]["starts"] = statistics.median(
                a["drain"]["starts_s"] / b["drain"]["starts_s"] for a, b in starts
            )
    return ratios


def rows(summary: dict[str, Any]) -> list[list[str]]:
    """The table, its head first."""
    out = [["", *(title for title, _, _ in COLUMNS)]]
    for label, engine in summary["engines"].items():
        version = environments.version_of(label.split()[0].rstrip(",").lower()) if _is_peer(label) else ""
        cells = [f"{label} {version}".strip()]
        for _, (phase, name), digits in COLUMNS:
            value = _cell(engine, phase, name)
            cells.append("" if value is None else f"{value:,.{digits}f}")
        out.append(cells)
    return out


def _cell(engine: dict[str, Any], phase: str, name: str) -> float | None:
    """Costs of an engine that has no backlog to drain are those of its live phase."""
    if phase == "drain" and phase not in engine and name.endswith("_per_workflow"):
        phase = "live"
    value: float | None = engine.get(phase, {}).get(name)
    return value


def _is_peer(label: str) -> bool:
    return not label.startswith(("ours", "rawpg"))


def markdown(summary: dict[str, Any]) -> str:
    """The table for the documentation."""
    head, *body = rows(summary)
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---|" * (len(head) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    return "\n".join(lines)


def text(summary: dict[str, Any]) -> str:
    """The table and the ratios for a terminal."""
    table = rows(summary)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = []
    for label, *cells in table:
        numbers = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([label.ljust(widths[0]), *numbers]))
    lines.append(
        f"\none row updated and committed at a time, one connection: {summary['floor_commits_s']:,.0f}/s"
    )
    for ours, ratios in summary["ratios"].items():
        lines.append(f"\n{ours}, as a multiple (median of the rounds' ratios):")
        for label, ratio in ratios.items():
            lines.append(
                f"  {label:28s}" + "  ".join(f"{name} x {value:.2f}" for name, value in ratio.items())
            )
    return "\n".join(lines)


def one_line(measured: dict[str, Any]) -> str:
    """One round of one engine."""
    drain, live, latency = (measured.get(phase, {}) for phase in ("drain", "live", "latency"))
    cost = drain or live
    return (
        f"drain {drain.get('workflows_s', 0):6.0f}/s  live {live['workflows_s']:6.0f}/s  "
        f"starts {cost['starts_s']:6.0f}/s  first {latency.get('first_step_p50_ms', 0):6.1f} ms  "
        f"end {latency.get('end_p50_ms', 0):6.1f} ms  CPU {cost['worker_cpu_ms_per_workflow']:5.2f} + "
        f"{cost['server_cpu_ms_per_workflow']:5.2f} ms"
    )
