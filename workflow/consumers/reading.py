"""What sockets and live pages read, as JSON-able values, masked. On Django's connection."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from django.db import connections

from workflow import history, progress, states
from workflow.conf import conf
from workflow.history import Entry
from workflow.redact import masks, redact_error
from workflow.sql import live as sql
from workflow.times import aware

REPLAY: Final = 1_000
"""Entries that are replayed; whoever has missed more gets a snapshot."""
RECENT: Final = 50

_IN_A_LIST: Final = ("attempt", "progress", "due_at")
"""What of an entry's data the socket of all runs shows: no text that somebody wrote."""

Frame = dict[str, Any]


def snapshot(run_id: UUID) -> Frame | None:
    """A run and its nodes, without payloads; None when there is none."""
    rows = _rows(sql.SNAPSHOT, {"run": run_id})
    if not rows or rows[0]["id"] != run_id:
        return None
    secrets = history.secrets_of_run(run_id)
    run, nodes = rows[0], rows[1:]
    return {
        "type": "snapshot",
        "seq": run["seq"],
        "now": _text(run["now"]),
        "run": _run(run, secrets),
        "nodes": [_node(node, secrets) for node in nodes],
    }


def recent() -> Frame:
    """The newest runs."""
    rows = _rows(sql.RECENT, {"limit": RECENT})
    # With their own payloads unread there is nothing to mask their texts by, so these are left out.
    runs = [{**_run(row, ()), "error": _coded(parsed(row["error"])), "seq": row["seq"]} for row in rows]
    return {"type": "snapshot", "now": datetime.now(UTC).isoformat(), "runs": runs}


def replay(run_id: UUID, after: int) -> list[Frame] | None:
    """The entries later than `after`; None when that is too many, or when there can be no such entry."""
    entries, more = history.page(run_id, after, REPLAY)
    if more is not None:
        return None
    if not entries and after > 0 and not _rows(sql.HAS_ENTRY, {"run": run_id, "seq": after}):
        return None
    return [frame(run_id, entry) for entry in entries]


def frame(run_id: UUID | str, entry: Entry) -> Frame:
    """An entry as it is sent."""
    return progress.message(run_id, entry.seq, entry.name, entry.node, _text(entry.at), entry.data)


def masked(message: Frame, secrets: Iterable[str]) -> Frame:
    """A message of the channel layer, fit to be shown."""
    fixed = ("type", "name", "run_id", "seq", "node", "at")
    data = {key: value for key, value in message.items() if key not in fixed}
    if not data or not masks():
        return message
    entry = Entry(message["seq"], message["name"], message["node"], message["at"], data)
    return {**{key: message[key] for key in fixed}, **(history.shown([entry], secrets)[0].data or {})}


def brief(message: Frame) -> Frame:
    """A message as the socket of all runs sends it."""
    short = {key: message.get(key) for key in ("type", "name", "run_id", "seq", "node", "at")}
    short.update((key, message[key]) for key in _IN_A_LIST if key in message)
    if "error" in message:
        short["error"] = _coded(message["error"])
    return short


def _coded(error: Any) -> Any:
    return {"code": error.get("code"), "type": error.get("type")} if isinstance(error, dict) else None


def _run(row: dict[str, Any], secrets: Iterable[str]) -> Frame:
    return {
        "id": str(row["id"]),
        "workflow": row["workflow"],
        "version": row["version"],
        "status": row["status"],
        "error": redact_error(parsed(row["error"]), secrets=secrets),
        "correlation_id": row["correlation_id"],
        **{name: _text(row[name]) for name in ("created_at", "started_at", "finished_at")},
    }


def _node(row: dict[str, Any], secrets: Iterable[str]) -> Frame:
    node = {name: row[name] for name in ("path", "kind", "status", "attempt", "progress")}
    node["parent"] = row["path"].rpartition(".")[0] or None
    node["error"] = redact_error(parsed(row["error"]), secrets=secrets)
    node["started_at"], node["finished_at"] = _text(row["started_at"]), _text(row["finished_at"])
    if row["compensate_attempt"]:
        node["compensate_attempt"] = row["compensate_attempt"]
    if row["parked"]:
        node["parked"] = True
    if row["status"] in states.NODE_LIVE:
        for name in ("due_at", "wait_until"):
            if row[name] is not None:
                node[name] = _text(row[name])
        if row["wait_event"] is not None:
            node["wait_event"] = row["wait_event"]
    return node


def _rows(statement: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute(statement, parameters)
        names: Sequence[str] = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def parsed(value: Any) -> Any:
    """A jsonb column, which some connections leave as text."""
    return json.loads(value) if isinstance(value, str | bytes) else value


def _text(value: Any) -> str | None:
    """A time as text with its zone."""
    if not isinstance(value, datetime):
        return None if value is None else str(value)
    return aware(value, conf.DATABASE).isoformat()
