"""What a person sees of runs in a terminal: trees and tables, with colours on a terminal and plain elsewhere.

All text that comes from runs is treated as hostile: it is shown character by character as it is,
never read as markup, and what would steer a terminal (escape sequences, NUL, bidirectional
overrides, line breaks) appears as an escape such as ``\\x1b``. What `WORKFLOW["REDACT"]` masks has
been masked before it comes here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.utils import timezone
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from workflow import failures, states, texts
from workflow.results import NodeInfo, PausedQueueInfo, RunInfo, RunStatus

_BAR_WIDTH: Final = 20
_LINE: Final = 200
"""Characters of an error that are shown beside its node; `detail` shows the whole."""

_COLOURS: Final = {
    states.PENDING: "bright_black",
    states.RUNNING: "cyan",
    states.WAITING: "magenta",
    states.COMPENSATING: "yellow",
    states.SKIPPED: "bright_black",
    states.COMPLETED: "green",
    states.COMPENSATED: "yellow",
    states.FAILED: "bold red",
    states.CANCELLED: "bright_black",
}
_FACT_STYLES: Final = {"error": "red", "workers": "yellow", "queue": "yellow"}
SYMBOLS: Final[Mapping[str, str]] = {
    states.PENDING: "·",
    states.RUNNING: "▸",
    states.WAITING: "◷",
    states.COMPENSATING: "↶",
    states.SKIPPED: "↷",
    states.COMPLETED: "✓",
    states.COMPENSATED: "↶",
    states.FAILED: "✗",
    states.CANCELLED: "⊘",
}
"""A character for each status, of runs and nodes, in a terminal and on pages alike; `run.js` has the same."""


# Text


printable = texts.printable
one_line = texts.one_line


def pause_line(pause: PausedQueueInfo) -> str:
    """That a queue is paused, until when, by whom and why, on one printable line."""
    end = "" if pause.until is None else f" until {moment(pause.until)}"
    by = f" by {pause.by}" if pause.by else ""
    why = f": {pause.reason}" if pause.reason else ""
    return one_line(f'the queue "{pause.queue}" is paused{end}{by}{why}')


def json_lines(value: Any) -> list[str]:
    """A JSON value, indented, as printable lines."""
    return [printable(line) for line in json.dumps(value, indent=2, ensure_ascii=False).splitlines()]


def moment(value: datetime | None) -> str:
    """A time in the current time zone, to the second; "-" for None."""
    if value is None:
        return "-"
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    return f"{local:%Y-%m-%d %H:%M:%S}"


def duration(seconds: float) -> str:
    """Seconds in two units at most: 0.12s, 3.4s, 2m 05s, 1h 30m, 3d 04h."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.2g}s" if 0 < seconds < 1 else f"{max(seconds, 0.0):.1f}s"
    whole = round(seconds)
    for unit, size, smaller, smaller_size in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // smaller_size:02d}{smaller}"
    return f"{whole}s"


def elapsed(thing: RunInfo | NodeInfo, now: datetime) -> str:
    """How long it took, or has taken until now; empty for what never started."""
    seconds = _seconds_between(thing.started_at, thing.finished_at or now)
    return "" if seconds is None else duration(seconds)


def _seconds_between(start: datetime | None, end: datetime) -> float | None:
    if start is None or timezone.is_aware(end) != timezone.is_aware(start):
        return None
    return (end - start).total_seconds()


def error_line(error: Any, limit: int = _LINE) -> str:
    """A run's or node's error as "CODE: message"; empty when there is none."""
    if not isinstance(error, dict):
        return one_line(error, limit) if error else ""
    return one_line(f"{error.get('code') or 'ERROR'}: {failures.told(error)}".rstrip(": "), limit)


def bar(percent: float) -> str:
    """A progress bar in plain characters: [#####---------------]  25%."""
    share = min(max(percent, 0.0), 100.0) / 100
    filled = int(share * _BAR_WIDTH)
    return f"[{'#' * filled}{'-' * (_BAR_WIDTH - filled)}] {share:4.0%}"


def leaves(nodes: Sequence[NodeInfo]) -> list[NodeInfo]:
    """The nodes with nothing beneath them: actions, and stages that wait."""
    parents = {node.parent for node in nodes}
    return [node for node in nodes if node.path not in parents]


def done_share(nodes: Sequence[NodeInfo]) -> tuple[int, int]:
    """(leaves that are over, leaves)."""
    all_leaves = leaves(nodes)
    return sum(node.status not in states.NODE_LIVE for node in all_leaves), len(all_leaves)


# One run


def run_facts(run: RunInfo, now: datetime, unserved: str = "", paused: str = "") -> list[tuple[str, str]]:
    """What there is to say of a run as a whole, as (label, printable text).

    `unserved` says, in one line, why no worker will take it, and `paused` that none may; empty when one will.
    """
    facts = [
        ("run", printable(run.id)),
        ("workflow", printable(f"{run.workflow} v{run.version}")),
        ("status", printable(run.status)),
    ]
    if unserved:
        facts.append(("workers", one_line(unserved)))
    if paused:
        facts.append(("queue", one_line(paused)))
    if run.correlation_id is not None:
        facts.append(("correlation", printable(run.correlation_id)))
    facts.append(("created", moment(run.created_at)))
    if run.started_at is not None:
        facts.append(("started", moment(run.started_at)))
    if run.finished_at is not None:
        took = elapsed(run, now)
        facts.append(("finished", moment(run.finished_at) + (f" (took {took})" if took else "")))
    if run.error:
        facts.append(("error", _error_with_place(run.error)))
    return facts


def _error_with_place(error: Any) -> str:
    node = error.get("node") if isinstance(error, dict) else None
    return error_line(error, 500) + (f" (in {one_line(node)})" if node else "")


def node_notes(node: NodeInfo, now: datetime) -> list[str]:
    """What stands behind a node's status: attempts, duration, progress, error."""
    notes = []
    if took := elapsed(node, now):
        notes.append(took)
    if node.attempt > 1 or (node.attempt == 1 and node.status == states.RUNNING):
        notes.append(f"attempt {node.attempt}")
    if node.progress is not None and node.status in states.NODE_LIVE:
        notes.append(bar(node.progress))
    return notes


def _own_error(node: NodeInfo) -> str:
    """A node's error; empty for one that merely has failed because something beneath it has, and says so there."""
    place = node.error.get("node") if isinstance(node.error, dict) else None
    return "" if str(place).startswith(f"{node.path}.") else error_line(node.error)


def _name(node: NodeInfo) -> str:
    return printable(node.path.rpartition(".")[2])


def run_lines(
    status: RunStatus, now: datetime, detail: bool = False, unserved: str = "", paused: str = ""
) -> list[str]:
    """A run and its tree as plain printable lines, indented by two for each level."""
    lines = [f"{label:<12} {text}" for label, text in run_facts(status.run, now, unserved, paused)]
    rows = [("  " * node.path.count(".") + _name(node), node) for node in status.nodes]
    width = min(max((len(name) for name, _ in rows), default=0), 60)
    lines += [""] if rows else []
    for name, node in rows:
        notes = "  ".join(part for part in (*node_notes(node, now), _own_error(node)) if part)
        lines.append(f"{name:<{width}}  {printable(node.status):<11}  {notes}".rstrip())
    return lines + (detail_lines(status) if detail else [])


def detail_lines(status: RunStatus) -> list[str]:
    """Input, state, outputs and tracebacks of a run as plain printable lines."""
    lines: list[str] = []
    values = [("input", status.run.input), ("state", status.run.state)]
    values += [
        (f"output of {node.path}", node.output) for node in leaves(status.nodes) if node.output is not None
    ]
    for title, value in values:
        lines += ["", f"{printable(title)}:", *("  " + line for line in json_lines(value))]
    for title, traceback in _tracebacks(status):
        text = [printable(line) for line in traceback.splitlines()]
        lines += ["", f"traceback of {printable(title)}:", *("  " + line for line in text)]
    return lines


def _tracebacks(status: RunStatus) -> list[tuple[str, str]]:
    """(the node where it happened, its traceback), each once: what is around a failed node carries the same error."""
    errors = [*((node.path, node.error) for node in status.nodes), ("the run", status.run.error)]
    found: dict[tuple[str, str], None] = {}
    for path, error in errors:
        if isinstance(error, dict) and error.get("traceback"):
            found[str(error.get("node") or path), str(error["traceback"])] = None
    return list(found)


def run_view(
    status: RunStatus,
    now: datetime,
    rows: int | None = None,
    ascii_only: bool = False,
    unserved: str = "",
    paused: str = "",
) -> RenderableType:
    """A run and its tree in colours. When it has more than `rows` lines, stages that went well are folded."""
    grid = Table.grid(padding=(0, 2))
    for label, text in run_facts(status.run, now, unserved, paused):
        style = _COLOURS.get(text, "") if label == "status" else _FACT_STYLES.get(label, "")
        grid.add_row(Text(label, style="bright_black"), Text(text, style=style, overflow="fold"))
    done, total = done_share(status.nodes)
    if total and status.run.status in states.RUN_LIVE:
        share = Text(bar(100 * done / total), style="cyan").append(
            f"  {done} of {total}", style="bright_black"
        )
        grid.add_row(Text("done", style="bright_black"), share)
    fold = rows is not None and len(status.nodes) + grid.row_count + 1 > rows
    return Group(grid, Text(), *_trees(status.nodes, now, fold, ascii_only))


def _trees(nodes: Sequence[NodeInfo], now: datetime, fold: bool, ascii_only: bool) -> list[Tree]:
    below: dict[str, int] = {}
    for node in nodes:
        if node.parent is not None:
            below[node.parent] = below.get(node.parent, 0) + 1
    roots: list[Tree] = []
    shown: dict[str, Tree] = {}
    folded: set[str] = set()
    for node in nodes:
        if node.parent in folded:
            folded.add(node.path)
            continue
        label = _label(node, now, ascii_only)
        if fold and below.get(node.path) and node.status in states.NODE_DONE:
            folded.add(node.path)
            label.append(f"  (+{below[node.path]})", style="bright_black")
        parent = shown.get(node.parent) if node.parent is not None else None
        tree = parent.add(label) if parent is not None else Tree(label, guide_style="bright_black")
        shown[node.path] = tree
        if parent is None:
            roots.append(tree)
    return roots


def _label(node: NodeInfo, now: datetime, ascii_only: bool) -> Text:
    colour = _COLOURS.get(node.status, "")
    label = Text(overflow="fold")
    if not ascii_only:
        label.append(SYMBOLS.get(node.status, "?") + " ", style=colour)
    label.append(_name(node), style="" if node.kind == states.ACTION else "bold")
    label.append("  " + printable(node.status), style=colour)
    for note in node_notes(node, now):
        label.append("  " + note, style="cyan" if note.startswith("[") else "bright_black")
    if error := _own_error(node):
        label.append("  " + error, style="red")
    return label


# Many runs

_HEADINGS: Final = ("RUN", "WORKFLOW", "STATUS", "CREATED", "TOOK", "CORRELATION", "ERROR")
_CUT: Final = ("WORKFLOW", "CORRELATION", "ERROR")
"""Columns that a narrow terminal may cut; ids stay whole, to be copied."""


def _row(run: RunInfo, now: datetime) -> tuple[str, ...]:
    error = run.error.get("code") if isinstance(run.error, dict) else run.error
    return (
        printable(run.id),
        printable(f"{run.workflow} v{run.version}"),
        printable(run.status),
        moment(run.created_at),
        elapsed(run, now) or "-",
        one_line(run.correlation_id, 80) if run.correlation_id is not None else "-",
        one_line(error, 60) if error else "-",
    )


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of printable cells as plain lines with aligned columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def runs_lines(runs: Iterable[RunInfo], now: datetime) -> list[str]:
    """Runs as plain lines with aligned columns, headings first."""
    return columns([_HEADINGS, *(_row(run, now) for run in runs)])


def runs_view(runs: Sequence[RunInfo], now: datetime) -> Table:
    """Runs as a table in colours. To fit a usual terminal it tells ages instead of times, and no empty columns."""
    rows = [list(_row(run, now)) for run in runs]
    for row, run in zip(rows, runs, strict=True):
        row[3] = duration(_seconds_between(run.created_at, now) or 0.0)
    headings = [heading.replace("CREATED", "AGE") for heading in _HEADINGS]
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    kept = [index for index in range(len(headings)) if any(row[index] != "-" for row in rows)]
    for index in kept:
        # rich shrinks only columns that may wrap; the cells below then cut instead of wrapping.
        table.add_column(headings[index], no_wrap=headings[index] not in _CUT)
    for row, run in zip(rows, runs, strict=True):
        cells = [Text(cell, no_wrap=True, overflow="ellipsis") for cell in row]
        cells[2].stylize(_COLOURS.get(run.status, ""))
        cells[6].stylize("red")
        table.add_row(*(cells[index] for index in kept))
    return table


# Changes, one line each


def run_line(run: RunInfo, now: datetime) -> str:
    """That a run, one of many, was seen to be in a status."""
    what = printable(f"run {run.id}  {run.workflow} v{run.version}  {run.status}")
    return f"{moment(now)[11:]}  {what}  {error_line(run.error)}".rstrip()


def changes(before: RunStatus | None, after: RunStatus, now: datetime) -> list[str]:
    """What is different between two looks at a run, one plain line for each node and for the run itself.

    Times are those of this machine's clock: when it was seen, not when it happened. A node's error is told when it
    is new and when the node fails of it, and not with what the next attempt does.
    """
    old = {node.path: (node.status, node.attempt, node.progress) for node in before.nodes} if before else {}
    errors = {node.path: node.error for node in before.nodes} if before else {}
    lines = []
    for node in after.nodes:
        if before is None and node.status == states.PENDING:
            continue
        if old.get(node.path) == (node.status, node.attempt, node.progress):
            continue
        told = node.status != states.FAILED and node.error == errors.get(node.path)
        notes = "  ".join(part for part in (*node_notes(node, now), "" if told else _own_error(node)) if part)
        lines.append(
            f"{moment(now)[11:]}  {printable(node.path)}  {printable(node.status)}  {notes}".rstrip()
        )
    if before is None or before.run.status != after.run.status:
        error = error_line(after.run.error)
        what = f"run {printable(after.run.id)}  {printable(after.run.status)}"
        lines.append(f"{moment(now)[11:]}  {what}  {error}".rstrip())
    return lines
