"""A run's history as a person may see it: read in order, masked as all else of the run is."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from workflow.blanks import Blanks
from workflow.conf import conf
from workflow.errors import RunNotFound
from workflow.models import Node, Run, RunEvent
from workflow.redact import masks, redact_entry, secrets_of, under_its_key

MOST: Final = 1_000
"""Entries of one page, at most."""
MAX_SEQ: Final = 2**31 - 1


class Entry(NamedTuple):
    """One entry. ``node`` is a path; ``data`` is what the event of that name carries, or None."""

    seq: int
    name: str
    node: str | None
    at: datetime
    data: dict[str, Any] | None


def place(text: str) -> int | None:
    """The number of an entry, or 0, that a query string says in at most ten plain digits; None for all else.

    Looked at before ``int`` is asked, which takes digits of any script, signs and underscores, and raises for thousands
    of digits.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SEQ))):
        return None
    found = int(text)
    return found if found <= MAX_SEQ else None


def page(run_id: UUID, after: int, limit: int) -> tuple[list[Entry], int | None]:
    """At most ``limit`` entries later than ``after``, and the ``after`` of the next page, if there is more.

    Raises ``RunNotFound``.
    """
    if not _runs(run_id).exists():
        raise RunNotFound(f"no run has the id {run_id}")
    found = _rows(run_id, after, "seq", limit + 1)
    entries = shown(found[:limit], secrets_of_run(run_id))
    return entries, entries[-1].seq if len(found) > limit else None


def latest(run_id: UUID, count: int, secrets: Iterable[str]) -> list[Entry]:
    """The last ``count`` entries, the newest first; ``secrets`` are those of the run."""
    return shown(_rows(run_id, 0, "-seq", count), secrets)


def secrets_of_run(run_id: UUID) -> Blanks:
    """What is masked in the run's data and must not be seen in its texts either."""
    run = _runs(run_id).values_list("workflow", "input", "state", "context").first() if masks() else None
    if run is None or not masks(run[0]):
        return Blanks()
    workflow, given, *others = run
    nodes = Node.objects.using(conf.DATABASE).filter(run_id=run_id, output__isnull=False)
    outputs = [under_its_key(path, output) for path, output in nodes.values_list("path", "output")]
    return secrets_of(under_its_key("input", given), *others, *outputs, workflow=workflow)


def shown(entries: Iterable[Entry], secrets: Iterable[str]) -> list[Entry]:
    """The entries, masked."""
    return [
        entry._replace(data=None if entry.data is None else redact_entry(entry.data, secrets))
        for entry in entries
    ]


def _runs(run_id: UUID) -> Any:
    return Run.objects.using(conf.DATABASE).filter(pk=run_id)


def _rows(run_id: UUID, after: int, order: str, limit: int) -> list[Entry]:
    entries = RunEvent.objects.using(conf.DATABASE).filter(run_id=run_id, seq__gt=after).order_by(order)
    return [Entry(*row) for row in entries.values_list("seq", "name", "node", "at", "data")[:limit]]
