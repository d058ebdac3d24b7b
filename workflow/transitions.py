"""Tells the receivers of `workflow.signals.transitioned` what has happened, after the commit that wrote it.

A hint like every other way to hear of history: a process that dies between its commit and its receivers has told
nobody, and so has one to which the commit's answer never came. Without receivers it costs one look at their list.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from workflow import ids, states
from workflow.models import Node, Run
from workflow.plan import HistoryRow
from workflow.registry import registry
from workflow.signals import transitioned
from workflow.times import aware

logger = logging.getLogger("workflow")

NO_TRANSITIONS: Final = frozenset((states.EVENT_LOG, states.EVENT_ACTION_PROGRESS))
"""Names of history entries that change no status."""
_ENDS: Final = frozenset(
    (
        states.EVENT_STAGE_COMPLETED,
        states.EVENT_STAGE_FAILED,
        states.EVENT_ACTION_COMPLETED,
        states.EVENT_ACTION_FAILED,
        states.EVENT_COMPLETED,
        states.EVENT_COMPENSATED,
        states.EVENT_FAILED,
        states.EVENT_CANCELLED,
    )
)
"""Those with which a node or a run is over. A compensation's end is not among them: its start is not kept."""

_Times = tuple[datetime | None, datetime | None]


def has_receivers() -> bool:
    """Whether anybody is to be told."""
    return transitioned.has_listeners(Run)


def send(rows: Sequence[HistoryRow], using: str) -> None:
    """Sends a signal for each transition among the rows, in their order, on Django's connection of this thread.

    Keywords: ``run_id``, ``workflow`` and ``version``; ``seq``, ``name``, ``node`` (a path, None for the run
    itself), ``at`` (aware) and ``data`` (a dict, as stored) of the history entry; ``attempt`` (None where there is
    none); ``seconds`` that a node or run which is over took, from its start, else None. The sender is ``Run``.
    What a receiver raises is logged and harms nobody. Raises ``DatabaseError`` where what is missing in
    the rows can't be read; nobody was told then.
    """
    told = [(uuid.UUID(str(row[0])), *row[1:]) for row in rows if row[2] not in NO_TRANSITIONS]
    if not told:
        return
    runs = {
        run_id: (workflow, version, (started, finished))
        for run_id, workflow, version, started, finished in Run.objects.using(using)
        .filter(pk__in={row[0] for row in told})
        .values_list("pk", "workflow", "version", "started_at", "finished_at")
    }
    ends = [
        (row[0], *runs[row[0]][:2], row[3])
        for row in told
        if row[3] is not None and row[2] in _ENDS and row[0] in runs
    ]
    times = _times(ends, using)
    for run_id, seq, name, node, at, data in told:
        workflow, version, of_run = runs.get(run_id, (None, None, (None, None)))
        if workflow is None:  # pruned meanwhile
            continue
        of_node = of_run if node is None else times.get((run_id, node), (None, None))
        try:
            answers = transitioned.send_robust(
                sender=Run,
                run_id=run_id,
                workflow=workflow,
                version=version,
                seq=seq,
                name=name,
                node=node,
                attempt=(data or {}).get("attempt"),
                at=_aware(at, using),
                seconds=_seconds(of_node) if name in _ENDS else None,
                data=dict(data or {}),
            )
        except (SystemExit, GeneratorExit):  # Django lets pass what is no Exception
            logger.exception("a receiver of signals tried to leave")
            continue
        for receiver, answer in answers:  # Django's own logger for these is silent in production by default
            if isinstance(answer, Exception):
                logger.error("a receiver of signals failed: %r", receiver, exc_info=answer)


def _times(
    ends: Iterable[tuple[uuid.UUID, str, int, str]], using: str
) -> dict[tuple[uuid.UUID, str], _Times]:
    """When the nodes of (run, workflow, version, path) began and ended. A path that this code does not know is left
    out: without its place in the tree there is no index for it.
    """
    wanted = set()
    for run_id, workflow, version, path in ends:
        served = registry.serves(workflow, version)
        known = served.tree.by_path.get(path) if served is not None else None
        if known is not None:
            wanted.add(ids.node_id(run_id, known.ordinal))
    if not wanted:
        return {}
    nodes = Node.objects.using(using).filter(pk__in=wanted)
    return {
        (run_id, path): (started, finished)
        for run_id, path, started, finished in nodes.values_list(
            "run_id", "path", "started_at", "finished_at"
        )
    }


def _seconds(times: _Times) -> float | None:
    """None for what never started, or has been reset by a retry since."""
    started, finished = times
    return None if started is None or finished is None else max((finished - started).total_seconds(), 0.0)


def _aware(at: Any, using: str) -> Any:
    return aware(at, using) if isinstance(at, datetime) else at
