"""What is found by a key is found by it, also when the plan was made on empty tables and is kept for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
import pytest
from django.db import connection

from workflow import Action, Stage, WaitFor, Workflow, workflows
from workflow.models import Event, Node
from workflow.registry import registry
from workflow.sql import claim, events, rings, settle, sweeps
from workflow.store import ports
from workflow.store.pipeline import _native
from workflow.testing import advance, drain

OTHERS = (
    "workflow_job_leased",
    "workflow_job_due",
    "workflow_node_wait",
    "workflow_node_wait_until",
    "workflow_step_wait",
)
"""Indexes that hold only what is leased, due or parked: nearly nothing, or a whole backlog."""
BY_KEY = {
    "settle.LOCK_RUNS": settle.LOCK_RUNS,
    "settle.UPDATE_RUNS": settle.UPDATE_RUNS,
    "settle.UPDATE_NODES": settle.UPDATE_NODES,
    "settle.INSERT_HISTORY": settle.INSERT_HISTORY,
    "settle.PARK": settle.PARK,
    "settle.WRITE_STEPS": settle.WRITE_STEPS,
    "settle.CHECK_STEPS": settle.CHECK_STEPS,
    "settle.CLOSE_STEPS": settle.CLOSE_STEPS,
    "settle.CANCEL_REST": settle.CANCEL_REST,
    "settle.UPDATE_JOBS": settle.UPDATE_JOBS,
    "settle.READY_JOBS": settle.READY_JOBS,
    "settle.DELETE_JOBS": settle.DELETE_JOBS,
    "settle.INSERT_JOBS": settle.INSERT_JOBS,
    "settle.WAKE_UNITS": settle.WAKE_UNITS,
    "settle.QUIET_RUNS": settle.QUIET_RUNS,
    "settle.APPLIED": settle.APPLIED,
    "claim.LOAD_NODES": claim.LOAD_NODES,
    "claim.LOAD_GROUPS": claim.LOAD_GROUPS,
    "claim.HEARTBEAT": claim.HEARTBEAT,
    "claim.RELEASE": claim.RELEASE,
    "claim.DROP": claim.DROP,
    "claim.LOST": claim.LOST,
    "claim.DUE_MEMBERS": claim.DUE_MEMBERS,
    "claim.OVER_MEMBERS": claim.OVER_MEMBERS,
    "claim.CLAIM_ASKED": claim.CLAIM_ASKED,
    "claim.LEFT_OF_ASKED": claim.LEFT_OF_ASKED,
    "rings.UNRING": rings.UNRING,
    "rings.ECHO": rings.ECHO,
    "events.WAITS": events.WAITS,
    "events.STEPS": events.STEPS,
    "events.RESOLVE_BY_EVENT": events.RESOLVE_BY_EVENT,
    "events.RESOLVE_STEPS": events.RESOLVE_STEPS,
    "events.STEPS_IN_TIME": events.STEPS_IN_TIME,
    "sweeps.FIND_IDLE_RUNS": sweeps.FIND_IDLE_RUNS,
}
MANY = 60
_numbers = count()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", BY_KEY)
def test_a_plan_made_on_empty_tables_goes_by_the_key(name: str) -> None:
    plan = plan_of(BY_KEY[name])
    assert not [line for line in plan if any(f" {index} " in line for index in OTHERS)], "\n".join(plan)
    whole = [line for line in plan if "Seq Scan on workflow_" in line and "workflow_pausedqueue" not in line]
    assert not whole, "\n".join(plan)


@pytest.mark.django_db(transaction=True)
def test_the_steps_that_an_event_may_concern_are_found_by_what_they_wait_for() -> None:
    plan = plan_of(events.FIND_STEPS)
    assert any("using workflow_step_wait " in line for line in plan), "\n".join(plan)
    assert any("using workflow_node_pkey " in line for line in plan), "\n".join(plan)
    assert not [line for line in plan if "Seq Scan on workflow_" in line], "\n".join(plan)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("find", "relation"), [("FIND_WAITS", "workflow_node"), ("FIND_STEPS", "workflow_step")]
)
def test_an_event_reads_the_waits_that_it_concerns_and_no_other_of_its_type(find: str, relation: str) -> None:
    def step(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.wait_event("paid", "paid", correlate="id")

    wait = Stage("wait", wait_for=WaitFor("paid", correlate="id")) if relation == "workflow_node" else None
    with registry.isolated():
        workflow = Workflow("w", stages=[wait or Stage("s", actions=[Action("a", step)])])
        workflows.dispatch_many(workflow, [{"id": f"order-{number}"} for number in range(MANY)])
        drain(timeout=120)
    for number in range(3):
        workflows.publish("paid", correlation=f"order-{number}")
    asked = "{" + ",".join(str(event) for event in Event.objects.values_list("id", flat=True)) + "}"
    plan = list(explained(getattr(events, find), [asked, "00000000-0000-0000-0000-000000000000", "1000"]))
    read = sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in plan
        if node.get("Relation Name") == relation and node.get("Index Name") == f"{relation}_wait"
    )
    assert read == 3, plan
    (found,) = [node for node in plan if node["Node Type"] == "Limit"]
    assert found["Actual Rows"] == 3


@pytest.mark.django_db(transaction=True)
def test_what_comes_before_a_job_that_moves_on_is_found_by_skipping_through_what_is_due() -> None:
    """However much is due, a pair of queue and priority costs two descents; all else goes by the key."""
    plan = plan_of(settle.UPDATE_RUNS_MOVING)
    due = [line for line in plan if "workflow_job_due" in line]
    assert len(due) == 3, "\n".join(plan)
    assert all("Index Only Scan using workflow_job_due" in line for line in due), "\n".join(plan)
    assert sum("Limit " in line for line in plan) == 3, "\n".join(plan)
    others = [line for line in plan if any(f" {index} " in line for index in OTHERS) and line not in due]
    assert not others, "\n".join(plan)
    sequential = [line for line in plan if "Seq Scan on workflow_" in line]
    assert all("workflow_pausedqueue" in line for line in sequential), "\n".join(plan)


def plan_of(sql: str) -> list[str]:
    """The lines of the plan that a worker's connection would make and keep."""
    native = _native(sql).decode()
    parameters = max(n for n in range(1, 40) if f"${n}" in native)
    with prepared(native) as (raw, statement):
        nulls = ", ".join(["NULL"] * parameters)
        return [row[0] for row in raw.execute(f"EXPLAIN EXECUTE {statement}({nulls})")]


@contextmanager
def prepared(native: str) -> Iterator[tuple[psycopg.Connection[Any], str]]:
    """A connection with the settings of a worker's, and the name under which it has prepared this."""
    statement = f"plan_{next(_numbers)}"
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE workflow_run, workflow_node, workflow_job, workflow_step, workflow_event")
        try:
            for setting in ports.BY_INDEX.split("; "):
                cursor.execute(setting)
            cursor.connection.execute(f"PREPARE {statement} AS {native}")
            yield cursor.connection, statement
        finally:
            connection.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("correlate", [None, "id"])
@pytest.mark.parametrize("late", [False, True])
def test_many_waits_for_many_events_cost_a_look_each(correlate: str | None, late: bool) -> None:
    """At their deadline, and when an event is delivered: each wait reads the event that it takes and no other."""
    with registry.isolated():
        wait = Stage("wait", wait_for=WaitFor("paid", correlate=correlate, timeout=60))
        workflows.dispatch_many(Workflow("w", stages=[wait]), [{"id": "x"}] * MANY)
        drain()
    if late:
        advance(61)
    for _ in range(MANY):
        workflows.publish("paid", correlation="x")
    if not late:
        advance(61)
    waits = list(Node.objects.filter(status="waiting").values_list("id", flat=True))
    assert (len(waits), Event.objects.count()) == (MANY, MANY)
    page = "{" + ",".join(map(str, waits)) + "}"
    for sql, values in (
        (events.EXPIRE_WAITS, ["00000000-0000-0000-0000-000000000000", "1000"]),
        (events.RESOLVE_BY_EVENT, [page]),
    ):
        read = sum(
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            for node in explained(sql, values)
            if node.get("Relation Name") == "workflow_event" and node["Node Type"].endswith("Scan")
        )
        assert read <= 2 * MANY, read  # looked for, and marked as taken


def explained(sql: str, values: list[str]) -> Iterator[dict[str, Any]]:
    """The nodes of the plan that a worker's connection would keep, run and undone."""
    with prepared(_native(sql).decode()) as (raw, statement):
        given = ", ".join(f"'{value}'" for value in values)
        raw.execute("BEGIN")
        (found,) = raw.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {statement}({given})").fetchone()
        raw.execute("ROLLBACK")
    yield from within((found if isinstance(found, list) else json.loads(found))[0]["Plan"])


def within(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", []):
        yield from within(each)
