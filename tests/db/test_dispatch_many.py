"""Dispatching many runs at once: one statement's worth of rows, all of them or none."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.support import rows
from tests.support.definitions import ORDER, PHASES, PLAIN, act
from workflow import (
    InputInvalid,
    PayloadInvalid,
    Stage,
    Workflow,
    ids,
    workflows,
)
from workflow.models import Job, Node, Run

pytestmark = pytest.mark.django_db


def test_a_thousand_runs_take_a_handful_of_statements() -> None:
    workflows.register(PHASES)
    with CaptureQueriesContext(connection) as queries:
        handles = workflows.dispatch_many("phases", [{"n": n} for n in range(1000)], correlation_id="batch")
    assert len(queries) <= 5
    assert rows.counts()["node"] == 1000 * len(PHASES.tree.by_path)
    assert [Run.objects.get(pk=h.run_id).state for h in handles[::250]] == [
        {"n": n} for n in range(0, 1000, 250)
    ]
    assert {h.created for h in handles} == {True}
    assert Run.objects.filter(correlation_id="batch").count() == 1000
    jobs = Job.objects.values_list("run_id", "node_id")
    assert {ids.node_id(run_id, 1) for run_id, _ in jobs} == {node_id for _, node_id in jobs}


def test_a_batch_and_a_single_dispatch_write_the_same_rows() -> None:
    options: dict[str, Any] = {
        "context": {"c": 1},
        "correlation_id": "x",
        "queue": "q",
        "priority": 3,
        "delay": 10,
    }
    one = workflows.dispatch(ORDER, {"order_id": "o"}, **options).run_id
    (many,) = (h.run_id for h in workflows.dispatch_many(ORDER, [{"order_id": "o"}], **options))

    def written(model: Any, run_id: uuid.UUID, key: str) -> list[dict[str, Any]]:
        found = model.objects.filter(**{key: run_id}).order_by("id").values()
        rid = str(run_id)[:-5]
        return [
            {
                name: str(value).replace(rid, "run-")
                for name, value in row.items()
                if (model is not Job or name != "id") and name != "created_at"
            }
            for row in found
        ]

    for model, key in ((Run, "id"), (Node, "run_id"), (Job, "run_id")):
        assert written(model, one, key) == written(model, many, key)


def test_a_batch_is_all_or_none_and_says_which_input_was_wrong() -> None:
    with pytest.raises(InputInvalid, match=r"^inputs\[1\]"):
        workflows.dispatch_many(ORDER, [{"order_id": "o-1"}, {"order_id": None}])
    with pytest.raises(PayloadInvalid, match=r"^inputs\[2\]\.x"):
        workflows.dispatch_many(PLAIN, [1, 2, {"x": "\0"}])
    assert Run.objects.count() == 0


def test_each_run_of_a_batch_may_have_its_own_key_and_correlation() -> None:
    known = workflows.dispatch(PLAIN, {"n": "known"}, idempotency_key="b")
    handles = workflows.dispatch_many(
        PLAIN,
        [1, 2, 3, 4, 5],
        idempotency_keys=["c", "b", None, "a", "c"],
        correlation_ids=["1", "2", None, "4", "5"],
    )
    assert [h.created for h in handles] == [True, False, True, True, False]
    assert handles[1].run_id == known.run_id
    assert handles[4].run_id == handles[0].run_id
    found = [Run.objects.get(pk=handles[i].run_id) for i in (0, 2, 3)]
    assert [(r.input, r.idempotency_key, r.correlation_id) for r in found] == [
        (1, "c", "1"),
        (3, None, None),
        (4, "a", "4"),
    ]
    assert Job.objects.count() == 4


def test_an_empty_batch_is_nothing() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert workflows.dispatch_many(PLAIN, []) == []
    assert len(queries) == 0


def test_a_large_batch_of_a_large_tree_is_cut_but_stays_whole() -> None:
    wide = Workflow("wide", stages=[Stage("s", actions=[act(f"a{i}") for i in range(198)])])
    with CaptureQueriesContext(connection) as queries:
        handles = workflows.dispatch_many(wide, range(600))
    assert len([q for q in queries if "INSERT" in q["sql"]]) == 3
    assert rows.counts()["node"] == 600 * 200
    assert [Run.objects.get(pk=h.run_id).input for h in handles[::199]] == list(range(0, 600, 199))


@pytest.mark.parametrize(
    ("inputs", "options", "error"),
    [
        ({"order_id": "o"}, {}, TypeError),
        ("ab", {}, TypeError),
        (5, {}, TypeError),
        ([1], {"idempotency_keys": "k"}, TypeError),
        ([1], {"idempotency_keys": ["a", "b"]}, ValueError),
        ([1], {"idempotency_keys": [7]}, TypeError),
        ([1], {"idempotency_keys": [""]}, ValueError),
        ([1], {"correlation_ids": 3}, TypeError),
        ([1], {"correlation_ids": ["c"], "correlation_id": "c"}, TypeError),
        ([1], {"correlation_id": "\0"}, ValueError),
        ([1], {"priority": 2**40}, ValueError),
    ],
)
def test_a_batch_refuses_what_cannot_be_right(
    inputs: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with CaptureQueriesContext(connection) as queries, pytest.raises(error):
        workflows.dispatch_many(PLAIN, inputs, **options)
    assert len(queries) == 0
