"""One run: its tree, its timeline, its data and its history."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse

from workflow import history as histories
from workflow import states, terminal
from workflow.conf import conf
from workflow.consumers.reading import parsed, snapshot
from workflow.dashboard import drawing, reading, timelines
from workflow.dashboard.access import may_manage, page, wants_page
from workflow.definitions import Stage, Tree
from workflow.history import Entry
from workflow.models import Node, Run, Step
from workflow.overview import pause_of_run
from workflow.redact import redact, redact_error, redact_text
from workflow.registry import registry
from workflow.store.workers import unserved_run

LATEST: Final = 100
"""History entries on a run's page, and about a node."""
STEPS: Final = 100
HISTORY_PAGE: Final = 200
LONGEST: Final = 64 * 1024
"""Characters of a JSON value, or a text, that are shown."""
_FACTS: Final = ("fingerprint", "queue", "priority", "idempotency_key")


@page
def run(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """The run's page; with `node=` that node's details are on it."""
    found = _snapshot(run_id)
    facts = _columns(run_id, *_FACTS, "error")
    secrets = histories.secrets_of_run(run_id)
    now = datetime.fromisoformat(found["now"])
    context: dict[str, Any] = {
        "run": found["run"],
        "seq": found["seq"],
        "times": {name: _moment(found["run"][name]) for name in ("created_at", "started_at", "finished_at")},
        "symbol": terminal.SYMBOLS[found["run"]["status"]],
        "took": drawing.took(found["run"]["started_at"], found["run"]["finished_at"], now),
        "correlation": _shown_text(found["run"]["correlation_id"]),
        "facts": {name: _shown_text(facts[name]) for name in ("queue", "priority", "idempotency_key")},
        "error": _shown_error(redact_error(facts["error"], secrets=secrets)),
        "pipelines": drawing.of_run(_tree(found["run"], facts["fingerprint"]), found["nodes"], now),
        "backwards": _goes_back(found["run"], found["nodes"]),
        "progress": _progress(found["nodes"]),
        "entries": [_line(entry) for entry in histories.latest(run_id, LATEST, secrets)],
        "unserved": _unserved(found["run"]),
        "paused": _paused(found["run"]),
        "notice": NOTICES.get(request.GET.get("notice", "")),
        **_commands(request, found),
    }
    if path := request.GET.get("node"):
        context["detail"] = _detail(run_id, path, found)
    return render(request, "workflow/dashboard/run.html", context)


NOTICES: Final[Mapping[str, str]] = {
    "retry": "The run goes on from where it failed.",
    "cancel": "The run is cancelled.",
    "resume": "The run goes on.",
}


@page
def state(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """The snapshot as JSON, for pages that have no socket."""
    return JsonResponse(_snapshot(run_id))


@page
def timeline(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """The bars of the timeline, as JSON: `{"now", "rows": [[path, kind, [[kind, from, to], ...]], ...]}`."""
    found = _snapshot(run_id)
    tree = _tree(found["run"], _columns(run_id, "fingerprint")["fingerprint"])
    for node in found["nodes"]:
        known = tree.by_path.get(node["path"]) if tree is not None else None
        if known is not None and isinstance(known.definition, Stage):
            node["is_wait"] = known.definition.wait_for is not None
    moves = reading.moves(run_id, timelines.MOST_MOVES)
    rows = [
        [track.path, track.kind, track.segments]
        for track in timelines.tracks(found["run"], found["nodes"], moves)
    ]
    return JsonResponse({"now": datetime.fromisoformat(found["now"]).timestamp(), "rows": rows})


@page
def node(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """What there is to know of one node, as a part of the run's page."""
    found = _snapshot(run_id)
    context = {
        "run": found["run"],
        "detail": _detail(run_id, request.GET.get("path", ""), found),
        **_commands(request, found),
    }
    return render(request, "workflow/dashboard/_node.html", context)


@page
def data(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Input, state and context: a part of the run's page, or a page of its own."""
    values = _columns(run_id, "input", "state", "context")
    secrets = histories.secrets_of_run(run_id)
    shown = [
        (name, _shown_json(redact(values[name], secrets=secrets))) for name in ("input", "state", "context")
    ]
    template = "workflow/dashboard/data.html" if wants_page(request) else "workflow/dashboard/_data.html"
    return render(request, template, {"run_id": run_id, "values": shown})


@page
def history(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """All of the history, a page at a time, the oldest entries first."""
    after = histories.place(request.GET.get("after", "0"))
    if after is None:
        return render(
            request, "workflow/dashboard/bad.html", {"message": "after must be a number"}, status=400
        )
    if not _runs(run_id).exists():
        raise Http404("no such run")
    entries, more = histories.page(run_id, after, HISTORY_PAGE)
    context = {
        "run_id": run_id,
        "entries": [_line(entry) for entry in entries],
        "more": more,
        "after": after,
    }
    return render(request, "workflow/dashboard/history.html", context)


# --- the run --------------------------------------------------------------------------------------


def _runs(run_id: UUID) -> Any:
    return Run.objects.using(conf.DATABASE).filter(pk=run_id)


def _columns(run_id: UUID, *names: str) -> dict[str, Any]:
    """Columns of the run's row, which may have been pruned since something else of it was read."""
    found: dict[str, Any] | None = _runs(run_id).values(*names).first()
    if found is None:
        raise Http404("no such run")
    return found


def _snapshot(run_id: UUID) -> dict[str, Any]:
    found = snapshot(run_id)
    if found is None:
        raise Http404("no such run")
    return found


def _tree(run: Mapping[str, Any], fingerprint: str) -> Tree | None:
    workflow = registry.serves(run["workflow"], run["version"])
    if workflow is None or workflow.tree.fingerprint != fingerprint:
        return None
    return workflow.tree


def _unserved(run: Mapping[str, Any]) -> str:
    """Why no live worker will go on with the run; empty when one will, or when it is over."""
    found = unserved_run(UUID(run["id"])) if run["status"] in states.RUN_LIVE else None
    return "" if found is None else terminal.one_line(found.reason)


def _paused(run: Mapping[str, Any]) -> str:
    """That the run's queue is paused, until when and why; empty when it is not, or when the run is over."""
    found = pause_of_run(UUID(run["id"])) if run["status"] in states.RUN_LIVE else None
    return "" if found is None else terminal.pause_line(found)


def _goes_back(run: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the run undoes, or has undone, what it did."""
    if run["status"] in (states.COMPENSATING, states.COMPENSATED):
        return True
    return any(node["status"] == states.COMPENSATED or "compensate_attempt" in node for node in nodes)


def _progress(nodes: list[dict[str, Any]]) -> tuple[int, int]:
    """(leaves that are over, leaves)."""
    parents = {node["parent"] for node in nodes}
    leaves = [node for node in nodes if node["path"] not in parents]
    return sum(node["status"] not in states.NODE_LIVE for node in leaves), len(leaves)


def _commands(request: HttpRequest, found: Mapping[str, Any]) -> dict[str, Any]:
    """What may be done with the run now, by this user."""
    status = found["run"]["status"]
    manage = may_manage(request)
    # A stage that waits for an event, or a handler, of a compensation too, that is suspended in a step.
    parked = any("parked" in node for node in found["nodes"])
    back = any("compensate_attempt" in n or n["status"] == states.COMPENSATED for n in found["nodes"])
    return {
        "may_manage": manage,
        "can_cancel": manage and status in states.RUN_FORWARD,
        "can_retry": manage and status == states.FAILED and not back,
        "can_resume": manage and status in states.RUN_PARKED and parked,
    }


# --- a node ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class AttemptLine:
    """One attempt: when it began and ended, and how."""

    number: int
    began: str
    ended: str = ""
    outcome: str = "running"
    error: str = ""


@dataclass(slots=True)
class Detail:
    """All about one node."""

    path: str
    kind: str
    status: str
    symbol: str
    facts: list[tuple[str, str]]
    output: str
    error: dict[str, str] | None
    attempts: list[AttemptLine] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    marks: list[drawing.Mark] = field(default_factory=list)
    link: str = ""


def _detail(run_id: UUID, path: str, found: Mapping[str, Any]) -> Detail:
    if "\0" in path:
        raise Http404("no such node")
    row = Node.objects.using(conf.DATABASE).filter(run_id=run_id, path=path).first()
    if row is None:
        raise Http404("no such node")
    secrets = histories.secrets_of_run(run_id)
    rows = reading.node_history(run_id, path, LATEST)
    entries = histories.shown(
        [Entry(r["seq"], r["name"], r["node"], r["at"], parsed(r["data"])) for r in rows], secrets
    )
    steps = Step.objects.using(conf.DATABASE).filter(run_id=run_id, node_id=row.id).order_by("created_at")
    return Detail(
        path=row.path,
        kind=row.kind,
        status=row.status,
        symbol=terminal.SYMBOLS.get(row.status, "?"),
        facts=_facts(row, secrets),
        output="" if row.output is None else _shown_json(redact(row.output, secrets=secrets)),
        error=_shown_error(redact_error(row.error, secrets=secrets)),
        attempts=_attempts(entries),
        entries=[_line(entry) for entry in reversed(entries)],
        steps=[
            _step(step, secrets) for step in steps.only("key", "kind", "status", "attempt", "phase")[:STEPS]
        ],
        marks=_declared(found["run"], path),
        link=reverse("workflow_dashboard:retry", args=[run_id]),
    )


def _facts(row: Node, secrets: Iterable[str]) -> list[tuple[str, str]]:
    # What a wait correlates by may be a secret of the run's own.
    correlation = redact_text(row.wait_correlation or "", secrets=secrets)
    facts = [
        ("attempts", str(row.attempt) if row.attempt else ""),
        ("attempts to undo", str(row.compensate_attempt) if row.compensate_attempt else ""),
        ("progress", f"{row.progress:g} %" if row.progress is not None else ""),
        ("started", terminal.moment(row.started_at) if row.started_at else ""),
        ("finished", terminal.moment(row.finished_at) if row.finished_at else ""),
        ("next at", terminal.moment(row.due_at) if row.due_at else ""),
        ("waits for", _shown_text(row.wait_event)),
        ("correlation", _shown_text(correlation)),
        ("until", terminal.moment(row.wait_until) if row.wait_until else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _attempts(entries: Iterable[Entry]) -> list[AttemptLine]:
    """The attempts of which the entries tell; the last outcome of a number wins."""
    lines: list[AttemptLine] = []
    for entry in entries:
        given = entry.data or {}
        if entry.name == states.EVENT_ACTION_STARTED:
            lines.append(AttemptLine(int(given.get("attempt") or len(lines) + 1), terminal.moment(entry.at)))
        elif lines and entry.name in (
            states.EVENT_ACTION_COMPLETED,
            states.EVENT_ACTION_RETRYING,
            states.EVENT_ACTION_FAILED,
        ):
            line = lines[-1]
            line.ended = terminal.moment(entry.at)
            line.outcome = "completed" if entry.name == states.EVENT_ACTION_COMPLETED else "failed"
            line.error = terminal.error_line(given.get("error"), 500)
    return lines


def _declared(run: Mapping[str, Any], path: str) -> list[drawing.Mark]:
    workflow = registry.serves(run["workflow"], run["version"])
    known = workflow.tree.by_path.get(path) if workflow is not None else None
    return drawing.marks_of(known.definition) if known is not None else []


def _step(step: Step, secrets: Iterable[str]) -> dict[str, Any]:
    return {
        "key": terminal.one_line(redact_text(step.key, secrets=secrets), 200),
        "kind": step.kind,
        "status": step.status,
        "attempt": step.attempt,
        "phase": step.phase,
    }


# --- texts ----------------------------------------------------------------------------------------


def _line(entry: Entry) -> dict[str, Any]:
    """A history entry on one line."""
    return {
        "seq": entry.seq,
        "name": terminal.one_line(entry.name, 60),
        "node": _shown_text(entry.node),
        "at": terminal.moment(entry.at),
        "text": entry_text(entry.data),
    }


def entry_text(given: Mapping[str, Any] | None) -> str:
    """What an entry's data say, in a few words: what somebody wrote first. `run.js` says the same."""
    if not given:
        return ""
    parts = []
    if given.get("message"):
        parts.append(terminal.one_line(given["message"], 300))
    if given.get("error"):
        parts.append(terminal.error_line(given["error"], 300))
    fields = given.get("fields")
    for name, value in {**given, **(fields if isinstance(fields, dict) else {})}.items():
        if name in _SAID or value is None:
            continue
        parts.append(f"{terminal.one_line(_WORDS.get(name, name), 40)} {_few_words(name, value)}".strip())
    return " · ".join(parts)


_SAID: Final = ("message", "error", "fields", "delay")
_WORDS: Final = {"due_at": "next at", "from_node": "from", "event_id": "event"}


def _few_words(name: str, value: Any) -> str:
    if name == "due_at" and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return terminal.moment(datetime.fromisoformat(value))
    if name == "progress":
        return f"{value} %"
    if value is True:
        return ""
    return terminal.one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 120)


def _shown_text(value: object) -> str:
    return "" if value is None else terminal.one_line(value, 255)


def _shown_json(value: Any) -> str:
    text = "\n".join(terminal.json_lines(value))
    return (
        text if len(text) <= LONGEST else f"{text[:LONGEST]}\n… and {len(text) - LONGEST:,} characters more"
    )


def _shown_error(error: Any) -> dict[str, str] | None:
    if not isinstance(error, dict):
        return None
    traceback = "\n".join(terminal.printable(line) for line in str(error.get("traceback") or "").splitlines())
    others = error.get("compensation_failures")
    return {
        "code": terminal.one_line(error.get("code") or "ERROR", 60),
        "node": _shown_text(error.get("node")),
        "type": _shown_text(error.get("type")),
        "message": "\n".join(
            terminal.printable(line) for line in str(error.get("message") or "")[:LONGEST].splitlines()
        ),
        "traceback": traceback[-LONGEST:],
        "others": "\n".join(terminal.error_line(one, 300) for one in others)
        if isinstance(others, list)
        else "",
    }


def _moment(value: str | None) -> str:
    return terminal.moment(datetime.fromisoformat(value)) if value else ""
