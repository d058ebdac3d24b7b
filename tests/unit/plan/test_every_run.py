"""Random trees, random outcomes, random interleavings: what holds of every run (`rules` says what)."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.unit.plan.drive import Fate, Tape, Workers
from tests.unit.plan.rules import Watch, check_over
from tests.unit.plan.simulator import Database
from tests.unit.plan.trees import sketch, workflows
from workflow import Action, Workflow, states
from workflow.plan.losses import MAX_CLAIMS

# At random at a desk, always the same way in CI. A busy machine is no fault of the code.
thorough = settings(
    max_examples=120,
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
tapes = st.builds(Tape, st.binary(max_size=120), st.integers(0, 2**32))
inputs = st.sampled_from([None, {"a": 0}, {"z": 0}])
TROUBLE = (
    "failures",
    "refusals",
    "skips",
    "timeouts",
    "suspensions",
    "crashes",
    "shutdowns",
    "anew",
    "pauses",
)


def only(**trouble: int) -> Fate:
    """Nothing goes wrong but this."""
    fate = Fate()
    for name in TROUBLE:
        setattr(fate, name, trouble.get(name, 0))
    fate.caps = trouble.get("caps", fate.caps)
    return fate


def play(workflow: Workflow, value: Any, tape: Tape, fate: Fate, deeds: Tape | None = None) -> Database:
    """A whole run, looked at after each boundary and at its end."""
    database = Database(workflow, value)
    watch = Watch(database)
    note(sketch(workflow))
    try:
        Workers(database, watch).run(tape, fate, deeds)
    finally:
        note(
            "\n".join(
                f"{entry.seq} {entry.name} {entry.node or ''} {entry.data}" for entry in database.history
            )
        )
    check_over(database, watch)
    return database


def actions_of(database: Database) -> list[int]:
    return [node.ordinal for node in database.tree.nodes if isinstance(node.definition, Action)]


@thorough
@given(workflows(), inputs, tapes)
def test_a_run_ends_whole_whatever_happens_to_it(workflow: Workflow, value: Any, tape: Tape) -> None:
    play(workflow, value, tape, Fate())


@thorough
@given(workflows(), inputs, tapes)
def test_a_run_that_is_cancelled_at_any_moment_ends_whole(workflow: Workflow, value: Any, tape: Tape) -> None:
    play(workflow, value, tape, Fate(cancels=3))


@pytest.mark.parametrize("moves", [0, 100])
@thorough
@given(workflow=workflows(calm=True, halting=True), value=inputs, tape=tapes)
def test_a_run_that_is_brought_back_time_and_again_reads_what_stands(
    moves: int, workflow: Workflow, value: Any, tape: Tape
) -> None:
    fate = only(failures=15, skips=15, suspensions=5)
    fate.fatal, fate.moves, fate.retries = 80, moves, 100
    fate.left["retry"] = 8
    play(workflow, value, tape, fate)


@thorough
@given(workflows(calm=True), tapes)
def test_a_run_without_trouble_runs_each_action_once_and_completes(workflow: Workflow, tape: Tape) -> None:
    database = play(workflow, {"a": 0}, tape, only())
    assert database.status == states.COMPLETED
    assert [database.rows[ordinal].attempt for ordinal in actions_of(database)] == [1] * len(
        actions_of(database)
    )
    assert {row.status for row in database.rows[1:]} == {states.COMPLETED}


@thorough
@given(workflows(calm=True), tapes)
def test_waiting_stopping_and_looking_again_spend_nothing(workflow: Workflow, tape: Tape) -> None:
    database = play(workflow, {"a": 0}, tape, only(suspensions=30, shutdowns=10, anew=10))
    assert database.status == states.COMPLETED
    assert [database.rows[ordinal].attempt for ordinal in actions_of(database)] == [1] * len(
        actions_of(database)
    )


@thorough
@given(workflows(calm=True), tapes)
def test_only_an_action_that_is_lost_on_every_attempt_fails_a_run_whose_workers_die(
    workflow: Workflow, tape: Tape
) -> None:
    fate = only(crashes=15, suspensions=5, caps=0)
    fate.left["crash"] = MAX_CLAIMS - 1  # else a gate may be taken for what kills them
    database = play(workflow, {"a": 0}, tape, fate)
    if database.status != states.COMPLETED:
        lost = [n for n in actions_of(database) if database.rows[n].status == states.FAILED]
        assert lost
        for ordinal in lost:
            definition = database.tree.nodes[ordinal].definition
            assert isinstance(definition, Action)
            assert database.rows[ordinal].attempt == definition.attempts
            assert (database.rows[ordinal].failure or {})["code"] == "LEASE_HEARTBEAT_LOST"


def told(database: Database) -> Any:
    """All that anybody can see of a run, without the times."""
    history = [(e.name, e.node, {**e.data, "due_at": None}) for e in database.history]
    rows = [replace(row, due_at=None, wait_until=None) for row in database.rows]
    return history, database.status, json.loads(database.state), database.error, rows


@thorough
@given(workflows(parallel_too=False), inputs, st.binary(max_size=120), st.integers(0, 2**32))
def test_whether_a_job_moves_on_or_is_claimed_anew_nobody_can_tell(
    workflow: Workflow, value: Any, numbers: bytes, seed: int
) -> None:
    stories = []
    for moves, pauses in ((0, 0), (100, 0), (60, 30)):
        fate = only(failures=20, refusals=5, skips=10, timeouts=20, suspensions=10, pauses=pauses)
        fate.moves, fate.retries = moves, 0
        database = play(workflow, value, Tape(seed=seed), fate, Tape(numbers, seed))
        stories.append(told(database))
    assert stories[1] == stories[0]
    assert stories[2] == stories[0]
