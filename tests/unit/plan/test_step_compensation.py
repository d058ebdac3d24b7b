"""The walk back through steps: each in its own place, with attempts of its own in the ledger."""

from tests.unit.plan.scene import act, flow, nothing, stage
from workflow.plan import Completed, Failed, NodeSnapshot, RunSnapshot, Undo, fault
from workflow.plan.snapshot import StepSnapshot, state_before

TREE = flow(stage("s", act("a", compensate=nothing), act("b", compensate_attempts=2), act("c"))).tree
A, B, C = (TREE.by_path[f"w.s.{name}"].ordinal for name in "abc")


def walk(*steps, last_error=""):
    """`a` completed at 5 of the history, `b` at 9 with an output, `c` failed; the run goes back."""
    nodes = [NodeSnapshot(status="running") for _ in TREE.nodes]
    nodes[A] = NodeSnapshot("completed", 1, completed_seq=5, output={"a": 1})
    nodes[B] = NodeSnapshot("completed", 1, completed_seq=9, output={"b": 1})
    nodes[C] = NodeSnapshot("failed", 1, completed_seq=11)
    run = RunSnapshot("compensating", {"x": 1}, {"x": 1, "a": 1, "b": 1}, nodes, {"message": "why"})
    run.steps, run.last_error = list(steps), last_error
    return Undo(TREE, run)


def done(undo):
    """The current compensation is done: the next move."""
    (ordinal,) = undo.inflight
    return undo.advance([Completed(ordinal, None, None)])


def ledger(move):
    return [(step.key, step.status, step.attempt) for step in move.boundary.steps]


def test_steps_and_actions_are_undone_in_one_order():
    undo = walk(
        StepSnapshot(B, "early", 4),
        StepSnapshot(B, "first", 7),
        StepSnapshot(B, "second", 7),
        StepSnapshot(C, "c", 9),
    )
    move, seen = undo.begin(), []
    while not move.done:
        (start,) = move.starts
        seen.append((start.ordinal, start.step))
        move = done(undo)
    assert seen == [(C, "c"), (B, "second"), (B, "first"), (A, None), (B, "early")]
    assert move.boundary.run_target == "compensated"


def test_the_handler_of_a_step_gets_the_state_that_it_was_started_with():
    (start,) = walk(StepSnapshot(B, "step", 7)).begin().starts
    assert start.state == {"x": 1, "a": 1}


def test_what_its_own_stage_gave_once_it_was_over_is_not_in_that_state():
    nodes = [NodeSnapshot(status="running") for _ in TREE.nodes]
    nodes[A] = NodeSnapshot("completed", 1, completed_seq=5, output={"mode": "a"})
    nodes[B] = NodeSnapshot("completed", 1, completed_seq=9, output={"mode": "b"})
    nodes[TREE.nodes[B].parent] = NodeSnapshot("completed", completed_seq=10, output={"mode": "stage"})
    assert state_before(TREE, RunSnapshot("compensating", {"x": 1}, {}, nodes), B) == {"x": 1, "mode": "a"}


def test_each_start_and_end_is_in_the_ledger():
    undo = walk(StepSnapshot(B, "one", 7), StepSnapshot(B, "two", 8))
    assert ledger(undo.begin()) == [("two", "running", 1)]
    assert ledger(done(undo)) == [("two", "completed", 1), ("one", "running", 1)]


def test_an_attempt_that_was_lost_is_spent():
    (start,) = walk(StepSnapshot(B, "step", 7, attempt=1)).begin().starts
    assert (start.step, start.attempt) == ("step", 2)


def test_the_last_attempt_that_was_lost_fails_the_step_and_the_walk_goes_on():
    undo = walk(StepSnapshot(B, "step", 7, attempt=2), last_error="LEASE_HEARTBEAT_LOST")
    move = undo.begin()
    assert ledger(move) == [("step", "failed", 2)]
    (start,) = move.starts
    assert (start.ordinal, start.step) == (A, None)
    move = done(undo)
    assert move.boundary.run_error is not None
    assert '"compensation_failures":["w.s.b"]' in move.boundary.run_error


def test_one_that_failed_for_good_before_is_not_tried_again_and_is_still_told_of():
    undo = walk(StepSnapshot(B, "one", 7, 2, failed=True), StepSnapshot(B, "two", 8, 2, failed=True))
    (start,) = undo.begin().starts
    assert start.step is None
    assert '"compensation_failures":["w.s.b"]' in (done(undo).boundary.run_error or "")


def test_a_retry_at_once_is_one_row_in_one_boundary():
    undo = walk(StepSnapshot(B, "step", 7))
    undo.begin()
    move = undo.advance([Failed(B, fault("ACTION_FAILED", "no", "w.s.b"), delay=0.0)])
    assert ledger(move) == [("step", "running", 2)]


def test_a_retry_that_waits_gives_the_job_back():
    undo = walk(StepSnapshot(B, "step", 7))
    undo.begin()
    move = undo.advance([Failed(B, fault("ACTION_FAILED", "no", "w.s.b"), delay=3.0)])
    assert (move.done, move.boundary.job, move.boundary.delay) == (True, "release", 3.0)


def test_a_walk_that_is_given_back_spends_no_attempt():
    undo = walk(StepSnapshot(B, "step", 7))
    undo.begin()
    move = undo.release()
    assert ledger(move) == [("step", "running", 0)]
    assert move.boundary.refund
