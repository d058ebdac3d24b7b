"""Retrying a failed run: what is done again, what stands, and what the run then looks like."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from tests.support import rows
from tests.support.definitions import ORDER, PLAIN, act, nothing
from tests.support.failed import failed_order, failed_phases
from workflow import (
    NodeUnknown,
    RunConflict,
    Stage,
    VersionConflict,
    Workflow,
    WorkflowUnknown,
    parallel,
    workflows,
)
from workflow.manager.resets import to_reset
from workflow.models import Job, Node, Run
from workflow.registry import registry

pytestmark = pytest.mark.django_db


def pending(run_id: Any) -> list[str]:
    return [path for path, status in rows.statuses(run_id).items() if path and status == "pending"]


# --- from the failure ---------------------------------------------------------------------------


def test_a_failed_run_goes_on_from_its_failure() -> None:
    run_id = failed_order()
    before = Node.objects.get(path="order.reserve.stock")

    workflows.retry(run_id)

    found = rows.statuses(run_id)
    assert found[""] == "running"
    assert [path for path, status in found.items() if status == "completed"] == [
        "order.reserve",
        "order.reserve.stock",
        "order.reserve.label",
    ]
    assert {status for path, status in found.items() if path not in ("", *_reserve())} == {"pending"}
    after = Node.objects.get(path="order.reserve.stock")
    assert (after.output, after.completed_seq, after.attempt) == (before.output, before.completed_seq, 1)
    run = Run.objects.get()
    assert (run.error, run.finished_at) == (None, None)
    assert run.started_at is not None
    rows.check_whole(run_id)


def _reserve() -> tuple[str, ...]:
    return ("order.reserve", "order.reserve.stock", "order.reserve.label")


def test_what_is_done_again_starts_with_a_clean_row() -> None:
    run_id = failed_order()
    Node.objects.filter(path="order.pay.pay#run").update(
        attempt=3, compensate_attempt=0, progress=50, output={"x": 1}, event_id=run_id, parked_snapshot="1:2:"
    )
    workflows.retry(run_id)
    fresh = dict.fromkeys(
        [
            *("progress", "output", "error", "started_at", "finished_at", "due_at", "completed_seq"),
            *("wait_event", "wait_correlation", "wait_until", "wait_outcome"),
            *("parked_at", "parked_xact", "parked_snapshot", "event_id"),
        ]
    )
    found = Node.objects.values(*fresh, "attempt", "compensate_attempt").get(path="order.pay.pay#run")
    assert found == {**fresh, "attempt": 0, "compensate_attempt": 0}


def test_the_job_of_the_first_pipeline_that_is_not_done_is_due() -> None:
    first, third = failed_order(), failed_phases()
    workflows.retry(first)
    workflows.retry(third)
    one, two = Job.objects.get(run_id=first), Job.objects.get(run_id=third)
    assert (one.kind, one.node_id, one.queue, one.priority) == ("unit", rows.node(first, "order").id, "q", 2)
    assert two.node_id == rows.node(third, "third").id
    assert rows.due(one)
    assert rows.due(two)


def test_the_history_says_that_it_was_a_retry() -> None:
    run_id = failed_order()
    workflows.retry(run_id, by="ann")
    event = rows.last_event(run_id)
    assert (event.name, event.node) == ("resumed", None)
    assert event.data == {"retry": True, "from_node": None, "by": "ann"}


def test_the_state_is_made_again_from_what_stands() -> None:
    run_id = failed_order()
    Run.objects.update(state={"garbage": True})
    workflows.retry(run_id)
    assert Run.objects.get().state == {
        "order_id": "o",
        "total": 0,
        "stock": 3,
        "by": "stock",
        "label": "L-1",
    }


@pytest.mark.parametrize(
    ("value", "seed"), [(None, {}), ([1], {"input": [1]}), (0, {"input": 0}), ({"a": 1}, {"a": 1})]
)
def test_any_input_seeds_the_state_again(value: Any, seed: dict[str, Any]) -> None:
    run_id = workflows.dispatch(PLAIN, value).run_id
    rows.fail(run_id, "plain.s.s#run")
    Run.objects.update(state={"garbage": True})
    workflows.retry(run_id)
    assert Run.objects.get().state == seed


def test_outputs_merge_in_the_order_of_their_completion_and_the_last_one_wins() -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o", "total": 7}).run_id
    rows.start(run_id)
    rows.complete(run_id, "order.reserve.label", {"who": "label", "order_id": "changed", "deep": {"a": 1}})
    rows.complete(run_id, "order.reserve.stock", {"who": "stock", "deep": {"b": 2}, "big": 2**70})
    rows.complete(run_id, "order.pay.pay#run", [1, "2"])
    rows.complete(run_id, "order.paid", False)
    rows.complete(run_id, "order.ship.pack", None)
    rows.fail(run_id, "order.ship.send")
    before = Run.objects.get().state
    Run.objects.update(state={})
    workflows.retry(run_id)
    assert Run.objects.get().state == before
    assert before == {
        "order_id": "changed",
        "total": 7,
        "who": "stock",
        "deep": {"b": 2},
        "big": 2**70,
        "pay": [1, "2"],
        "paid": False,
    }


def test_an_output_that_a_stage_checked_stands_too() -> None:
    run_id = failed_order()
    seq = rows.node(run_id, "order.reserve").completed_seq
    Node.objects.filter(path="order.reserve").update(output={"by": "the stage"}, completed_seq=seq)
    workflows.retry(run_id)
    assert Run.objects.get().state["by"] == "the stage"


def test_a_skipped_node_stays_skipped() -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}).run_id
    rows.start(run_id)
    rows.skip(run_id, ["order.reserve", "order.reserve.stock", "order.reserve.label"])
    rows.fail(run_id, "order.pay.pay#run")
    workflows.retry(run_id)
    assert rows.statuses(run_id)["order.reserve.stock"] == "skipped"


def test_a_run_that_failed_with_everything_done_can_still_complete() -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    rows.start(run_id)
    for path in ("plain.s.s#run", "plain.s", "plain"):
        rows.complete(run_id, path)
    rows.end(run_id, "failed", rows.fault("", "STUCK_RUN_REAPED"))
    workflows.retry(run_id)
    assert rows.statuses(run_id) == {
        "": "running",
        "plain": "pending",
        "plain.s": "completed",
        "plain.s.s#run": "completed",
    }
    assert Job.objects.get().node_id == rows.node(run_id, "plain").id


def test_a_second_retry_is_refused() -> None:
    run_id = failed_order()
    workflows.retry(run_id)
    with pytest.raises(RunConflict, match="running"):
        workflows.retry(run_id)
    assert rows.names(run_id).count("resumed") == 1


# --- from a path --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "again"),
    [
        (
            "order.reserve.label",
            [
                *("order", "order.reserve", "order.reserve.label", "order.pay", "order.pay.pay#run"),
                *("order.paid", "order.ship", "order.ship.pack", "order.ship.notify", "order.ship.send"),
            ],
        ),
        ("order.ship.pack", ["order", "order.ship", "order.ship.pack", "order.ship.send"]),
        ("order.ship.send", ["order", "order.ship", "order.ship.send"]),
        (
            "order.paid",
            [
                *("order", "order.paid"),
                *("order.ship", "order.ship.pack", "order.ship.notify", "order.ship.send"),
            ],
        ),
        ("order", list(ORDER.tree.by_path)),
    ],
)
def test_a_path_resets_its_subtree_and_all_that_comes_after(path: str, again: list[str]) -> None:
    assert to_reset(ORDER.tree, path) == again


def test_every_member_of_a_later_group_is_done_again() -> None:
    stages = [Stage("a", run=nothing), parallel(*(Stage(name, run=nothing) for name in "bcd"))]
    tree = Workflow("fork", stages=stages).tree
    assert to_reset(tree, "fork.a.a#run") == list(tree.by_path)


@pytest.mark.parametrize(
    ("path", "again"),
    [
        (
            "second.left.l",
            [
                *("second", "second.left", "second.left.l", "second.after", "second.after.z"),
                *("third", "third.last", "third.last.w"),
            ],
        ),
        (
            "second.right",
            [
                *("second", "second.right", "second.right.r1", "second.right.r2"),
                *("second.after", "second.after.z", "third", "third.last", "third.last.w"),
            ],
        ),
        ("third", ["third", "third.last", "third.last.w"]),
    ],
)
def test_members_of_the_own_group_stand_and_later_pipelines_do_not(path: str, again: list[str]) -> None:
    run_id = failed_phases()
    workflows.retry(run_id, from_node=path)
    assert pending(run_id) == again
    first = path.split(".", 1)[0]
    assert Job.objects.get(run_id=run_id).node_id == rows.node(run_id, first).id
    rows.check_whole(run_id)


def test_what_is_reset_leaves_the_state() -> None:
    run_id = failed_phases()
    workflows.retry(run_id, from_node="second.right.r2")
    assert Run.objects.get().state == {
        "x": "first.a.x",
        "y": "first.a.y",
        "l": "second.left.l",
        "r1": "second.right.r1",
    }
    assert rows.last_event(run_id).data == {"retry": True, "from_node": "second.right.r2", "by": None}


def test_what_never_started_may_be_named() -> None:
    run_id = failed_order()
    workflows.retry(run_id, from_node="order.ship")
    assert "order.pay.pay#run" in pending(run_id)
    assert rows.statuses(run_id)["order.reserve"] == "completed"


def test_beneath_a_skipped_stage_the_stage_is_asked_again() -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}).run_id
    rows.start(run_id)
    rows.skip(run_id, ["order.reserve", "order.reserve.stock", "order.reserve.label"])
    rows.fail(run_id, "order.pay.pay#run")
    workflows.retry(run_id, from_node="order.reserve.label")
    found = rows.statuses(run_id)
    assert (found["order.reserve"], found["order.reserve.stock"], found["order.reserve.label"]) == (
        "pending",
        "skipped",
        "pending",
    )


@pytest.mark.parametrize(
    "path", ["order.nope", "nope", "order.pay.pay", "ORDER", "order.", "x" * 1000, "o rder"]
)
def test_an_unknown_path_changes_nothing(path: str) -> None:
    run_id = failed_order()
    before = rows.statuses(run_id), rows.history(run_id)
    with transaction.atomic():
        with pytest.raises(NodeUnknown) as caught:
            workflows.retry(run_id, from_node=path)
        assert caught.value.code == "NODE_UNKNOWN"
        assert (rows.statuses(run_id), rows.history(run_id)) == before


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("reserve.stock", '; did you mean "order.reserve.stock"?'),
        ("order.reserve.stokc", '; did you mean "order.reserve.stock"?'),
        ("order.", '; did you mean "order"?'),
        ("xyz", ""),
    ],
)
def test_an_unknown_path_is_told_with_the_one_that_was_meant(path: str, hint: str) -> None:
    with pytest.raises(NodeUnknown) as caught:
        workflows.retry(failed_order(), from_node=path)
    assert str(caught.value) == f'no node has the path "{path}"{hint}'


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("", ValueError),
        ("a\0b", ValueError),
        ("x" * 1001, ValueError),
        (5, TypeError),
        (["order"], TypeError),
    ],
)
def test_a_path_that_is_none_is_refused(path: Any, error: type[Exception]) -> None:
    run_id = failed_order()
    with pytest.raises(error, match="from_node"):
        workflows.retry(run_id, from_node=path)
    assert Run.objects.get().status == "failed"


def test_a_path_needs_the_definition_and_a_plain_retry_does_not() -> None:
    run_id = failed_order()
    registry.clear()
    with pytest.raises(WorkflowUnknown):
        workflows.retry(run_id, from_node="order.pay")
    newer = Workflow("order", version=2, stages=[Stage("pay", run=nothing)])
    workflows.register(newer)
    with pytest.raises(VersionConflict, match="version 1"):
        workflows.retry(run_id, from_node="order.pay")
    workflows.retry(run_id)
    assert Run.objects.get().status == "running"


def test_nodes_are_matched_by_path_under_a_compatible_version() -> None:
    run_id = failed_order()
    registry.clear()
    stages = [Stage("before", actions=[act("added")]), *(s for g in ORDER.pipelines[0].items for s in g)]
    workflows.register(
        Workflow("order", version=2, compatible_versions=[1], stages=stages, on_failure="halt")
    )
    workflows.retry(run_id, from_node="order.reserve.label")
    found = rows.statuses(run_id)
    assert (found["order.reserve.stock"], found["order.reserve.label"]) == ("completed", "pending")


def test_a_path_that_only_the_newer_definition_has_is_unknown_to_the_run() -> None:
    run_id = failed_order()
    registry.clear()
    stages = [Stage("before", actions=[act("added")]), *(s for g in ORDER.pipelines[0].items for s in g)]
    workflows.register(
        Workflow("order", version=2, compatible_versions=[1], stages=stages, on_failure="halt")
    )
    with pytest.raises(NodeUnknown):
        workflows.retry(run_id, from_node="order.before.added")
    assert Run.objects.get().status == "failed"


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status", ["pending", "running", "waiting", "compensating", "completed", "cancelled"]
)
def test_only_a_failed_run_can_be_retried(status: str) -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    if status != "pending":
        rows.start(run_id)
    if status in ("waiting", "compensating"):
        Run.objects.update(status=status)
    elif status in ("completed", "cancelled"):
        rows.end(run_id, status)
    before = rows.statuses(run_id), rows.history(run_id), rows.counts()
    with transaction.atomic():
        for from_node in (None, "plain.s"):
            with pytest.raises(RunConflict, match=status):
                workflows.retry(run_id, from_node)
        assert (rows.statuses(run_id), rows.history(run_id), rows.counts()) == before


def test_a_run_whose_compensation_has_begun_cannot_be_retried() -> None:
    def begun(run_id: Any) -> None:
        Node.objects.filter(run_id=run_id, path="order.reserve.stock").update(compensate_attempt=1)

    def undone(run_id: Any) -> None:
        Node.objects.filter(run_id=run_id, path="order.reserve.stock").update(status="compensated")

    def turned(run_id: Any) -> None:
        rows.note(run_id, "compensating")

    for change in (begun, undone, turned):
        run_id = failed_order()
        change(run_id)
        before = rows.statuses(run_id), rows.history(run_id)
        with transaction.atomic():
            with pytest.raises(RunConflict, match="compensate"):
                workflows.retry(run_id)
            assert (rows.statuses(run_id), rows.history(run_id)) == before


def test_a_retry_can_be_rolled_back() -> None:
    run_id = failed_order()
    before = rows.statuses(run_id), Run.objects.values().get()
    with transaction.atomic():
        workflows.retry(run_id, from_node="order.reserve.stock")
        transaction.set_rollback(True)
    assert (rows.statuses(run_id), Run.objects.values().get()) == before


def test_an_edge_that_the_states_do_not_allow_is_refused_by_the_database_and_undone_whole() -> None:
    run_id = failed_order()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE workflow_job ADD CONSTRAINT broken CHECK (queue <> 'q')")
    before = rows.statuses(run_id)
    with pytest.raises(Exception, match="broken"):
        workflows.retry(run_id)
    assert rows.statuses(run_id) == before


def test_attempts_count_from_the_start_again() -> None:
    run_id = failed_order()
    Node.objects.filter(path="order.pay.pay#run").update(attempt=F("attempt") + 2)
    workflows.retry(run_id)
    assert set(Node.objects.filter(status="pending").values_list("attempt", flat=True)) == {0}
