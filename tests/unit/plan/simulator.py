"""The database side of one run, in memory: what the store's statements do to rows, done to objects.

`Database.settle` applies a boundary in the order of the statements that settle it, with their guards, and
asserts what the database's own triggers and constraints assert: legal edges, known statuses, plain JSON. A
boundary that leaves a node in a status which it does not have is a mistake of the planner, so it is an error
here rather than a refusal. Time stands still until `Database.now` is moved.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from workflow import states
from workflow.definitions import Stage, Tree, Workflow
from workflow.manager.resets import to_reset
from workflow.plan import Boundary, Change, NodeSnapshot, RunSnapshot, nest, seed
from workflow.plan.boundary import AWAIT, DELETE, KEEP, RELEASE
from workflow.plan.snapshot import needed

NODE_TERMINAL = tuple(status for status in states.NODE_STATUSES if status not in states.NODE_LIVE)


@dataclass(slots=True)
class Row:
    """A node's row; JSON columns as text."""

    status: str = states.PENDING
    attempt: int = 0
    compensate_attempt: int = 0
    output: str | None = None
    error: str | None = None
    progress: float | None = None
    due_at: float | None = None
    completed_seq: int | None = None
    wait_event: str | None = None
    wait_correlation: str | None = None
    wait_until: float | None = None
    wait_outcome: str | None = None

    @property
    def failure(self) -> dict[str, Any] | None:
        return None if self.error is None else json.loads(self.error)


@dataclass(slots=True)
class JobRow:
    kind: str
    ordinal: int
    available_at: float
    attempt: int = 0
    token: int | None = None
    last_error: str = ""


@dataclass(slots=True)
class Entry:
    """One row of history."""

    seq: int
    name: str
    node: str | None
    data: dict[str, Any]


@dataclass(slots=True)
class Lease:
    ordinal: int
    token: int
    attempt: int
    last_error: str


@dataclass(slots=True)
class RunRow:
    """The run's row as a claim read it."""

    status: str
    seq: int
    state: str
    error: str | None


@dataclass
class Database:
    """The rows of one run. The jobs that deliver events and look for missed ones belong to no run, so not here."""

    workflow: Workflow
    input: Any = None
    now: float = 0.0
    status: str = states.PENDING
    seq: int = 0
    error: str | None = None
    state: str = "{}"
    rows: list[Row] = field(default_factory=list)
    jobs: dict[int, JobRow] = field(default_factory=dict)
    history: list[Entry] = field(default_factory=list)
    tokens: int = 0
    paused: bool = False
    """The run's queue; or something of a higher priority is due: jobs that want to move on do not get to."""
    passes: int = 1
    """How often the run was sent on its way: once, and once more for each retry."""
    begun: dict[int, int] = field(default_factory=dict)
    """By node that a retry has reset: the number of the history entry after which its story begins anew."""

    def __post_init__(self) -> None:
        """Dispatches the run."""
        self.state = json.dumps(seed(self.input))
        self.rows = [Row() for _ in self.tree.nodes]
        self.jobs[1] = JobRow(states.UNIT, 1, self.now)

    @property
    def tree(self) -> Tree:
        return self.workflow.tree

    # --- claiming -------------------------------------------------------------------------------

    def due(self) -> list[JobRow]:
        """The jobs that a worker may claim."""
        return [job for job in self.jobs.values() if job.token is None and job.available_at <= self.now]

    def claim(self, job: JobRow) -> Lease:
        self.tokens += 1
        job.token = self.tokens
        job.attempt += 1
        return Lease(job.ordinal, job.token, job.attempt, job.last_error)

    def read_run(self) -> RunRow:
        return RunRow(self.status, self.seq, self.state, self.error)

    def snapshot(self, lease: Lease, run: RunRow | None = None) -> RunSnapshot:
        """What the claimed unit is told: `run` as the claim saw it, the rows as they are now."""
        run = run or self.read_run()
        nodes = [NodeSnapshot()] * len(self.rows)
        ranges = [] if run.status == states.PENDING else needed(self.tree, lease.ordinal)
        for first, last in ranges:
            for ordinal in range(first, last + 1):
                nodes[ordinal] = self._node(self.rows[ordinal])
        return RunSnapshot(
            status=run.status,
            input=json.loads(json.dumps(self.input)),
            state=json.loads(run.state),
            nodes=nodes,
            error=None if run.error is None else json.loads(run.error),
            last_error=lease.last_error,
            job_attempt=lease.attempt,
            seq=run.seq,
        )

    def _node(self, row: Row) -> NodeSnapshot:
        return NodeSnapshot(
            status=row.status,
            attempt=row.attempt,
            compensate_attempt=row.compensate_attempt,
            due_in=None if row.due_at is None else row.due_at - self.now,
            output=None if row.output is None else json.loads(row.output),
            error=row.failure,
            completed_seq=row.completed_seq,
            wait_outcome=None if row.wait_outcome is None else json.loads(row.wait_outcome),
        )

    def reap(self, lease: Lease, code: str) -> None:
        """The sweep takes a lease away from a worker that is gone, or has been at it for too long."""
        job = self.jobs.get(lease.ordinal)
        if job is not None and job.token == lease.token:
            job.token = None
            job.available_at = self.now + min(job.attempt, 60)
            job.last_error = f"{code}: worker {lease.token}"

    def holds(self, lease: Lease) -> bool:
        job = self.jobs.get(lease.ordinal)
        return job is not None and job.token == lease.token

    # --- settling -------------------------------------------------------------------------------

    def settle(self, lease: Lease, boundary: Boundary) -> bool:
        """False: refused, because the lease is gone, the run goes another way, or the job is not to move on."""
        job = self.jobs.get(lease.ordinal)
        allowed = (states.COMPENSATING,) if boundary.compensating else states.RUN_FORWARD
        if job is None or not self.holds(lease) or self.status not in allowed:
            return False
        if boundary.moves and (self.paused or len(self.jobs) > 1 or self._is_stale(boundary)):
            return False
        first = self.seq
        self._update_run(boundary)
        for change in boundary.changes:
            self._update_node(change, first)
        assert len({change.ordinal for change in boundary.changes}) == len(boundary.changes), (
            "one change a node"
        )
        for position, entry in enumerate(boundary.history, 1):
            assert entry.name in states.EVENTS
            assert entry.node is None or entry.node in self.tree.by_path
            data = {} if entry.data is None else json.loads(entry.data)
            if entry.due is not None:
                data["due_at"] = self.now + entry.due
            self.history.append(Entry(first + position, entry.name, entry.node, data))
        if boundary.cancel_pending:
            self._cancel_rest(job)
        self._own_job(job, lease, boundary)
        self._new_jobs(boundary)
        self._wake(boundary)
        if boundary.job == AWAIT:
            self._quiet()
        return True

    def _is_stale(self, boundary: Boundary) -> bool:
        """A queued child may have been settled by a job of its own since the unit has read it. The unit touches it only
        where its job moves on to it, and then the guard of the nodes refuses the boundary."""
        return any(self.rows[change.ordinal].status != change.source for change in boundary.changes)

    def _update_run(self, boundary: Boundary) -> None:
        target = boundary.run_target
        if target is not None and target != self.status:
            assert target in states.RUN_EDGES[self.status], f"run {self.status} -> {target}"
            self.status = target
        self.seq += len(boundary.history)
        if boundary.patch is not None:
            patch = json.loads(boundary.patch)
            assert isinstance(patch, dict)
            self.state = json.dumps({**json.loads(self.state), **patch})
        if boundary.run_error is not None:
            self.error = json.dumps(json.loads(boundary.run_error))

    def _update_node(self, change: Change, first: int) -> None:
        row = self.rows[change.ordinal]
        path = self.tree.nodes[change.ordinal].path
        assert row.status == change.source, f"{path} is {row.status}, and the change leaves {change.source}"
        if change.target != change.source:
            edge = f"{path}: {change.source} -> {change.target}"
            assert change.target in states.NODE_EDGES[change.source], edge
        row.status = change.target
        if change.attempt is not None:
            row.attempt = change.attempt
        if change.compensate_attempt is not None:
            row.compensate_attempt = change.compensate_attempt
        if change.output is not None:
            row.output = json.dumps(json.loads(change.output))
        if change.error is not None:
            row.error = None if change.error == "" else json.dumps(json.loads(change.error))
        if change.progress is not None:
            row.progress = change.progress
        row.due_at = None if change.due is None else self.now + change.due
        if change.event is not None:
            row.completed_seq = first + change.event
        if change.target != states.WAITING:
            row.wait_outcome = None
        if change.wait is not None:
            row.wait_event, row.wait_correlation = change.wait.event, change.wait.correlation
            row.wait_until = None if change.wait.timeout is None else self.now + change.wait.timeout
            row.wait_outcome = None

    def _cancel_rest(self, own: JobRow) -> None:
        for row in self.rows[1:]:
            if row.status in states.NODE_LIVE:
                row.status, row.due_at = states.CANCELLED, None
                row.wait_event = row.wait_correlation = row.wait_until = row.wait_outcome = None
        self.jobs = {ordinal: job for ordinal, job in self.jobs.items() if job is own}

    def _own_job(self, job: JobRow, lease: Lease, boundary: Boundary) -> None:
        if boundary.moves:
            del self.jobs[job.ordinal]
            job.ordinal = lease.ordinal = boundary.moves[-1]
            assert job.ordinal not in self.jobs, "one job a node"
            self.jobs[job.ordinal] = job
            job.kind = states.UNIT if job.ordinal else states.COMPENSATE
            job.attempt = lease.attempt = 1
            job.last_error = lease.last_error = ""
        if boundary.job in (KEEP, RELEASE):
            if boundary.job == RELEASE:
                job.token, job.available_at = None, self.now + boundary.delay
            job.attempt -= boundary.refund
            assert job.attempt >= 0
            job.last_error = job.last_error if boundary.last_error is None else boundary.last_error
        if any(self._settled(members) for members in boundary.awaited):
            job.token, job.available_at = None, self.now
        if boundary.job in (DELETE, AWAIT) and job.token == lease.token:
            del self.jobs[job.ordinal]

    def _settled(self, members: tuple[int, ...]) -> bool:
        assert members
        rows = [self.rows[member] for member in members]
        return all(
            row.status not in states.NODE_LIVE
            or row.wait_outcome is not None
            or (row.status == states.WAITING and row.due_at is not None and row.due_at <= self.now)
            for row in rows
        )

    def _new_jobs(self, boundary: Boundary) -> None:
        for new in boundary.new_jobs:
            self.jobs.setdefault(new.ordinal, JobRow(new.kind, new.ordinal, self.now + new.delay))

    def _wake(self, boundary: Boundary) -> None:
        for wake in boundary.wakes:
            if all(self.rows[sibling].status not in states.NODE_LIVE for sibling in wake.siblings):
                self._ring(wake.unit)

    def _ring(self, unit: int) -> None:
        job = self.jobs.setdefault(unit, JobRow(states.UNIT, unit, self.now))
        if job.token is None:
            job.available_at = min(job.available_at, self.now)

    def _quiet(self) -> None:
        parked = [
            node.path
            for node, row in zip(self.tree.nodes, self.rows, strict=True)
            if node.kind == states.STAGE and row.wait_event is not None
        ]
        suspended = any(
            node.kind == states.ACTION and row.status == states.WAITING
            for node, row in zip(self.tree.nodes, self.rows, strict=True)
        )
        if self.status == states.RUNNING and parked and not suspended and not self.jobs:
            self.status = states.WAITING
            self._tell(states.EVENT_WAITING, parked[0])

    def _tell(self, name: str, node: str | None = None) -> None:
        self.seq += 1
        self.history.append(Entry(self.seq, name, node, {}))

    # --- what happens to a run from outside -----------------------------------------------------

    def parked(self) -> list[int]:
        """The wait stages that nothing has resolved yet."""
        return [
            node.ordinal
            for node, row in zip(self.tree.nodes, self.rows, strict=True)
            if isinstance(node.definition, Stage)
            and row.status == states.WAITING
            and row.wait_outcome is None
        ]

    def resolve(self, ordinal: int, outcome: dict[str, Any]) -> None:
        """An event, a `resume` or the deadline ends a wait, and its unit goes on."""
        row, node = self.rows[ordinal], self.tree.nodes[ordinal]
        row.wait_outcome = json.dumps(outcome)
        row.wait_event = row.wait_correlation = row.wait_until = None
        if not outcome.get("timeout"):
            assert self.status in (states.RUNNING, states.WAITING)
            self.status = states.RUNNING
            self._tell(states.EVENT_RESUMED, node.path)
        self._ring(node.unit)

    def cancel(self) -> None:
        assert self.status in states.RUN_FORWARD
        for row in self.rows[1:]:
            if row.status in states.NODE_LIVE:
                row.status = states.CANCELLED
        self.jobs.clear()
        self.status = states.CANCELLED
        self._tell(states.EVENT_CANCELLED)

    def retry(self, path: str | None = None) -> None:
        """Brings a failed run back: all that is not done is reset, with `path` also what comes from there on."""
        assert self.status == states.FAILED
        again = set() if path is None else set(to_reset(self.tree, path))
        for node, row in zip(self.tree.nodes[1:], self.rows[1:], strict=True):
            if row.status not in states.NODE_DONE or node.path in again:
                self.rows[node.ordinal] = Row()
                self.begun[node.ordinal] = self.seq
        self.state = json.dumps(self.replay())
        self.status, self.error = states.RUNNING, None
        self.passes += 1
        self._tell(states.EVENT_RESUMED)
        pipeline = next(
            p for (p,) in self.tree.nodes[0].groups if self.rows[p].status not in states.NODE_DONE
        )
        self.jobs[pipeline] = JobRow(states.UNIT, pipeline, self.now)

    # --- looking --------------------------------------------------------------------------------

    def replay(self, hidden: set[int] | None = None) -> dict[str, Any]:
        """The state made from the input and the outputs that stand, in the order in which they completed."""
        state = dict(seed(self.input))
        order = sorted(
            (row.completed_seq, ordinal)
            for ordinal, row in enumerate(self.rows)
            if row.completed_seq is not None
            and row.status in (states.COMPLETED, states.COMPENSATED)
            and not (hidden and ordinal in hidden)
        )
        for _, ordinal in order:
            output = self.rows[ordinal].output
            state.update(
                nest(self.tree.nodes[ordinal].key, None if output is None else json.loads(output)) or {}
            )
        return state

    def visible_to(self, reader: int) -> dict[str, Any]:
        """The state that a node is to read: without what the parallel members beside it, or beside one of the
        nodes that it lies in, have added."""
        hidden: set[int] = set()
        place = self.tree.nodes[reader]
        while place.parent >= 0:
            parent = self.tree.nodes[place.parent]
            (group,) = [group for group in parent.groups if place.ordinal in group]
            for mate in group:
                if mate != place.ordinal:
                    hidden.update(range(mate, self.tree.nodes[mate].end))
            place = parent
        return self.replay(hidden)
