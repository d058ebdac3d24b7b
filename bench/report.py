"""`python -m bench.report`: writes the tables of the documentation from docs/performance/results.json.

docs/performance/figures.md is written whole; in README.md and docs/performance/README.md what stands between
`<!-- measured -->` and `<!-- /measured -->` is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from bench import results
from bench.peers import table

FOLDER = results.FILE.parent
ROOT = FOLDER.parent.parent
BLOCK = re.compile(r"(<!-- measured -->\n).*?(<!-- /measured -->)", re.DOTALL)
HEAD = """# Figures

Written by `python -m bench.report` from [results.json](results.json); what they mean is told [here](README.md).
"""


def main() -> None:
    measured = results.read()
    parts = [HEAD]
    if "engine" in measured:
        parts += _engine(measured["engine"])
    if "growth" in measured:
        parts += _growth(measured["growth"])
    if "peers" in measured:
        parts += [
            "## Beside other engines\n",
            _of(measured["peers"]),
            table.markdown(measured["peers"]),
            _ratios(measured["peers"]),
        ]
        block = f"{_of(measured['peers'])}\n{table.markdown(measured['peers'])}\n"
        for page in (ROOT / "README.md", FOLDER / "README.md"):
            page.write_text(BLOCK.sub(lambda found: found[1] + block + found[2], page.read_text()))
    (FOLDER / "figures.md").write_text("\n".join(parts))


def _of(part: dict[str, Any]) -> str:
    machine = part["machine"]
    server = machine["postgresql"]
    return (
        f"Measured on {part['measured_on']}: {machine['cpus']} CPUs, Python {machine['python']}, "
        f"PostgreSQL {server['server_version']}, synchronous_commit {server['synchronous_commit']}.\n"
    )


def _engine(engine: dict[str, Any]) -> Iterable[str]:
    columns = (
        "runs_s",
        "transitions_per_run",
        "transitions_s",
        "cpu_us_per_transition",
        "worker_cpu_ms",
        "server_cpu_ms",
        "commits",
        "boundaries_per_commit",
        "wal_kb",
    )
    yield "## The engine alone\n"
    yield _of(engine)
    yield f"One row updated and committed at a time, on one connection: {engine['floor']['commits_s']:,.0f} a second.\n"
    yield _table("shape", columns, engine["shapes"])
    for title, name in (
        ("Units at once", "concurrency"),
        ("Dispatched a second", "load"),
        ("Bytes that each of five actions adds to the state", "state"),
    ):
        if name in engine:
            first = next(iter(engine[name].values()))
            wanted = [
                column for column in first if column not in ("transitions_per_run", "runs", "offered_s")
            ]
            yield _table(title, wanted, dict(sorted(engine[name].items(), key=lambda item: float(item[0]))))
    for name in ("latency", "latency_async", "starts", "waking", "in_flight", "disk", "memory"):
        if name in engine:
            yield _table(name.replace("_", " "), list(engine[name]), {"": engine[name]})


def _growth(growth: dict[str, Any]) -> Iterable[str]:
    yield "## In tables with a past\n"
    yield _of(growth)
    sizes = {f"{int(size):,} finished runs": figures for size, figures in growth.items() if size.isdigit()}
    columns = list(dict.fromkeys(column for figures in sizes.values() for column in figures))
    yield _table("", columns, sizes)
    if beside := growth.get("waiting"):
        label = f"{beside['waiting']:,} waiting and {beside['sleeping']:,} sleeping runs"
        yield _table("", list(beside["before"]), {"empty tables": beside["before"], label: beside["after"]})


def _ratios(peers: dict[str, Any]) -> str:
    lines = []
    for ours, ratios in peers["ratios"].items():
        columns = list(dict.fromkeys(name for ratio in ratios.values() for name in ratio))
        lines.append(_table(f"{ours}, as a multiple of", columns, ratios))
    return "\n".join(lines)


def _table(title: str, columns: Iterable[str], rows: dict[str, dict[str, float]]) -> str:
    columns = list(columns)
    lines = ["| " + " | ".join([title, *(column.replace("_", " ") for column in columns)]) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    lines += [
        "| " + " | ".join([label, *(_cell(figures.get(column)) for column in columns)]) + " |"
        for label, figures in rows.items()
    ]
    return "\n".join(lines) + "\n"


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


if __name__ == "__main__":
    main()
