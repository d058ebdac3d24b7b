"""Settling boundaries: `statements` renders a batch, and `apply_results` reads the answers.

Each boundary is guarded by its own lease, so a stale one drops out without harm to its neighbours.
Who gathers and commits them is `workflow.store.committer`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import DatabaseError as DjangoDatabaseError

from workflow import ids, states
from workflow.conf import conf
from workflow.plan import Boundary, HistoryEntry, HistoryRow
from workflow.plan.boundary import AWAIT, DELETE, KEEP, RELEASE, StepWrite
from workflow.sql import events as events_sql
from workflow.sql import settle as sql
from workflow.sql.arrays import plain, texts, words
from workflow.store.pipeline import Rows, Statement
from workflow.store.ports import DjangoPort, Port
from workflow.store.trouble import is_connection_lost, is_zero_division
from workflow.times import aware


@dataclass(slots=True)
class Lease:
    """Who may write: the run, the unit's job, and the token of the claim. All UUIDs as text.

    `places` maps the definition's ordinals to those of the run's own tree, for a run of an older
    version whose nodes were matched by path; None when both are the same.
    """

    run_id: str
    job_id: str
    token: str
    places: tuple[int, ...] | None = None

    def node(self, ordinal: int) -> str:
        """The node's id."""
        return ids.node_id_text(self.run_id, ordinal if self.places is None else self.places[ordinal])


@dataclass(slots=True)
class Settlement:
    """A boundary on its way, and its answer: `seq` of the run after it, or None when it was refused."""

    lease: Lease
    boundary: Boundary
    id: str = field(default_factory=ids.new_token)
    unsure: bool = False
    """Whether a commit with it was cut off: it is asked for before it is tried again."""
    failures: int = 0
    """How often it has failed alone, for no reason that is its own."""
    seq: int | None = None
    """0 where it was applied and the answer was lost."""
    at: Any = None
    """The commit's `now()`."""
    extra: list[tuple[int, str, str | None]] = field(default_factory=list)
    """History that the settling itself added: (seq, name, node)."""


Tell = Callable[[Sequence[HistoryRow]], None]
"""Who is told what was appended to histories, after its commit."""


def nobody(rows: Sequence[HistoryRow]) -> None:
    """Nobody is told."""


class Rejected(Exception):
    """The database refused the boundary's data, or a node no longer had the status that it leaves."""


class Outdated(Rejected):
    """It is the status of a node: somebody else has settled it meanwhile."""


def rejection(error: BaseException) -> Rejected:
    """What is raised for a boundary that the database has refused with this error."""
    if is_zero_division(error):  # the guard's own (UPDATE_NODES)
        rejected: Rejected = Outdated("a node no longer has the status that this leaves")
    else:
        rejected = Rejected(str(error).strip())
    rejected.__cause__ = error
    return rejected


@dataclass(frozen=True, slots=True)
class Rivals:
    """What may go before a job that moves on: whatever is due and more urgent in the `queues` that this process serves
    (None for all). Deliveries of events only when it is `full()`: else they have a place and take next to no time."""

    queues: Sequence[str] | None = None
    full: Callable[[], bool] = lambda: True


EVERYBODY = Rivals()


def statements(
    batch: Sequence[Settlement], rivals: Rivals = EVERYBODY, *, beside: bool = False
) -> list[Statement]:
    """The statements that settle a batch with at most one boundary of a run. UPDATE_RUNS is the second one.

    `beside`: on another connection than the committer's, which may be settling other boundaries of these units. It
    leaves the stamps on their jobs alone, by which the committer finds out what became of a boundary of its own.
    """
    runs = [s.lease.run_id for s in batch]
    out: list[Statement] = [(sql.LOCK_RUNS, (words(runs),)), _update_runs(batch, rivals)]
    for part in (
        _nodes,
        _history,
        _steps,
        _ended_steps,
        _rest,
        _parks,
        partial(_own_jobs, beside=beside),
        _new_jobs,
        _wakes,
    ):
        out.extend(part(batch))
    return out


def apply_results(batch: Sequence[Settlement], results: Sequence[Rows]) -> None:
    """Writes the answers onto the settlements."""
    by_run = {s.lease.run_id: s for s in batch}
    for run_id, seq, at in results[1]:
        by_run[run_id].seq = seq
        by_run[run_id].at = at
    if any(s.boundary.job == AWAIT for s in batch):
        for run_id, seq, node in results[-1]:
            if (settled := by_run.get(run_id)) is not None:
                settled.extra.append((seq, states.EVENT_WAITING, node))


def _update_runs(batch: Sequence[Settlement], rivals: Rivals) -> Statement:
    boundaries = [s.boundary for s in batch]
    parameters = (
        words([s.id for s in batch]),
        words([s.lease.run_id for s in batch]),
        words([s.lease.job_id for s in batch]),
        words([s.lease.token for s in batch]),
        plain([b.compensating for b in boundaries]),
        plain([b.run_target for b in boundaries]),
        plain([len(b.history) for b in boundaries]),
        texts([b.patch for b in boundaries]),
        texts([b.run_error for b in boundaries]),
    )
    if not any(b.moves for b in boundaries):
        return sql.UPDATE_RUNS, parameters
    names = served(rivals.queues)
    moves = plain([bool(b.moves) for b in boundaries])
    return sql.UPDATE_RUNS_MOVING, (*parameters, moves, names, names, rivals.full())


def served(queues: Sequence[str] | None) -> str | None:
    """What a process takes jobs from, as the statements want it: its queues and that of events, or None for all."""
    return None if queues is None else texts([*queues, states.EVENTS_QUEUE])


def _nodes(batch: Sequence[Settlement]) -> list[Statement]:
    rows = [(s, c) for s in batch for c in s.boundary.changes]
    if not rows:
        return []
    parameters = (
        words([s.id for s, _ in rows]),
        words([s.lease.run_id for s, _ in rows]),
        words([s.lease.node(c.ordinal) for s, c in rows]),
        words([c.source for _, c in rows]),
        words([c.target for _, c in rows]),
        plain([c.attempt for _, c in rows]),
        plain([c.compensate_attempt for _, c in rows]),
        texts([c.output for _, c in rows]),
        texts([c.error for _, c in rows]),
        plain([c.due for _, c in rows]),
        plain([c.progress for _, c in rows]),
        plain([c.event for _, c in rows]),
        plain([len(s.boundary.history) for s, _ in rows]),
    )
    return [(sql.UPDATE_NODES, parameters)]


def _history(batch: Sequence[Settlement]) -> list[Statement]:
    rows: list[tuple[Settlement, int, HistoryEntry]] = [
        (s, index, entry) for s in batch for index, entry in enumerate(s.boundary.history, 1)
    ]
    if not rows:
        return []
    parameters = (
        words([s.id for s, _, _ in rows]),
        words([s.lease.run_id for s, _, _ in rows]),
        plain([index for _, index, _ in rows]),
        plain([len(s.boundary.history) for s, _, _ in rows]),
        words([entry.name for _, _, entry in rows]),
        texts([entry.node for _, _, entry in rows]),
        texts([entry.data for _, _, entry in rows]),
        plain([entry.due for _, _, entry in rows]),
    )
    return [(sql.INSERT_HISTORY, parameters)]


def _steps(batch: Sequence[Settlement]) -> list[Statement]:
    rows = [(s, step) for s in batch for step in s.boundary.steps]
    if not rows:
        return []
    parameters = (
        words([s.id for s, _ in rows]),
        words([s.lease.run_id for s, _ in rows]),
        words([s.lease.token for s, _ in rows]),
        plain([ids.new_id() for _ in rows]),
        words([s.lease.node(step.ordinal) for s, step in rows]),
        words([step.phase for _, step in rows]),
        texts([step.key for _, step in rows]),
        words([step.kind for _, step in rows]),
        words([step.status for _, step in rows]),
        plain([step.attempt for _, step in rows]),
        texts([step.value for _, step in rows]),
        texts([step.error for _, step in rows]),
        plain([step.lease for _, step in rows]),
        plain([step.deadline for _, step in rows]),
        plain([step.poll for _, step in rows]),
        texts([step.event for _, step in rows]),
        texts([step.correlation for _, step in rows]),
        plain([step.compensable for _, step in rows]),
    )
    return [*_in_time(rows), (sql.WRITE_STEPS, parameters)]


def _in_time(rows: Sequence[tuple[Settlement, StepWrite]]) -> list[Statement]:
    late = [(s, step) for s, step in rows if step.kind == "event" and step.status == "failed"]
    if not late:
        return []
    parameters = (
        words([s.id for s, _ in late]),
        words([s.lease.run_id for s, _ in late]),
        words([s.lease.node(step.ordinal) for s, step in late]),
        words([step.phase for _, step in late]),
        texts([step.key for _, step in late]),
    )
    return [(events_sql.STEPS_IN_TIME, parameters)]


def _ended_steps(batch: Sequence[Settlement]) -> list[Statement]:
    rows = [(s, ordinal, phase) for s in batch for ordinal, phase in s.boundary.ledgers_over]
    if not rows:
        return []
    parameters = (
        words([s.id for s, _, _ in rows]),
        words([s.lease.run_id for s, _, _ in rows]),
        words([s.lease.node(ordinal) for s, ordinal, _ in rows]),
        words([phase for _, _, phase in rows]),
    )
    return [(sql.CLOSE_STEPS, parameters)]


def _rest(batch: Sequence[Settlement]) -> list[Statement]:
    over = [s for s in batch if s.boundary.cancel_pending]
    if not over:
        return []
    boundaries, runs = words([s.id for s in over]), words([s.lease.run_id for s in over])
    jobs = words([s.lease.job_id for s in over])
    return [(sql.CANCEL_REST, (boundaries, runs)), (sql.DELETE_REST, (boundaries, runs, jobs))]


def _parks(batch: Sequence[Settlement]) -> list[Statement]:
    rows = [(s, c, c.wait) for s in batch for c in s.boundary.changes if c.wait is not None]
    if not rows:
        return []
    parameters = (
        words([s.id for s, _, _ in rows]),
        words([s.lease.run_id for s, _, _ in rows]),
        words([s.lease.node(c.ordinal) for s, c, _ in rows]),
        texts([wait.event for _, _, wait in rows]),
        texts([wait.correlation for _, _, wait in rows]),
        plain([wait.timeout for _, _, wait in rows]),
    )
    return [(sql.PARK, parameters)]


def _own_jobs(batch: Sequence[Settlement], beside: bool) -> list[Statement]:
    """What becomes of the units' own jobs. A release is written before READY_JOBS, a deletion after it.

    A unit that goes on and has its run to itself needs no stamp on its job: the one on the run will do, and a
    tenth of the server's work per transition is saved.
    """
    out: list[Statement] = []
    stay = [s for s in batch if _is_written(s.boundary, beside)]
    if stay:
        parameters = (
            words([s.id for s in stay]),
            words([s.lease.run_id for s in stay]),
            words([s.lease.job_id for s in stay]),
            words([s.lease.token for s in stay]),
            plain([s.boundary.job == KEEP for s in stay]),
            plain([s.boundary.delay for s in stay]),
            plain([s.boundary.refund for s in stay]),
            texts([s.boundary.last_error for s in stay]),
            plain([s.lease.node(s.boundary.moves[-1]) if s.boundary.moves else None for s in stay]),
            plain([kind_after(s.boundary) for s in stay]),
        )
        out.append((sql.UPDATE_JOBS, parameters))
    awaiting = [s for s in batch if s.boundary.awaited]
    if awaiting:
        sets = [
            (s, index, node)
            for s in awaiting
            for index, nodes in enumerate(s.boundary.awaited)
            for node in nodes
        ]
        ready = (
            words([s.id for s, _, _ in sets]),
            plain([index for _, index, _ in sets]),
            words([s.lease.node(node) for s, _, node in sets]),
            *_jobs_of(awaiting),
        )
        out.append((sql.READY_JOBS, ready))
    gone = [s for s in batch if s.boundary.job in (DELETE, AWAIT)]
    if gone:
        out.append((sql.DELETE_JOBS, _jobs_of(gone)))
    return out


def _is_written(boundary: Boundary, beside: bool) -> bool:
    """Whether the unit's job is to be changed."""
    changed = bool(boundary.moves) or boundary.last_error is not None
    stamped = not boundary.alone and not beside
    return boundary.job == RELEASE or (boundary.job == KEEP and (changed or stamped))


def kind_after(boundary: Boundary) -> str | None:
    """What a job that moves on is from here on; None for one that does not."""
    if not boundary.moves:
        return None
    return states.UNIT if boundary.moves[-1] else states.COMPENSATE


def _jobs_of(batch: Sequence[Settlement]) -> tuple[str, str, str, str]:
    return (
        words([s.id for s in batch]),
        words([s.lease.run_id for s in batch]),
        words([s.lease.job_id for s in batch]),
        words([s.lease.token for s in batch]),
    )


def _new_jobs(batch: Sequence[Settlement]) -> list[Statement]:
    rows = [(s, job.kind, job.ordinal, job.delay) for s in batch for job in s.boundary.new_jobs]
    rows += [
        (s, states.CHECK, c.ordinal, 0.0) for s in batch for c in s.boundary.changes if c.wait is not None
    ]
    out = _step_checks(batch)
    if not rows:
        return out
    parameters = (
        words([s.id for s, _, _, _ in rows]),
        words([s.lease.run_id for s, _, _, _ in rows]),
        plain([ids.new_id() for _ in rows]),
        words([kind for _, kind, _, _ in rows]),
        words([s.lease.node(ordinal) for s, _, ordinal, _ in rows]),
        plain([delay for _, _, _, delay in rows]),
    )
    return [(sql.INSERT_JOBS, parameters), *out]


def _step_checks(batch: Sequence[Settlement]) -> list[Statement]:
    """A check job for each ledger row that waits for an event; its node id is the row's own id."""
    rows = [(s, step) for s in batch for step in s.boundary.steps if step.event is not None]
    if not rows:
        return []
    parameters = (
        words([s.id for s, _ in rows]),
        words([s.lease.run_id for s, _ in rows]),
        words([s.lease.job_id for s, _ in rows]),
        words([s.lease.node(step.ordinal) for s, step in rows]),
        words([step.phase for _, step in rows]),
        texts([step.key for _, step in rows]),
    )
    return [(sql.CHECK_STEPS, parameters)]


def _wakes(batch: Sequence[Settlement]) -> list[Statement]:
    out: list[Statement] = []
    rows = [(s, wake, str(ids.new_id())) for s in batch for wake in s.boundary.wakes]
    if rows:
        siblings = [(job_id, s.lease.node(sibling)) for s, wake, job_id in rows for sibling in wake.siblings]
        parameters = (
            words([s.id for s, _, _ in rows]),
            words([s.lease.run_id for s, _, _ in rows]),
            words([job_id for _, _, job_id in rows]),
            words([s.lease.node(wake.unit) for s, wake, _ in rows]),
            words([job_id for job_id, _ in siblings]),
            words([node for _, node in siblings]),
        )
        out.append((sql.WAKE_UNITS, parameters))
    parked = [s for s in batch if s.boundary.job == AWAIT]
    if parked:
        out.append((sql.QUIET_RUNS, (words([s.id for s in parked]), words([s.lease.run_id for s in parked]))))
    return out


Appended = tuple[int, str, str | None, str | None, float | None]
"""(seq, name, node, data, due): data is JSON text; see `HistoryEntry`."""


def appended(settlement: Settlement) -> list[Appended]:
    """What a settled boundary has appended to its run's history. Nothing for one that was refused, or of which no more
    is known than that it was applied: the commit's answer was lost, and its numbers with it.
    """
    if not settlement.seq:
        return []
    entries = settlement.boundary.history
    numbered = enumerate(entries, settlement.seq - len(entries) + 1)
    own: list[Appended] = [(seq, entry.name, entry.node, entry.data, entry.due) for seq, entry in numbered]
    return own + [(seq, name, node, None, None) for seq, name, node in settlement.extra]


def data_of(data: str | dict[str, Any] | None, at: Any, due: float | None) -> dict[str, Any] | None:
    """An entry's data as the history has them. `data` is JSON text, or has been read already; `at` the commit's
    `now()`, and `due` how many seconds after that something is.
    """
    known: dict[str, Any] | None = json.loads(data) if isinstance(data, str) else data
    if due is None or not isinstance(at, datetime):
        return known
    due_at = aware(at, conf.DATABASE) + timedelta(seconds=due)
    return {**(known or {}), "due_at": _as_jsonb_has_it(due_at)}


def history_rows(settlement: Settlement) -> list[HistoryRow]:
    """The same as rows, with all that is known of them."""
    run_id, at = settlement.lease.run_id, settlement.at
    return [
        (run_id, seq, name, node, at, data_of(data, at, due))
        for seq, name, node, data, due in appended(settlement)
    ]


def _as_jsonb_has_it(moment: datetime) -> str:
    """ISO 8601 without zeros at the end of the second's fraction."""
    text = moment.isoformat()
    if not moment.microsecond:
        return text
    end = text.index(".") + 7
    return text[:end].rstrip("0") + text[end:]


def which_applied(batch: Sequence[Settlement]) -> list[Statement]:
    """After a commit whose outcome is unknown: the second statement's rows are the boundaries that were applied."""
    boundaries, runs = words([s.id for s in batch]), words([s.lease.run_id for s in batch])
    jobs = words([s.lease.job_id for s in batch])
    return [(sql.LOCK_RUNS, (runs,)), (sql.APPLIED, (boundaries, jobs, boundaries, runs))]


def settle_now(port: DjangoPort, settlement: Settlement, *, beside: bool = False) -> bool:
    """Settles one boundary on Django's connection, inside the caller's transaction. False: refused.

    `beside`: a committer has the same unit in hand.
    """
    batch: list[Settlement] = [settlement]
    try:
        apply_results(batch, port.run_now(statements(batch, beside=beside)))
    except (
        DjangoDatabaseError,
        UnicodeEncodeError,
    ) as error:  # the latter from the driver, for half a surrogate pair
        if is_connection_lost(error):
            raise
        raise rejection(error) from error
    return settlement.seq is not None


async def locked_runs(port: Port, run_ids: Iterable[str]) -> set[str]:
    """Those of the runs on which somebody else holds a lock at this moment."""
    runs = plain(run_ids)
    free, known = await port.run([(sql.FREE_RUNS, (runs,)), (sql.KNOWN_RUNS, (runs,))])
    return {row[0] for row in known} - {row[0] for row in free}
