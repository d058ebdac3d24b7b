"""Runs that have failed, with all before the failure done."""

from __future__ import annotations

from typing import Any

from tests.support import rows
from tests.support.definitions import ORDER, PHASES
from workflow import workflows


def failed_order() -> Any:
    """`order` whose payment failed, after both reservations."""
    run_id = workflows.dispatch(ORDER, {"order_id": "o"}, queue="q", priority=2).run_id
    rows.start(run_id)
    rows.complete(run_id, "order.reserve.stock", {"stock": 3, "by": "stock"})
    rows.complete(run_id, "order.reserve.label", "L-1")
    rows.complete(run_id, "order.reserve")
    rows.fail(run_id, "order.pay.pay#run")
    return run_id


def failed_phases() -> Any:
    """`phases` that failed in its third pipeline, with all before it done."""
    run_id = workflows.dispatch(PHASES).run_id
    rows.start(run_id)
    for path in (
        "first.a.x",
        "first.a.y",
        "second.left.l",
        "second.right.r1",
        "second.right.r2",
        "second.after.z",
    ):
        rows.complete(run_id, path, {path[-1] if path[-1] in "xylz" else path[-2:]: path})
    for path in ("first.a", "first", "second.left", "second.right", "second.after", "second"):
        rows.complete(run_id, path)
    rows.fail(run_id, "third.last.w")
    return run_id
