"""What the commands do to the database: conditional updates on Django's connection.

Everything takes part in the caller's transaction and is whole on its own outside of one. A refusal is
found out before anything is changed and leaves the transaction usable. Each function says what it
returns or raises for a write that the guard refused.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg
from django.db import ProgrammingError, connections, transaction

from workflow import failpoints, ids, states
from workflow.definitions import Workflow, beside
from workflow.errors import NodeUnknown, RunConflict, RunNotFound
from workflow.plan import HistoryRow
from workflow.progress import announce
from workflow.sql import commands as sql
from workflow.sql.arrays import plain, texts
from workflow.store.prepared import fetch_one

MAX_CHUNK_ROWS: Final = 50_000
"""Node rows that one statement of a batch adds."""
MAX_CHUNK_BYTES: Final = 16 * 2**20
"""Input that one statement of a batch carries; what PostgreSQL takes as one jsonb value is 256 MB."""
ROUNDS: Final = 10
"""How often a key is tried again that was taken a moment ago and is gone now."""


@dataclass(frozen=True, slots=True)
class TreeRows:
    """What the nodes of every run of a definition have in common, as array literals. ``count`` nodes.

    ``besides`` is empty for a tree without groups: a shorter array is filled with NULLs.
    """

    count: int
    suffixes: str
    paths: str
    units: str
    besides: str
    kinds: str


@dataclass(slots=True)
class NewRun:
    """One run to add. ``input`` is JSON text."""

    input: str | None
    correlation_id: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """What the runs of one dispatch have in common. ``context`` is JSON text; ``delay`` in seconds."""

    workflow: Workflow
    queue: str = "default"
    priority: int = 0
    context: str | None = None
    delay: float = 0.0
    by: str | None = None


Dispatched = tuple[uuid.UUID, bool]
"""A run's id, and whether it was added (or else was there)."""

_tree_rows: WeakKeyDictionary[Workflow, TreeRows] = WeakKeyDictionary()


def tree_rows(workflow: Workflow) -> TreeRows:
    """The definition's nodes as array literals, made once."""
    rows = _tree_rows.get(workflow)
    if rows is None:
        nodes = workflow.tree.nodes[1:]
        groups = beside(workflow.tree)[1:]
        rows = _tree_rows[workflow] = TreeRows(
            count=len(nodes),
            suffixes=plain(f"{node.ordinal:05x}" for node in nodes),
            paths=texts(node.path for node in nodes),
            units=plain(node.unit for node in nodes),
            besides=plain(groups) if any(groups) else "{}",
            kinds=plain(node.kind for node in nodes),
        )
    return rows


# --- dispatch -----------------------------------------------------------------------------------


def dispatch(using: str, placement: Placement, new: NewRun) -> Dispatched:
    """Adds a run, or finds the one that has its idempotency key. One statement."""
    if placement.by is not None:  # the first history entry is the batch's to write
        return dispatch_many(using, placement, [new])[0]
    workflow = placement.workflow
    tree = tree_rows(workflow)
    run_id = ids.new_run_id()
    parameters = (
        run_id,
        workflow.name,
        workflow.version,
        workflow.tree.fingerprint,
        placement.queue,
        placement.priority,
        new.input,
        placement.context,
        new.correlation_id,
        new.idempotency_key,
        tree.suffixes,
        tree.paths,
        tree.units,
        tree.besides,
        tree.kinds,
        ids.new_id(),
        placement.delay,
    )
    try:
        (found,) = fetch_one(using, sql.DISPATCH, parameters)
    except ProgrammingError as error:
        if not isinstance(error.__cause__, psycopg.errors.UndefinedFunction):
            raise
        missing = "the function workflow_dispatch_2 is missing from the database: run manage.py migrate"
        raise ProgrammingError(missing) from error.__cause__
    if found is None:
        raise _slippery(new.idempotency_key)
    return found, found == run_id


def dispatch_many(using: str, placement: Placement, new: Sequence[NewRun]) -> list[Dispatched]:
    """Adds many runs of one workflow, all or none, in the order given. One statement for some thousand rows.

    Of several with one idempotency key the first is added, and the others find it.
    """
    results: dict[int, Dispatched] = {}
    first: dict[str, int] = {}
    for index, run in enumerate(new):
        if run.idempotency_key is not None:
            first.setdefault(run.idempotency_key, index)
    left = [i for i, run in enumerate(new) if first.get(run.idempotency_key or "", i) == i]
    # By key, so that two batches with keys in common can't wait for each other crosswise.
    left.sort(key=lambda index: new[index].idempotency_key or "")
    with transaction.atomic(using=using):
        for _ in range(ROUNDS):
            for chunk in _chunks(left, new, tree_rows(placement.workflow).count):
                _add(using, placement, new, chunk, results)
            left = _find(using, placement.workflow, new, [i for i in left if i not in results], results)
            if not left:
                break
        else:
            raise _slippery(new[left[0]].idempotency_key)
    for index, run in enumerate(new):
        if index not in results:
            assert run.idempotency_key is not None
            results[index] = (results[first[run.idempotency_key]][0], False)
    return [results[index] for index in range(len(new))]


def _chunks(indexes: list[int], new: Sequence[NewRun], nodes: int) -> Iterator[list[int]]:
    chunk: list[int] = []
    size = 0
    for index in indexes:
        chunk.append(index)
        size += len(new[index].input or "null")
        if len(chunk) * nodes >= MAX_CHUNK_ROWS or size >= MAX_CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _add(
    using: str, placement: Placement, new: Sequence[NewRun], chunk: list[int], results: dict[int, Dispatched]
) -> None:
    workflow, tree = placement.workflow, tree_rows(placement.workflow)
    by_id = {ids.new_run_id(): index for index in chunk}
    parameters = {
        "ids": plain(by_id),
        "jobs": plain(ids.new_id() for _ in chunk),
        "correlations": texts(new[index].correlation_id for index in chunk),
        "keys": texts(new[index].idempotency_key for index in chunk),
        "inputs": f"[{','.join(new[index].input or 'null' for index in chunk)}]",
        "workflow": workflow.name,
        "version": workflow.version,
        "fingerprint": workflow.tree.fingerprint,
        "queue": placement.queue,
        "priority": placement.priority,
        "context": placement.context,
        "delay": placement.delay,
        "by": placement.by,
        "suffixes": tree.suffixes,
        "paths": tree.paths,
        "units": tree.units,
        "besides": tree.besides,
        "kinds": tree.kinds,
    }
    added = _rows(using, sql.DISPATCH_MANY, parameters)
    results.update((by_id[run_id], (run_id, True)) for run_id, _ in added)
    if placement.by is not None:
        data = {"message": "dispatched", "by": placement.by}
        announce([(run_id, 1, states.EVENT_LOG, None, at, data) for run_id, at in added], using)


def _find(
    using: str, workflow: Workflow, new: Sequence[NewRun], taken: list[int], results: dict[int, Dispatched]
) -> list[int]:
    """Looks up the runs that have the keys; returns the indexes of those that are gone again."""
    if not taken:
        return []
    keys = texts(new[index].idempotency_key for index in taken)
    found = dict(_rows(using, sql.FIND_KEYS, {"workflow": workflow.name, "keys": keys}))
    for index in taken:
        run_id = found.get(new[index].idempotency_key)
        if run_id is not None:
            results[index] = (run_id, False)
    return [index for index in taken if index not in results]


def _slippery(key: str | None) -> RunConflict:
    return RunConflict(
        f"runs with the idempotency key {key!r} are added and removed too fast to tell; try again"
    )


# --- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StatusRow:
    """One row of STATUS: a node, or the run itself (``path`` is empty, ``output`` is its input)."""

    id: uuid.UUID
    path: str
    kind: Any
    status: Any
    error: Any
    started_at: datetime | None
    finished_at: datetime | None
    output: Any
    attempt: int
    progress: float | None
    completed_seq: int | None
    workflow: str
    version: int
    state: Any
    correlation_id: str | None
    created_at: datetime


JSON_COLUMNS: Final = frozenset({4, 7, 13})
"""Where STATUS has error, output and state."""


def status(using: str, run_id: uuid.UUID) -> list[StatusRow]:
    """The run and its nodes in tree order, as one snapshot saw them. Raises ``RunNotFound``."""
    rows = _rows(using, sql.STATUS, {"run": run_id})
    if not rows or rows[0][0] != run_id:
        raise _not_found(run_id)
    return [
        StatusRow(*[_json(value) if index in JSON_COLUMNS else value for index, value in enumerate(row)])
        for row in rows
    ]


def run_status(using: str, run_id: uuid.UUID) -> str:
    """The run's status alone. Raises ``RunNotFound``."""
    rows = _rows(using, sql.RUN_STATUS, {"run": run_id})
    if not rows:
        raise _not_found(run_id)
    found: str = rows[0][0]
    return found


def list_runs(using: str, limit: int, **filters: object) -> list[dict[str, Any]]:
    """The newest ``limit`` runs that meet the filters that are not None, as the fields of a RunInfo."""
    given = {name: value for name, value in filters.items() if value is not None}
    conditions = "".join(sql.LIST_CONDITIONS[name] for name in given)
    rows = _rows(using, sql.LIST.format(conditions=conditions), {**given, "limit": limit})
    return [
        {
            "id": row[0],
            "workflow": row[1],
            "version": row[2],
            "status": row[3],
            "state": _json(row[4]),
            "input": _json(row[5]),
            "error": _json(row[6]),
            "correlation_id": row[7],
            "created_at": row[8],
            "started_at": row[9],
            "finished_at": row[10],
        }
        for row in rows
    ]


# --- steering one run ---------------------------------------------------------------------------


def cancel(using: str, run_id: uuid.UUID, data: dict[str, Any], *, compensate: bool) -> None:
    """Ends a run that goes forward, or turns it back if it has begun and ``compensate`` says so.

    Raises ``RunNotFound``, and ``RunConflict`` for a run that is over or compensating.
    """
    with transaction.atomic(using=using):
        _lock(using, run_id, states.RUN_FORWARD, "cancelled")
        if compensate and run_status(using, run_id) != states.PENDING:
            parameters = {"run": run_id, "data": _text({**data, "compensate": True}), "job": ids.new_id()}
            _announce(using, _rows(using, sql.CANCEL_AND_COMPENSATE, parameters))
        else:
            _announce(using, _rows(using, sql.CANCEL, {"run": run_id, "data": _text(data)}))
        failpoints.hit("cancel.before-commit")
    failpoints.hit("cancel.after-commit")


PathsToReset = Callable[[str, int, str], list[str]]
"""From a run's workflow, its version and a path: the paths that a retry from there does again."""


def retry(
    using: str, run_id: uuid.UUID, from_node: str | None, data: dict[str, Any], to_reset: PathsToReset
) -> None:
    """Brings a failed run back to where it failed, or to ``from_node`` if that was earlier.

    Raises ``RunNotFound``, ``RunConflict`` for a run that is not failed or has begun to compensate,
    ``NodeUnknown``, and what ``to_reset`` raises; it is asked only when there is a ``from_node``.
    """
    with transaction.atomic(using=using):
        workflow, version = _lock(using, run_id, (states.FAILED,), "retried")
        if _rows(using, sql.COMPENSATION_BEGUN, {"run": run_id})[0][0]:
            raise RunConflict(f"run {run_id} has begun to compensate and can't be retried; dispatch it anew")
        again = [] if from_node is None else to_reset(workflow, version, from_node)
        if from_node is not None and not _rows(using, sql.HAS_NODE, {"run": run_id, "path": from_node}):
            raise NodeUnknown(f'run {run_id} has no node "{from_node}": it began under another version')
        parameters = {"run": run_id, "paths": texts(again), "data": _text(data), "job": ids.new_id()}
        if again:
            _execute(using, sql.FORGET_STEPS, parameters)
        _execute(using, sql.REOPEN_STEPS, {"run": run_id})
        _execute(using, sql.RESET_NODES, parameters)
        _execute(using, sql.REOPEN_LAST, parameters)
        _announce(using, _rows(using, sql.RETRY, parameters))


def resume(using: str, run_id: uuid.UUID, payload: str, data: dict[str, Any]) -> None:
    """Resolves all that the run is parked on with ``payload`` (JSON text): wait stages, and steps that wait.

    Raises ``RunNotFound``, and ``RunConflict`` when nothing is parked.
    """
    with transaction.atomic(using=using):
        _lock(using, run_id, states.RUN_PARKED, "resumed")
        waits = _rows(using, sql.RESOLVE_WAITS, {"run": run_id, "outcome": f'{{"payload":{payload}}}'})
        steps = _rows(using, sql.RESOLVE_STEPS, {"run": run_id, "payload": payload})
        if not waits and not steps:
            raise RunConflict(f"run {run_id} is not parked on an event or a poll, so it can't be resumed")
        if waits:
            units = sorted({unit for _, unit in waits})
            parameters = {
                "run": run_id,
                "paths": texts(path for path, _ in waits),
                "units": plain(ids.node_id(run_id, unit) for unit in units),
                "jobs": plain(ids.new_id() for _ in units),
                "data": _text(data),
            }
            _announce(using, _rows(using, sql.WAKE, parameters))
        if steps:
            parameters = {
                "run": run_id,
                "paths": texts(path for path, _, _ in steps),
                "keys": texts(key for _, _, key in steps),
                "units": plain(ids.node_id(run_id, unit) for unit in sorted({unit for _, unit, _ in steps})),
                "data": _text(data),
            }
            _announce(using, _rows(using, sql.WAKE_HANDLERS, parameters))


def _lock(using: str, run_id: uuid.UUID, statuses: Sequence[str], verb: str) -> tuple[str, int]:
    """Takes the run's row if it has one of the statuses: its workflow and version. Else raises what it is."""
    rows = _rows(using, sql.LOCK_RUN, {"run": run_id, "statuses": plain(statuses)})
    if not rows:
        raise RunConflict(f"run {run_id} is {run_status(using, run_id)}, so it can't be {verb}")
    workflow, version = rows[0]
    return workflow, version


# --- events and prune ---------------------------------------------------------------------------


def publish(
    using: str, event_type: str, payload: str | None, correlation: str | None, event_id: str | None
) -> bool:
    """Adds an event and its delivery job; False when its event_id has been published. One statement."""
    with connections[using].cursor() as cursor:
        values = (ids.new_id(), event_type, correlation, payload, event_id, ids.new_id())
        cursor.execute(sql.PUBLISH, values)
        return bool(cursor.rowcount)


def prune(using: str, seconds: float, batch: int) -> tuple[int, int]:
    """Drops runs that finished that long ago or earlier, and events; returns how many of either.

    One statement a batch, each a transaction of its own unless the caller has one.
    """
    ((cutoff, oldest_run),) = _rows(using, sql.PRUNE_CUTOFF, {"seconds": seconds})
    runs = 0
    while True:
        dropped = _execute(using, sql.PRUNE_RUNS, {"cutoff": cutoff, "batch": batch})
        runs += dropped
        if dropped < batch:
            break
    events, after = 0, uuid.UUID(int=0)
    while True:
        parameters = {"cutoff": cutoff, "oldest_run": oldest_run, "batch": batch, "after": after}
        gone = _rows(using, sql.PRUNE_EVENTS, parameters)
        events += len(gone)
        if len(gone) < batch:
            return runs, events
        after = max(row[0] for row in gone)


# --- inside -------------------------------------------------------------------------------------


def _rows(using: str, statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _execute(using: str, statement: str, parameters: dict[str, Any]) -> int:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)


def _announce(using: str, rows: list[tuple[Any, ...]]) -> None:
    """Takes the rows that a command's last statement returned: what it appended to the run's history."""
    history: list[HistoryRow] = [(*row[:5], _json(row[5])) for row in rows]
    announce(history, using)


def _json(value: Any) -> Any:
    """A jsonb column, which Django's connection leaves as text."""
    return json.loads(value) if isinstance(value, str | bytes) else value


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _not_found(run_id: uuid.UUID) -> RunNotFound:
    return RunNotFound(f"no run has the id {run_id}")
