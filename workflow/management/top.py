"""What `workflow:top` shows of an Overview: tables in colours on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from workflow.overview import Overview, QueueInfo, Rates, Served, WorkerInfo
from workflow.terminal import columns, duration, moment, one_line, pause_line, printable

Row = tuple[str, ...]

_RATES: Final = (
    "RUNS PER MINUTE",
    "DISPATCHED",
    "STARTED",
    "COMPLETED",
    "FAILED",
    "COMPENSATED",
    "CANCELLED",
)
_QUEUES: Final = ("QUEUE", "DUE", "LEASED", "LATER", "OLDEST DUE", "WORKERS")
_WORKERS: Final = ("HOST", "PID", "UNITS", "SEEN", "UP", "QUEUES", "SERVES")
_SILENT: Final = "silent for"
_SERVES: Final = 120
"""Characters of what a worker serves; `--json` has all of it."""

_UNSERVED: Final = 3
"""Lines about runs that nobody serves, on a terminal."""

_PAUSED: Final = 5
"""Lines about queues that are paused, on a terminal."""


def lines(seen: Overview) -> list[str]:
    """All of it as plain printable lines."""
    shown = [f"{moment(seen.at)}  {_summary(seen)}"]
    for headings, rows in _tables(seen):
        shown += ["", *columns([headings, *rows])]
    if seen.unserved:
        shown += ["", *(one_line(runs.message) for runs in seen.unserved)]
    if seen.paused:
        shown += ["", *(pause_line(pause) for pause in seen.paused)]
    return shown


def view(seen: Overview) -> RenderableType:
    """The same in colours. What nobody looks after is told first, since a small screen cuts off the end."""
    parts: list[RenderableType] = [
        Text(f"{moment(seen.at)}  ", style="bright_black").append(_summary(seen), style="default")
    ]
    parts += [Text(one_line(runs.message), style="yellow") for runs in seen.unserved[:_UNSERVED]]
    if len(seen.unserved) > _UNSERVED:
        parts.append(Text(f"and {len(seen.unserved) - _UNSERVED} more like this", style="yellow"))
    parts += [Text(pause_line(pause), style="yellow") for pause in seen.paused[:_PAUSED]]
    if len(seen.paused) > _PAUSED:
        parts.append(Text(f"and {len(seen.paused) - _PAUSED} more queues are paused", style="yellow"))
    for headings, rows in _tables(seen):
        table = Table(box=None, pad_edge=False, header_style="bright_black")
        for heading in headings:
            table.add_column(heading, no_wrap=heading != headings[-1])
        for row in rows:
            table.add_row(
                *(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row), style=_style(headings, row)
            )
        parts += [Text(), table]
    return Group(*parts)


def _style(headings: Row, row: Row) -> str:
    """A queue that has due jobs and no worker stands out, and so does a silent worker."""
    if headings is _WORKERS and row[3].startswith(_SILENT):
        return "yellow"
    return "red" if headings is _QUEUES and row[1] != "0" and row[5] == "0" else ""


def _tables(seen: Overview) -> Iterable[tuple[Row, list[Row]]]:
    yield _RATES, [_rates_row(rates) for rates in seen.rates]
    if seen.queues:
        yield _QUEUES, [_queue_row(queue) for queue in seen.queues]
    if seen.workers:
        yield _WORKERS, [_worker_row(worker, seen) for worker in seen.workers]


def _summary(seen: Overview) -> str:
    alive = [worker for worker in seen.workers if not worker.silent]
    count, silent = len(alive), len(seen.workers) - len(alive)
    units, slots = sum(w.units for w in alive), sum(w.concurrency for w in alive)
    workers = f"{count} worker{'' if count == 1 else 's'} alive" if count else "no worker is alive"
    workers += f", {silent} silent" if silent else ""
    busy = f", {units} of {slots} slots busy" if count else ""
    oldest = "nothing is due" if seen.oldest_due is None else f"oldest due job {duration(seen.oldest_due)}"
    return f"{workers}{busy}; {oldest}"


def _rates_row(rates: Rates) -> Row:
    counts = (
        rates.dispatched,
        rates.started,
        rates.completed,
        rates.failed,
        rates.compensated,
        rates.cancelled,
    )
    minutes = rates.seconds / 60
    window = "last minute" if minutes == 1 else f"last {minutes:g} minutes"
    return (window, *(_per_minute(count) for count in counts))


def _per_minute(count: float) -> str:
    """Whole numbers from ten on; below that, three runs in five minutes are 0.6."""
    return "0" if count == 0 else f"{count:.1f}" if count < 10 else f"{count:.0f}"


def _queue_row(queue: QueueInfo) -> Row:
    more = "+" if queue.more else ""
    return (
        one_line(queue.name, 40),
        f"{queue.due}{more if queue.due else ''}",
        str(queue.leased),
        f"{queue.later}{more if queue.later else ''}",
        "-" if queue.oldest_due is None else duration(queue.oldest_due),
        str(queue.workers),
    )


def _worker_row(worker: WorkerInfo, seen: Overview) -> Row:
    units = f"{worker.units}/{worker.concurrency}"
    if worker.abandoned_threads:
        units += f" ({worker.abandoned_threads} abandoned)"
    return (
        one_line(worker.host, 40),
        str(worker.pid),
        units,
        f"{_SILENT} {duration(worker.seen_seconds)}"
        if worker.silent
        else f"{duration(worker.seen_seconds)} ago",
        duration((seen.at - worker.started_at).total_seconds()),
        one_line(", ".join(worker.queues), 60) if worker.queues else "all",
        one_line(", ".join(_served(entry) for entry in worker.serves), _SERVES)
        if worker.serves
        else "nothing",
    )


def _served(entry: Served) -> str:
    older = "".join(f", v{version}" for version in entry.compatible)
    return printable(f"{entry.name} v{entry.version}{f' ({older[2:]})' if older else ''}")
