"""Claiming due jobs, keeping their leases, giving them back, and reading what a claimed unit needs."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from workflow import failpoints, ids, states
from workflow.definitions import Gone, Tree, placed
from workflow.failures import clean_text
from workflow.plan import NodeSnapshot, RunSnapshot
from workflow.plan.faults import UNBEGUN, is_unbegun
from workflow.plan.removed import Origin, removed
from workflow.plan.snapshot import StepSnapshot, needed
from workflow.sql import claim as sql
from workflow.sql import ledger as ledger_sql
from workflow.sql.arrays import plain, texts, words
from workflow.store.openings import Key, Openings
from workflow.store.pipeline import Rows, Statement
from workflow.store.ports import Port
from workflow.store.settle import Lease, Settlement, served

logger = logging.getLogger("workflow")


@dataclass(slots=True)
class ClaimedRun:
    """The run's row as the claim saw it; JSON columns as text."""

    id: str
    workflow: str
    version: int
    fingerprint: str
    status: str
    input: str | None
    state: str
    context: str | None
    correlation_id: str | None
    error: str | None
    seq: int


@dataclass(slots=True)
class Claim:
    """A claimed job and its run; `run` is None for a delivery, and for a run that cannot be seen."""

    job_id: str
    kind: str
    run_id: str | None
    node_id: str
    token: str
    attempt: int
    last_error: str
    run: ClaimedRun | None = None
    opened: tuple[int, Any] | None = None
    """Of a run that the claim itself has begun: the run's seq since, and the transaction's `now()`. `run` is as it was
    before."""
    started: bool = False
    """Whether user code may have been called for it."""

    @property
    def ordinal(self) -> int:
        """The unit's ordinal in the run's own tree."""
        return ids.ordinal_of_text(self.node_id)

    @property
    def key(self) -> Key:
        """Of the run's definition."""
        assert self.run is not None
        return self.run.workflow, self.run.version, self.run.fingerprint

    def become(self, node_id: str, kind: str) -> None:
        """The job is another node's from here on, as if it had been claimed as that."""
        self.node_id, self.kind, self.attempt, self.last_error = node_id, kind, 1, ""
        if self.run is not None:
            self.run.status = states.COMPENSATING if kind == states.COMPENSATE else states.RUNNING

    def lease(self, places: tuple[int, ...] | None = None) -> Lease:
        """What every write of the unit carries."""
        assert self.run_id is not None
        return Lease(self.run_id, self.job_id, self.token, places)


async def claim(
    port: Port,
    worker_id: str,
    limit: int,
    queues: Sequence[str] | None,
    run_id: str | None = None,
    sparing: Collection[tuple[str, int]] = (),
    openings: Openings | None = None,
    age: float = 0.0,
) -> tuple[list[Claim], float | None]:
    """Takes up to `limit` jobs that have been due for `age` seconds, with `run_id` only of that run (and of none), else
    none of the `sparing`, which are versions of workflows. Jobs of paused queues are left where they are. Fresh runs
    whose definition is among the `openings` are begun at once.

    Also tells in how many seconds the next one comes due, or a pause ends; None for never. Less than 0 for a job that
    is due, but not for `age` seconds yet.
    """
    names = served(queues)
    which: Statement = (sql.CLAIM, (age, limit, names, names, limit, worker_id))
    if run_id is not None:
        which = (sql.CLAIM_OF_RUN, (age, run_id, limit, names, names, limit, worker_id))
    elif sparing:
        workflows, versions = texts([name for name, _ in sparing]), plain([number for _, number in sparing])
        which = (sql.CLAIM_SPARING, (age, workflows, versions, limit, names, names, limit, worker_id))
    claimed, due = await _claim(
        port, worker_id, which, (sql.NEXT_DUE, (names, names, age, names, names)), openings
    )
    return claimed, due[0][0]


async def claim_asked(
    port: Port, worker_id: str, jobs: Sequence[str], openings: Openings | None = None
) -> tuple[list[Claim], set[str]]:
    """Takes those of these jobs that are due and in nobody's hands, and whose queue is not paused.

    Also tells which of them are left although they are due: somebody had them locked at this moment.
    """
    asked = plain(jobs)
    claimed, left = await _claim(
        port, worker_id, (sql.CLAIM_ASKED, (asked, worker_id)), (sql.LEFT_OF_ASKED, (asked,)), openings
    )
    return claimed, {row[0] for row in left}


async def _claim(
    port: Port, worker_id: str, which: Statement, last: Statement, openings: Openings | None
) -> tuple[list[Claim], Rows]:
    """What `which` claims, with its runs, and the rows of `last`: one transaction."""
    failpoints.hit("claim.before")
    opening = None if openings is None else openings.statement(worker_id)
    rows, *begun, runs, answer = await port.run(
        [which, *([] if opening is None else [opening]), (sql.CLAIMED_RUNS, (worker_id,)), last]
    )
    claimed = [Claim(*row) for row in rows]
    _match(claimed, runs, begun[0] if begun else [])
    if claimed:
        failpoints.hit("claim.after")
    if any(each.opened for each in claimed):
        failpoints.hit("claim.opened")
    return claimed, answer


def _match(claimed: Iterable[Claim], runs: Rows, begun: Rows) -> None:
    """Gives each claim its run; one that was begun meanwhile counts as it was before."""
    by_id = {row[0]: ClaimedRun(*row) for row in runs}
    opened_by_id = {run_id: (seq, at) for run_id, seq, at, _ in begun}
    for claim in claimed:
        claim.run = by_id.get(claim.run_id or "")
        claim.opened = opened_by_id.get(claim.run_id or "")
        if claim.run is not None and claim.opened is not None:
            claim.run.status = states.PENDING


def opened(claims: Iterable[Claim], openings: Openings) -> list[Settlement]:
    """What a claim has settled for the runs that it has begun; the `openings` are told of all fresh ones."""
    settled = []
    for claim in claims:
        if claim.opened is not None:
            seq, at = claim.opened
            settled.append(Settlement(claim.lease(), openings.boundary(claim.key), seq=seq, at=at))
        if claim.run is not None and claim.run.status == states.PENDING:
            openings.met(claim.key)
    return settled


async def read_again(port: Port, claimed: Claim) -> None:
    """Brings the claim's run up to date."""
    rows = (await port.run([(sql.RUN, (claimed.run_id,))]))[0]
    claimed.run = ClaimedRun(*rows[0]) if rows else None


_UNTOUCHED = NodeSnapshot()


_KINDS = {list: "array", str: "string", bool: "boolean", type(None): "null"}


class Misfit(Exception):
    """The run's tree is not the definition's any more: what is left of it has no place there."""


class Spoilt(Misfit):
    """What is stored of the run is nothing that the engine has written."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """The job is that of a node which is over, and which the definition has no more.

    `unit`: whose job is next above it, or comes after it, by the ordinals that `places` is by (see `RunSnapshot`).
    """

    unit: int
    places: tuple[int, ...]


async def snapshots(
    port: Port, claims: Iterable[tuple[Claim, Tree]]
) -> list[RunSnapshot | Misfit | Leftover]:
    """What each unit needs to know of its run. A run that nobody began yet is read from its definition alone."""
    claims = list(claims)
    low: list[str] = []
    high: list[str] = []
    for claimed, tree in claims:
        run = claimed.run
        assert run is not None
        if run.fingerprint != tree.fingerprint:
            ranges = [(1, ids.MAX_ORDINAL)]
        elif run.status == states.PENDING:
            continue
        else:
            ranges = needed(tree, claimed.ordinal if claimed.kind == states.UNIT else 0)
        low.extend(ids.node_id_text(run.id, first) for first, _ in ranges)
        high.extend(ids.node_id_text(run.id, last) for _, last in ranges)
    back = [claimed.run_id for claimed, _ in claims if claimed.kind == states.COMPENSATE]
    statements: list[Statement] = [(sql.LOAD_NODES, (plain(low), plain(high)))] if low else []
    if back:  # one always reads its whole tree too
        statements.append((ledger_sql.LOAD_UNDOABLE, (plain(back),)))
    found = await port.run(statements) if statements else []
    nodes, steps = _by_run(found[0] if low else []), _by_run(found[-1] if back else [])
    groups = await _groups(port, [(run, tree) for claimed, tree in claims if (run := claimed.run)], nodes)
    return [
        _read(
            c,
            tree,
            nodes.get(c.run_id or "", []),
            steps.get(c.run_id or "", []),
            groups.get(c.run_id or "", []),
        )
        for c, tree in claims
    ]


async def _groups(
    port: Port, runs: Iterable[tuple[ClaimedRun, Tree]], nodes: dict[str, Rows]
) -> dict[str, Rows]:
    """Which nodes ran side by side, of those of these runs that have some which the definition has no more."""
    reduced = [
        run.id
        for run, tree in runs
        if run.fingerprint != tree.fingerprint
        and any(row[2] not in tree.by_path for row in nodes.get(run.id, []))
    ]
    if not reduced:
        return {}
    low = words(ids.node_id_text(run_id, 1) for run_id in reduced)
    high = words(ids.node_id_text(run_id, ids.MAX_ORDINAL) for run_id in reduced)
    return _by_run((await port.run([(sql.LOAD_GROUPS, (low, high))]))[0])


def _read(
    claimed: Claim, tree: Tree, rows: Rows, steps: Rows, groups: Rows
) -> RunSnapshot | Misfit | Leftover:
    """The snapshot. A run that cannot be read takes no other with it: they would all go back together, and be claimed
    together again."""
    try:
        return _snapshot(claimed, tree, rows, steps, groups)
    except MemoryError:
        raise
    except Exception as error:  # JSON that is nested too deeply, a number with too many digits
        logger.exception("run %s cannot be read", claimed.run_id)
        return Spoilt(f"the run cannot be read ({type(error).__name__}: {clean_text(error, 200)})")


def _by_run(rows: Rows) -> dict[str, Rows]:
    by_run: dict[str, Rows] = {}
    for row in rows:
        by_run.setdefault(row[0], []).append(row)
    return by_run


def _snapshot(
    claimed: Claim, tree: Tree, rows: Rows, steps: Rows, groups: Rows
) -> RunSnapshot | Misfit | Leftover:
    run = claimed.run
    assert run is not None
    places: tuple[int, ...] | None = None
    if run.fingerprint != tree.fingerprint:
        try:
            tree, places = _match_tree(tree, rows, groups)
        except Misfit as misfit:
            return misfit
    state = json.loads(run.state)
    if not isinstance(state, dict):
        return Spoilt(f"the run's state is a JSON {_KINDS.get(type(state), 'number')}, not an object")
    if places is not None and claimed.ordinal:
        unit = places.index(claimed.ordinal)
        if isinstance(tree.nodes[unit].definition, Gone):
            return Leftover(_next_unit(tree, rows, unit), places)
    nodes = [_UNTOUCHED] * len(tree.nodes)
    for _, _, path, status, attempt, compensate_attempt, due_in, output, error, seq, outcome, _ in rows:
        node = tree.by_path.get(path)
        if node is not None:
            nodes[node.ordinal] = NodeSnapshot(
                status,
                attempt,
                compensate_attempt,
                due_in,
                None if output is None else json.loads(output),
                None if error is None else json.loads(error),
                seq,
                None if outcome is None else json.loads(outcome),
            )
    return RunSnapshot(
        status=run.status,
        input=None if run.input is None else json.loads(run.input),
        state=state,
        nodes=nodes,
        error=None if run.error is None else json.loads(run.error),
        places=places,
        tree=None if places is None else tree,
        job_attempt=claimed.attempt,
        seq=run.seq,
        last_error=claimed.last_error,
        steps=_step_snapshots(steps, tree, places),
    )


def _step_snapshots(rows: Rows, tree: Tree, places: tuple[int, ...] | None) -> list[StepSnapshot]:
    found = []
    for _, node, key, seq, attempt, failed in rows:
        ordinal = ids.ordinal_of_text(node)
        if places is not None:
            ordinal = places.index(ordinal)
            if isinstance(tree.nodes[ordinal].definition, Gone):
                continue  # its action is gone from the definition, and its way back with it
        found.append(StepSnapshot(ordinal, key, seq, attempt, failed))
    return found


def misfit(tree: Tree, theirs: Container[str], live: Iterable[str]) -> str | None:
    """Why the definition's tree can't go on with a run that has nodes of the paths `theirs`, of which `live` are not
    over; None if it can.

    A node of the definition that the run does not have cannot be settled, and one of the run that is
    still live cannot be run without its definition.
    """
    missing = next((node.path for node in tree.nodes[1:] if node.path not in theirs), None)
    if missing is not None:
        return f"the definition has {missing!r}, the run has not"
    left = next((path for path in live if path not in tree.by_path), None)
    if left is not None:
        return f"the run has {left!r} still to do, the definition has it no more"
    return None


def _match_tree(tree: Tree, rows: Rows, groups: Rows) -> tuple[Tree, tuple[int, ...]]:
    """The definition's tree as the run has it, matched by path: with jobs where they are in the run's own tree, and
    with nodes that are over there and gone from the definition. And where in the run's own tree its nodes are.

    Raises `Misfit` where `misfit` has something to say.
    """
    origins: dict[str, Origin] = {}
    beside = {path: first for _, path, first in groups}
    for _, node_id, path, *_, unit in rows:
        ordinal = ids.ordinal_of_text(node_id)
        origins[path] = Origin(ordinal, unit == ordinal, beside.get(path))
    if (reason := misfit(tree, origins, [row[2] for row in rows if row[3] in states.NODE_LIVE])) is not None:
        raise Misfit(reason)
    own_jobs = (False, *(origins[node.path].own_job for node in tree.nodes[1:]))
    whole = placed(tree, own_jobs, removed(tree, origins))
    return whole, (0, *(origins[node.path].ordinal for node in whole.nodes[1:]))


def _next_unit(tree: Tree, rows: Rows, ordinal: int) -> int:
    """Whose job goes on once that of this node is over, which the definition has no more."""
    node = tree.nodes[ordinal]
    while isinstance(node.definition, Gone):
        if not node.parent:
            live = {row[2] for row in rows if row[3] in states.NODE_LIVE}
            return min(pipeline for (pipeline,) in tree.nodes[0].groups if tree.nodes[pipeline].path in live)
        node = tree.nodes[node.parent]
    return node.unit


async def release(
    port: Port, claims: Iterable[Claim], *, delay: float, refund: bool, reason: str | None = None
) -> None:
    """Gives claimed jobs back, due after `delay` seconds; `refund` gives their attempt back too."""
    claims = list(claims)
    failpoints.hit("release.before")
    parameters = (
        plain([c.job_id for c in claims]),
        plain([c.token for c in claims]),
        plain([delay for _ in claims]),
        plain([int(refund) for _ in claims]),
        texts([_told(c, reason) for c in claims]),
    )
    await port.run([(sql.RELEASE, parameters)])


def _told(claim: Claim, reason: str | None) -> str | None:
    """What the job is to say, None for what it says already. What has not begun stays so until it is started."""
    if claim.opened is None and not is_unbegun(claim.last_error):
        return reason
    if claim.started:
        return reason or ""
    return f"{UNBEGUN}: {reason or 'given back by its worker'}"


async def lost(port: Port, leases: Iterable[Lease]) -> dict[str, str]:
    """Which of these leases are gone, by their tokens: `cancelled`, or `lease-lost`."""
    return (await look(port, leases)).lost


Members = set[tuple[str, str]]
"""(token, node id)"""


@dataclass(frozen=True, slots=True)
class Seen:
    """`lost` as `lost()` tells, the suspended handlers that are `due`, and the children that are `over`."""

    lost: dict[str, str]
    due: Members
    over: Members


async def look(
    port: Port,
    leases: Iterable[Lease],
    asleep: Sequence[tuple[str, str]] = (),
    awaited: Sequence[tuple[str, str]] = (),
) -> Seen:
    """What has happened meanwhile to units at work: to these leases, to their handlers that are `asleep`, and to the
    nodes with jobs of their own that are `awaited`.
    """
    asked = list(leases)
    question = (
        plain([lease.token for lease in asked]),
        plain([lease.job_id for lease in asked]),
        plain([lease.run_id for lease in asked]),
    )
    members = [(sql.DUE_MEMBERS, asleep), (sql.OVER_MEMBERS, awaited)]
    rows, *found = await port.run(
        [(sql.LOST, question)]
        + [
            (statement, (plain([token for token, _ in which]), plain([node for _, node in which])))
            for statement, which in members
            if which
        ]
    )
    due, over = [{(token, node) for token, node in found.pop(0)} if which else set() for _, which in members]
    return Seen(dict(rows), due, over)


async def release_stranded(port: Port, worker_id: str, known: Iterable[str]) -> tuple[int, int]:
    """Gives back the worker's jobs that carry none of these tokens, attempts included: how many it was, and how many
    are left because somebody has locked them.
    """
    ((released, found),) = (await port.run([(sql.RELEASE_STRANDED, (worker_id, plain(known), worker_id))]))[0]
    return released, found - released


async def drop(port: Port, claims: Iterable[Claim]) -> None:
    """Deletes claimed jobs that need no boundary."""
    claims = list(claims)
    await port.run([(sql.DROP, (plain([c.job_id for c in claims]), plain([c.token for c in claims])))])
