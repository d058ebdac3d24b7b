"""The list of runs, and what goes on beside it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from workflow import states, terminal, viewing, workflows
from workflow.conf import conf
from workflow.dashboard import filters, reading
from workflow.dashboard.access import page
from workflow.dashboard.charts import chart
from workflow.times import aware

OVERVIEW_AGE = 2.0
HOUR_AGE = 10.0
DAY_AGE = 60.0
"""Seconds that counts and charts are kept for, whoever asks."""
MOST_PAUSED = 20
"""Paused queues that are named."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One line of the list."""

    id: str
    workflow: str
    version: int
    status: str
    symbol: str
    correlation: str
    created_at: datetime
    age: str
    took: str
    error: str


@page
def runs(request: HttpRequest) -> HttpResponse:
    """The page, or with `fragment` only what moves on it. An unknown filter is 400."""
    try:
        asked = filters.parse(request.GET)
    except filters.BadFilter as error:
        return render(request, "workflow/dashboard/bad.html", {"message": str(error)}, status=400)
    context: dict[str, Any] = {"filters": asked, "given": asked.given, "overview": overview()}
    try:
        context["page"] = found = reading.runs(asked)
        now = datetime.now(UTC)
        seen = viewing.viewable(request.user, [row["id"] for row in found.rows])
        context["rows"] = [_row(row, now) for row in found.rows if row["id"] in seen]
        context["hidden"] = len(seen) < len(found.rows)
        if found.rows:
            context["newer"] = asked.query(newer=found.rows[0]["id"]) if found.has_newer else None
            context["older"] = asked.query(older=found.rows[-1]["id"]) if found.has_older else None
    except reading.TookTooLong:
        context["too_long"] = True
    if "fragment" in request.GET:
        return render(request, "workflow/dashboard/_runs.html", context)
    context["names"] = reading.kept("workflows", reading.NAMES_AGE, reading.workflows_with_runs)
    context["statuses"] = [filters.LIVE, *states.RUN_STATUSES]
    context["ages"] = [(key, text) for key, (text, _, _) in filters.AGES.items()]
    return render(request, "workflow/dashboard/runs.html", context)


def _row(row: reading.Row, now: datetime) -> RunRow:
    created, started, ended = (_time(row[name]) for name in ("created_at", "started_at", "finished_at"))
    assert created is not None
    place = terminal.one_line(row["failed_node"], 120) if row["failed_node"] else ""
    code = terminal.one_line(row["code"], 60) if row["code"] else ""
    return RunRow(
        id=str(row["id"]),
        workflow=row["workflow"],
        version=row["version"],
        status=row["status"],
        symbol=terminal.SYMBOLS.get(row["status"], "?"),
        correlation=terminal.one_line(row["correlation_id"], 80) if row["correlation_id"] is not None else "",
        created_at=created,
        age=terminal.duration((now - created).total_seconds()),
        took=terminal.duration(((ended or now) - started).total_seconds()) if started else "",
        error=f"{code} in {place}" if code and place else code,
    )


def _time(value: datetime | None) -> datetime | None:
    return None if value is None else aware(value, conf.DATABASE)


def overview() -> dict[str, Any]:
    """Counts, charts, the oldest due job, pauses and the workers; the same for everybody, so read once for all."""
    paused = reading.kept("paused", OVERVIEW_AGE, workflows.paused_queues)
    workers = [_worker(one) for one in reading.kept("workers", OVERVIEW_AGE, reading.workers)]
    return {
        "counts": [
            {
                "status": c.status,
                "symbol": terminal.SYMBOLS[c.status],
                "text": _number(c.number, c.exact),
                "exact": c.exact,
            }
            for c in reading.kept("counts", OVERVIEW_AGE, reading.counts)
        ],
        "charts": [
            chart("last hour", reading.kept("hour", HOUR_AGE, lambda: reading.endings(60, 60))),
            chart("last day", reading.kept("day", DAY_AGE, lambda: reading.endings(1800, 48))),
        ],
        "due": _due(reading.kept("due", OVERVIEW_AGE, reading.oldest_due)),
        "paused": [terminal.pause_line(pause) for pause in paused[:MOST_PAUSED]],
        "paused_more": max(len(paused) - MOST_PAUSED, 0),
        "workers": workers,
        "silent": sum(1 for one in workers if one["silent"]),
        "alive": sum(1 for one in workers if not one["silent"]),
    }


def _number(number: int, exact: bool) -> str:
    if exact:
        return f"{number:,}"
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"~{number / size:.3g}{unit}"
    return f"{number:,}+"


def _due(found: tuple[str, float, str] | None) -> dict[str, str] | None:
    if found is None:
        return None
    queue, seconds, kind = found
    return {"queue": terminal.one_line(queue, 80), "late": terminal.duration(seconds), "kind": kind}


def _worker(worker: Any) -> dict[str, Any]:
    serves = [one for one in worker.serves if isinstance(one, dict)]
    silence = reading.silence(worker)
    return {
        "silent": "" if silence is None else terminal.duration(silence),
        "id": str(worker.id),
        "name": f"{terminal.one_line(worker.hostname, 60)}:{worker.pid}",
        "units": worker.held,
        "concurrency": worker.concurrency,
        "abandoned": worker.abandoned_threads,
        "queues": ", ".join(terminal.one_line(queue, 60) for queue in worker.queues) or "all queues",
        "serves": [terminal.one_line(f"{one.get('name')} v{one.get('version')}", 120) for one in serves],
    }
