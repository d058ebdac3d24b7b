"""What must hold of every run, whatever happens to it: looked at after each boundary, and at the end."""

from __future__ import annotations

import json
from collections import Counter

from tests.unit.plan.drive import Actor, Looker
from tests.unit.plan.simulator import NODE_TERMINAL, Database, Entry
from tests.unit.plan.trees import marked
from workflow import states
from workflow.definitions import Action, Stage, TreeNode, Workflow
from workflow.errors import FailureCode
from workflow.plan import Ask, Move, Start

FINAL = (states.EVENT_COMPLETED, states.EVENT_COMPENSATED, states.EVENT_FAILED, states.EVENT_CANCELLED)


class Watch(Looker):
    """Looks at each boundary once it is in the database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.compensated: list[int] = []
        """Actions in the order in which their compensations began for the first time."""

    def settled(self, actor: Actor, move: Move) -> None:
        self._starts(move)
        for start in move.starts:
            if start.compensation:
                self._undoes(start)
            else:
                self._reads(start)
                assert self.database.rows[start.ordinal].status == states.RUNNING
                assert self.database.rows[start.ordinal].attempt == start.attempt
        for ask in move.asks:
            self._reads(ask)
        self._state_holds()

    def checkpoint(self, actor: Actor, ordinal: int) -> None:
        self._state_holds()

    def idle(self) -> None:
        """A run that nothing drives is over, or parked and says so."""
        if self.database.status not in states.RUN_TERMINAL:
            assert self.database.parked()
            assert self.database.status == states.WAITING

    def _state_holds(self) -> None:
        assert json.loads(self.database.state) == self.database.replay(), (
            "the state is what the outputs make of it"
        )

    def _starts(self, move: Move) -> None:
        """Each attempt that starts is told once, and a handler that was suspended goes on without a word."""
        told = {
            (self.database.tree.by_path[entry.node or ""].ordinal, json.loads(entry.data or "{}")["attempt"])
            for entry in move.boundary.history
            if entry.name == states.EVENT_ACTION_STARTED
        }
        resumed = {entry.node for entry in move.boundary.history if entry.name == states.EVENT_RESUMED}
        fresh = {
            (start.ordinal, start.attempt)
            for start in move.starts
            if not start.compensation and self.database.tree.nodes[start.ordinal].path not in resumed
        }
        assert told == fresh

    def _reads(self, question: Start | Ask) -> None:
        """Its turn has come, and it reads what is its to read."""
        node = self.database.tree.nodes[question.ordinal]
        while node.parent >= 0:
            for before in _groups_before(self.database, node):
                assert self.database.rows[before].status in states.NODE_DONE, "an earlier group is not over"
            node = self.database.tree.nodes[node.parent]
            if node.parent >= 0:
                assert self.database.rows[node.ordinal].status == states.RUNNING
        if isinstance(question, Ask) and question.checks:
            return  # it is asked about what its members gave
        assert question.state == self.database.visible_to(question.ordinal)

    def _undoes(self, start: Start) -> None:
        row = self.database.rows[start.ordinal]
        assert row.status == states.COMPLETED
        assert row.compensate_attempt == start.attempt
        assert start.state == json.loads(self.database.state)
        if start.ordinal not in self.compensated:
            self.compensated.append(start.ordinal)


def _groups_before(database: Database, node: TreeNode) -> list[int]:
    found: list[int] = []
    for group in database.tree.nodes[node.parent].groups:
        if node.ordinal in group:
            return found
        found += group
    raise AssertionError("a node without a group")


def check_over(database: Database, watch: Watch) -> None:
    """The run has come to its end, and everything about it fits together."""
    assert database.status in states.RUN_TERMINAL
    assert not database.jobs
    for node, row in zip(database.tree.nodes[1:], database.rows[1:], strict=True):
        assert row.status in NODE_TERMINAL, f"{node.path} is left {row.status}"
    check_history(database)
    check_attempts(database)
    check_tree(database)
    check_compensation(database, watch)
    check_errors(database)


def check_history(database: Database) -> None:
    """Numbers without gaps, one end, and an order that makes sense."""
    history = database.history
    assert [entry.seq for entry in history] == list(range(1, database.seq + 1))
    started = [entry.seq for entry in history if entry.name == states.EVENT_STARTED]
    assert started == [1] or (not started and database.status == states.CANCELLED)
    ends = [entry for entry in history if entry.name in FINAL]
    assert len(ends) == database.passes
    assert history[-1] is ends[-1]
    assert history[-1].name == database.status
    for node in database.tree.nodes[1:]:
        since = database.begun.get(node.ordinal, 0)
        _check_story(node, [entry for entry in history if entry.node == node.path and entry.seq > since])
    for node, row in zip(database.tree.nodes, database.rows, strict=True):
        if row.completed_seq is not None and row.status in (states.COMPLETED, states.COMPENSATED):
            entry = history[row.completed_seq - 1]
            assert entry.node == node.path
            assert entry.name == f"{node.kind}.completed"


def _check_story(node: TreeNode, entries: list[Entry]) -> None:
    """The history of one node, in one pass: attempts that count up, then one outcome, then its undoing."""
    names = [entry.name for entry in entries]
    outcomes = [name for name in names if name in _OUTCOMES]
    assert len(outcomes) <= 1, f"{node.path}: {names}"
    if node.kind == states.PIPELINE:
        assert not names
    attempt = 0
    for position, entry in enumerate(entries):
        if entry.name == states.EVENT_ACTION_STARTED:
            assert not set(names[:position]) & set(_OUTCOMES)
            assert entry.data["attempt"] == attempt + 1
            attempt += 1
        elif entry.name == states.EVENT_ACTION_RETRYING and entry.data.get("compensation"):
            assert states.EVENT_ACTION_COMPLETED in names[:position]
        elif entry.name == states.EVENT_ACTION_RETRYING:
            assert entry.data["attempt"] == attempt
            if entry.data.get("reason") == "shutdown":
                attempt -= 1
            else:
                assert entry.data["error"] is not None
        elif entry.name == states.EVENT_ACTION_COMPLETED:
            assert entry.data["attempt"] == attempt >= 1
        elif entry.name in (states.EVENT_ACTION_COMPENSATED, states.EVENT_ACTION_COMPENSATION_FAILED):
            assert states.EVENT_ACTION_COMPLETED in names[:position]


_OUTCOMES = (
    states.EVENT_ACTION_COMPLETED,
    states.EVENT_ACTION_FAILED,
    states.EVENT_ACTION_SKIPPED,
    states.EVENT_STAGE_COMPLETED,
    states.EVENT_STAGE_FAILED,
    states.EVENT_STAGE_SKIPPED,
)


def check_attempts(database: Database) -> None:
    for node, row in zip(database.tree.nodes, database.rows, strict=True):
        if isinstance(node.definition, Action):
            assert row.attempt <= node.definition.attempts
            assert row.compensate_attempt <= node.definition.compensate_attempts
        else:
            assert row.attempt == 0


def check_tree(database: Database) -> None:
    """Statuses of parents and children fit, and so do their outputs."""
    for node, row in zip(database.tree.nodes[1:], database.rows[1:], strict=True):
        below = database.rows[node.ordinal + 1 : node.end]
        children = [database.rows[child] for group in node.groups for child in group]
        if row.status == states.SKIPPED:
            assert all(other.status == states.SKIPPED for other in below)
        elif row.status == states.COMPLETED:
            done = (*states.NODE_DONE, states.COMPENSATED)
            assert all(child.status in done for child in children)
        elif row.status == states.CANCELLED:
            assert database.status != states.COMPLETED
        for group, later in zip(node.groups, node.groups[1:], strict=False):
            if any(database.rows[member].status == states.FAILED for member in group):
                assert all(database.rows[member].status == states.CANCELLED for member in later)
        if isinstance(node.definition, Stage) and node.definition.output is not None and node.groups:
            _check_stage_output(database, node)
    if database.status == states.COMPLETED:
        pipelines = [database.rows[p].status for (p,) in database.tree.nodes[0].groups]
        assert set(pipelines) <= set(states.NODE_DONE)


def _check_stage_output(database: Database, node: TreeNode) -> None:
    row = database.rows[node.ordinal]
    if row.status != states.COMPLETED:
        return
    children = {child for group in node.groups for child in group}
    hidden = set(range(len(database.rows))) - children
    merged = database.replay(hidden)
    for key, value in (database.input or {}).items():  # the merge is of outputs alone
        if merged.get(key) == value:
            merged.pop(key, None)
    assert json.loads(row.output or "null") == marked(merged, node.name)


def check_compensation(database: Database, watch: Watch) -> None:
    """Newest first, each undone once, and what cannot be undone is written down and passed by."""
    workflow = database.tree.nodes[0].definition
    assert isinstance(workflow, Workflow)
    undone = {n for n, row in enumerate(database.rows) if row.status == states.COMPENSATED}
    failed = {
        n
        for n, row in enumerate(database.rows)
        if row.failure is not None and row.failure["code"] == FailureCode.COMPENSATION_FAILED
    }
    if database.status != states.COMPENSATED:
        assert not undone
        assert not failed
        assert not watch.compensated
        if database.status == states.FAILED:
            assert workflow.on_failure == "halt"
        return
    assert workflow.on_failure == "compensate"
    owed = sorted(
        (row.completed_seq or 0, n)
        for n, row in enumerate(database.rows)
        if isinstance(definition := database.tree.nodes[n].definition, Action)
        and definition.compensate_handler is not None
        and row.status in (states.COMPLETED, states.COMPENSATED)
    )
    assert watch.compensated == [n for _, n in reversed(owed)]
    assert undone | failed == {n for _, n in owed}
    assert not undone & failed
    paths = {database.tree.nodes[n].path for n in failed}
    error = json.loads(database.error or "{}")
    assert set(error.get("compensation_failures", [])) == paths
    assert len(error.get("compensation_failures", [])) == len(paths)
    names = Counter((entry.name, entry.node) for entry in database.history)
    for n in undone:
        assert names[states.EVENT_ACTION_COMPENSATED, database.tree.nodes[n].path] == 1
    for path in paths:
        assert names[states.EVENT_ACTION_COMPENSATION_FAILED, path] == 1


def check_errors(database: Database) -> None:
    """The first failure is the one that everything above it carries."""
    when = {
        database.tree.by_path[entry.node].ordinal: entry.seq
        for entry in database.history
        if entry.node is not None and entry.name in (states.EVENT_ACTION_FAILED, states.EVENT_STAGE_FAILED)
    }
    for node, row in zip(database.tree.nodes[1:], database.rows[1:], strict=True):
        if row.status in (states.COMPLETED, states.SKIPPED):
            code = None if row.failure is None else row.failure["code"]
            assert code in (None, FailureCode.COMPENSATION_FAILED), f"{node.path} keeps an error it got over"
        if row.status != states.FAILED:
            continue
        assert row.failure is not None
        below = [
            (when[other], other)
            for other in range(node.ordinal + 1, node.end)
            if database.rows[other].status == states.FAILED
        ]
        if below:
            assert row.failure == database.rows[min(below)[1]].failure
    failed = [p for (p,) in database.tree.nodes[0].groups if database.rows[p].status == states.FAILED]
    if database.status in (states.COMPENSATED, states.FAILED):
        (pipeline,) = failed
        error = {**json.loads(database.error or "{}")}
        error.pop("compensation_failures", None)
        assert error == database.rows[pipeline].failure
    else:
        assert not failed
        assert database.error is None
