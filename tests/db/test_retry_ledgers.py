"""Which steps a retry leaves done, and of which it begins with an empty ledger."""

from __future__ import annotations

import pytest

from tests.support import rows
from tests.support.definitions import ORDER, nothing
from tests.support.failed import failed_order, failed_phases
from workflow import Stage, Workflow, parallel, workflows
from workflow.models import Node, Step

pytestmark = pytest.mark.django_db


def test_the_ledger_of_what_failed_is_kept() -> None:
    run_id = failed_order()
    for path in ("order.reserve.stock", "order.pay.pay#run"):
        Step.objects.create(
            run_id=run_id, node_id=rows.node(run_id, path).id, key="k", kind="run", status="completed"
        )
    workflows.retry(run_id)
    assert Step.objects.count() == 2


def test_what_is_done_again_has_an_empty_ledger() -> None:
    run_id = failed_phases()
    for path in ("first.a.x", "second.after.z", "third.last.w"):
        for key in ("k1", "k2"):
            Step.objects.create(
                run_id=run_id, node_id=rows.node(run_id, path).id, key=key, kind="run", status="completed"
            )
    workflows.retry(run_id, from_node="second.after")
    kept = Node.objects.filter(id__in=Step.objects.values("node_id")).order_by("id")
    assert [node.path for node in kept] == ["first.a.x"]


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("order.pay.pay#run", ["order.pay.pay#run"]),
        ("order.pay", ["order.pay.pay#run"]),
        ("order.reserve.label", []),
        ("order", []),
    ],
)
def test_what_had_failed_keeps_its_ledger_unless_something_done_is_done_again(
    path: str, kept: list[str]
) -> None:
    run_id = failed_order()
    node_id = rows.node(run_id, "order.pay.pay#run").id
    Step.objects.create(run_id=run_id, node_id=node_id, key="k", kind="run", status="completed")
    workflows.retry(run_id, from_node=path)
    found = Node.objects.filter(id__in=Step.objects.values("node_id"))
    assert [node.path for node in found] == kept


def test_what_failed_beside_what_is_done_again_keeps_its_ledger() -> None:
    """Members of a group read the state from before it: what one of them gives is not the other's to read."""
    stages = [parallel(Stage("left", run=nothing), Stage("right", run=nothing)), Stage("last", run=nothing)]
    workflows.register(Workflow("beside", stages=stages, on_failure="halt"))
    run_id = workflows.dispatch("beside", None).run_id
    rows.start(run_id)
    rows.complete(run_id, "beside.left.left#run", {"price": 1})
    rows.complete(run_id, "beside.left")
    rows.fail(run_id, "beside.right.right#run")
    node_id = rows.node(run_id, "beside.right.right#run").id
    Step.objects.create(run_id=run_id, node_id=node_id, key="k", kind="run", status="completed")
    workflows.retry(run_id, from_node="beside.left")
    assert Step.objects.count() == 1


def test_what_had_failed_after_a_skipped_stage_that_is_asked_again_has_an_empty_ledger() -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}).run_id
    rows.start(run_id)
    rows.skip(run_id, ["order.reserve", "order.reserve.stock", "order.reserve.label"])
    rows.fail(run_id, "order.pay.pay#run")
    node_id = rows.node(run_id, "order.pay.pay#run").id
    Step.objects.create(run_id=run_id, node_id=node_id, key="k", kind="run", status="completed")
    workflows.retry(run_id, from_node="order.reserve")
    assert not Step.objects.exists()
