"""Dispatching: what a new run looks like, what is refused, and what it costs."""

from __future__ import annotations

import datetime
import decimal
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import ProgrammingError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from tests.support import rows
from tests.support.definitions import ORDER, PLAIN, Order, act, nothing
from workflow import (
    InputInvalid,
    PayloadInvalid,
    Pipeline,
    Stage,
    Workflow,
    WorkflowInvalid,
    WorkflowUnknown,
    ids,
    parallel,
    workflows,
)
from workflow.models import Event, Job, Node, Run
from workflow.registry import registry

pytestmark = pytest.mark.django_db


def test_a_database_that_was_not_migrated_is_told_as_that() -> None:
    missing = r"is missing from the database: run manage.py migrate$"
    with connection.cursor() as cursor:
        cursor.execute("ALTER FUNCTION workflow_dispatch_2 RENAME TO workflow_dispatch_away")
    with pytest.raises(ProgrammingError, match=missing), transaction.atomic():
        workflows.dispatch(ORDER, {"order_id": "o-1"})


# --- what is written ----------------------------------------------------------------------------


def test_a_run_its_whole_tree_and_one_job_are_there_at_once() -> None:
    handle = workflows.dispatch(ORDER, {"order_id": "o-1"})

    run = Run.objects.get()
    assert (handle.run_id, handle.created) == (run.id, True)
    assert (run.workflow, run.version, run.status, run.seq) == ("order", 1, "pending", 0)
    assert (run.queue, run.priority, run.fingerprint) == ("default", 0, ORDER.tree.fingerprint)
    assert run.input == run.state == {"order_id": "o-1", "total": 0}
    assert (run.context, run.error, run.started_at, run.finished_at) == (None, None, None, None)
    assert rows.history(run.id) == []

    nodes = list(Node.objects.order_by("id"))
    tree = ORDER.tree.nodes[1:]
    assert [(n.path, n.kind, n.unit) for n in nodes] == [(t.path, t.kind, t.unit) for t in tree]
    assert [n.id for n in nodes] == [ids.node_id(run.id, t.ordinal) for t in tree]
    assert {(n.run_id, n.status, n.attempt) for n in nodes} == {(run.id, "pending", 0)}

    job = Job.objects.get()
    assert (job.kind, job.run_id, job.node_id) == ("unit", run.id, ids.node_id(run.id, 1))
    assert (job.queue, job.priority, job.attempt, job.lease_token) == ("default", 0, 0, None)
    assert rows.due(job)


def test_the_nodes_say_beside_which_others_they_run() -> None:
    """Of one run and of many: code that has dropped some of them knows it from nowhere else."""
    mates = parallel(act("b"), act("c", via="queue"))
    last = parallel(Stage("t", actions=[act("e")]), Stage("u", run=nothing))
    groups = Workflow("groups", stages=[Stage("s", actions=[act("a"), mates, act("d")]), last])
    workflows.dispatch(groups)
    workflows.dispatch_many(groups, [{}, {}])
    found = list(Node.objects.order_by("run_id", "id").values_list("path", "beside"))
    place = {path: ordinal for ordinal, (path, _) in enumerate(found[: len(groups.tree.nodes) - 1], 1)}
    first = {
        "groups.s.b": "groups.s.b",
        "groups.s.c": "groups.s.b",
        "groups.t": "groups.t",
        "groups.u": "groups.t",
    }
    assert found == [(path, place.get(first.get(path, ""))) for path in place] * 3


def test_a_name_is_enough_for_what_is_registered() -> None:
    workflows.register(PLAIN)
    handle = workflows.dispatch("plain")
    assert Run.objects.get(pk=handle.run_id).workflow == "plain"


def test_dispatching_a_definition_registers_it() -> None:
    workflows.dispatch(PLAIN)
    assert registry.get("plain") is PLAIN


def test_a_pipeline_can_be_dispatched_on_its_own() -> None:
    handle = workflows.dispatch(Pipeline("alone", stages=[Stage("s", actions=[act("a")])]))
    assert list(rows.statuses(handle.run_id)) == ["", "alone", "alone.s", "alone.s.a"]


@pytest.mark.parametrize("count", [1, 300])
def test_a_tree_of_any_size_is_dispatched_in_one_statement(count: int) -> None:
    wide = Workflow("wide", stages=[Stage("s", actions=[act(f"a{i}") for i in range(count)])])
    workflows.register(wide)
    with CaptureQueriesContext(connection) as queries:
        handle = workflows.dispatch(
            "wide", {"x": 1}, context={"y": 2}, correlation_id="c", idempotency_key="k", queue="q", delay=3
        )
    assert len(queries) == 1
    assert Node.objects.filter(run_id=handle.run_id).count() == count + 2


def test_options_are_kept_on_the_run_and_its_job() -> None:
    handle = workflows.dispatch(
        PLAIN, None, context={"tenant": 7}, correlation_id="c-1", queue="slow", priority=-5, delay=60
    )
    run, job = Run.objects.get(pk=handle.run_id), Job.objects.get()
    assert (run.context, run.correlation_id, run.queue, run.priority) == ({"tenant": 7}, "c-1", "slow", -5)
    assert (job.queue, job.priority) == ("slow", -5)
    assert not rows.due(job)
    assert job.available_at - run.updated_at == timedelta(seconds=60)


@pytest.mark.parametrize("delay", [0, 0.0, timedelta(0), None])
def test_no_delay_is_due_at_once(delay: Any) -> None:
    workflows.dispatch(PLAIN, delay=delay)
    assert rows.due(Job.objects.get())


def test_a_delay_may_be_a_timedelta() -> None:
    handle = workflows.dispatch(PLAIN, delay=timedelta(hours=2))
    assert Job.objects.get().available_at - Run.objects.get(pk=handle.run_id).updated_at == timedelta(hours=2)


@pytest.mark.parametrize(
    ("value", "kept", "state"),
    [
        (None, None, {}),
        ({}, {}, {}),
        ({"a": 1}, {"a": 1}, {"a": 1}),
        ([1, 2], [1, 2], {"input": [1, 2]}),
        ("text", "text", {"input": "text"}),
        (0, 0, {"input": 0}),
        (False, False, {"input": False}),
        ({"a": None, "ünï": "🙂 \\ \" ' % {}"}, {"a": None, "ünï": "🙂 \\ \" ' % {}"}, None),
    ],
)
def test_the_input_seeds_the_state(value: Any, kept: Any, state: Any) -> None:
    one = Run.objects.get(pk=workflows.dispatch(PLAIN, value).run_id)
    (many,) = (Run.objects.get(pk=h.run_id) for h in workflows.dispatch_many(PLAIN, [value]))
    expected = (kept, kept if state is None else state)
    assert (one.input, one.state) == expected
    assert (many.input, many.state) == expected


def test_no_input_is_stored_as_no_json_at_all() -> None:
    workflows.dispatch(PLAIN)
    workflows.dispatch_many(PLAIN, [None])
    assert Run.objects.filter(input__isnull=True).count() == 2


# --- the input's model --------------------------------------------------------------------------


def test_what_a_model_makes_of_the_input_is_what_is_kept() -> None:
    class Dated(BaseModel):
        on: datetime.date
        price: decimal.Decimal
        tags: set[str] = {"new"}

    dated = Workflow("dated", input=Dated, stages=[Stage("s", run=nothing)])
    handle = workflows.dispatch(dated, {"on": "2026-01-02", "price": "1.10"})
    assert Run.objects.get(pk=handle.run_id).state == {"on": "2026-01-02", "price": "1.10", "tags": ["new"]}


def test_an_instance_of_the_model_is_taken_as_it_is() -> None:
    handle = workflows.dispatch(ORDER, Order(order_id="o-2", total=5))
    assert Run.objects.get(pk=handle.run_id).state == {"order_id": "o-2", "total": 5}


def test_an_aliased_input_is_kept_so_that_the_same_model_reads_it_again() -> None:
    class ByAlias(BaseModel):
        order_id: str = Field(alias="orderId")
        note: str = Field("none", alias="Note")

    class ByEither(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        order_id: str = Field(alias="orderId")

    for name, model, kept in [
        ("by-alias", ByAlias, {"orderId": "o", "Note": "none"}),
        ("by-either", ByEither, {"order_id": "o"}),
    ]:
        definition = Workflow(name, input=model, stages=[Stage("s", run=nothing)])
        state = Run.objects.get(pk=workflows.dispatch(definition, {"orderId": "o"}).run_id).state
        assert state == kept
        assert model.model_validate(state).order_id == "o"


def test_a_secret_reaches_the_handlers_as_it_was_given() -> None:
    class Login(BaseModel):
        user: str
        password: SecretStr
        more: list[dict[str, SecretStr]] = []

    login = Workflow("login", input=Login, stages=[Stage("s", run=nothing)])
    given = {"user": "u", "password": "hunter2", "more": [{"pin": "1234"}]}
    assert Run.objects.get(pk=workflows.dispatch(login, given).run_id).state == given


def test_any_type_that_pydantic_knows_can_be_an_input() -> None:
    listed = Workflow("listed", input=list[int], stages=[Stage("s", run=nothing)])
    assert Run.objects.get(pk=workflows.dispatch(listed, ["1", 2]).run_id).state == {"input": [1, 2]}


@pytest.mark.parametrize(
    "value", [None, {}, {"order_id": 1}, {"order_id": "o", "total": "s3cr3t"}, [], "s3cr3t"]
)
def test_an_input_that_does_not_fit_creates_nothing_and_is_not_echoed(value: Any) -> None:
    with pytest.raises(InputInvalid) as caught:
        workflows.dispatch(ORDER, value)
    assert caught.value.code == "WORKFLOW_INPUT_INVALID"
    (error,) = caught.value.errors()
    assert {"type", "loc", "msg"} <= set(error)
    assert "s3cr3t" not in str(caught.value) + repr(caught.value.errors())
    assert caught.value.__cause__ is None
    assert set(rows.counts().values()) == {0}


# --- refusals -----------------------------------------------------------------------------------


def test_an_unknown_name_is_refused() -> None:
    workflows.register(ORDER)
    with pytest.raises(WorkflowUnknown, match=r'did you mean "order"'):
        workflows.dispatch("ordre", {})
    with pytest.raises(WorkflowInvalid):
        workflows.dispatch(object(), {})  # type: ignore[arg-type]


UNSTORABLE = [
    {"x": float("nan")},
    {"x": [float("inf")]},
    {"x": "a\0b"},
    {"a\0b": 1},
    {"x": "\ud83d"},
    {"x": b"bytes"},
    {"x": object()},
    {1: "a", "1": "b"},
    {"x": 10**5000},
]


@pytest.mark.parametrize("value", UNSTORABLE)
@pytest.mark.parametrize("where", ["input", "context"])
def test_what_json_cannot_hold_is_refused_before_anything_is_written(value: Any, where: str) -> None:
    options = {"context": value} if where == "context" else {}
    with CaptureQueriesContext(connection) as queries:
        with pytest.raises(PayloadInvalid, match=f"^{where}"):
            workflows.dispatch(PLAIN, None if options else value, **options)
        with pytest.raises(PayloadInvalid, match=f"^{where}"):
            workflows.dispatch_many(PLAIN, [None if options else value], **options)
    assert len(queries) == 0


def test_a_cycle_and_what_is_too_deep_are_refused() -> None:
    cycle: dict[str, Any] = {}
    cycle["me"] = cycle
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    for value in (cycle, {"x": deep}):
        with pytest.raises(PayloadInvalid):
            workflows.dispatch(PLAIN, value)


def test_payloads_have_a_limit_in_bytes(settings: Any) -> None:
    settings.WORKFLOW = {**settings.WORKFLOW, "MAX_PAYLOAD_BYTES": 20}
    workflows.dispatch(PLAIN, {"x": "é" * 6})  # {"x":"..."}: 8 bytes around 12
    for options in ({"input": {"x": "é" * 7}}, {"context": {"x": "é" * 7}}):
        with pytest.raises(PayloadInvalid, match="MAX_PAYLOAD_BYTES"):
            workflows.dispatch(PLAIN, **options)
    assert Run.objects.count() == 1


def test_an_input_of_megabytes_is_no_trouble(settings: Any) -> None:
    settings.WORKFLOW = {**settings.WORKFLOW, "MAX_PAYLOAD_BYTES": 10_000_000}
    text = "'\\\"%s\n" * 1_000_000
    handle = workflows.dispatch(PLAIN, {"x": text})
    assert Run.objects.get(pk=handle.run_id).state == {"x": text}


BAD_OPTIONS = [
    ({"queue": ""}, ValueError),
    ({"queue": "q" * 101}, ValueError),
    ({"queue": "#events"}, ValueError),
    ({"queue": "a\0"}, ValueError),
    ({"queue": "\udcff"}, ValueError),
    ({"queue": None}, TypeError),
    ({"queue": 5}, TypeError),
    ({"priority": "high"}, TypeError),
    ({"priority": True}, TypeError),
    ({"priority": 1.0}, TypeError),
    ({"priority": None}, TypeError),
    ({"priority": 2**31}, ValueError),
    ({"priority": -(2**31) - 1}, ValueError),
    ({"delay": -1}, ValueError),
    ({"delay": float("nan")}, ValueError),
    ({"delay": float("inf")}, ValueError),
    ({"delay": 10**400}, ValueError),
    ({"delay": timedelta(days=-1)}, ValueError),
    ({"delay": timedelta(days=3660)}, ValueError),
    ({"delay": "1"}, TypeError),
    ({"delay": True}, TypeError),
    ({"correlation_id": ""}, ValueError),
    ({"correlation_id": "c" * 256}, ValueError),
    ({"correlation_id": "a\0b"}, ValueError),
    ({"correlation_id": 7}, TypeError),
    ({"idempotency_key": ""}, ValueError),
    ({"idempotency_key": "k" * 256}, ValueError),
    ({"idempotency_key": "\ud800"}, ValueError),
    ({"idempotency_key": b"k"}, TypeError),
    ({"by": "a\0b"}, ValueError),
]


@pytest.mark.parametrize(("options", "error"), BAD_OPTIONS)
def test_options_of_the_wrong_type_or_range_never_reach_the_database(
    options: dict[str, Any], error: type[Exception]
) -> None:
    (name,) = options
    with CaptureQueriesContext(connection) as queries, pytest.raises(error, match=f"^{name}"):
        workflows.dispatch(PLAIN, **options)
    assert len(queries) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 2**31 - 1},
        {"priority": -(2**31)},
        {"delay": timedelta(days=3652)},
        {"queue": "ü" * 100},
        {"correlation_id": "ü" * 255},
        {"idempotency_key": "🙂" * 255},
    ],
)
def test_options_at_their_bounds_are_taken(options: dict[str, Any]) -> None:
    assert workflows.dispatch(PLAIN, **options).created


# --- idempotency --------------------------------------------------------------------------------


def test_the_same_key_of_the_same_workflow_is_the_same_run() -> None:
    first = workflows.dispatch(PLAIN, {"a": 1}, idempotency_key="k")
    again = workflows.dispatch(PLAIN, {"a": 2}, idempotency_key="k", queue="other")
    other = workflows.dispatch(ORDER, {"order_id": "o"}, idempotency_key="k")

    assert (again.run_id, again.created) == (first.run_id, False)
    assert other.created
    assert Run.objects.get(pk=first.run_id).state == {"a": 1}
    assert Job.objects.count() == 2


def test_a_key_is_kept_when_its_run_is_over() -> None:
    first = workflows.dispatch(PLAIN, idempotency_key="k")
    workflows.cancel(first.run_id)
    assert workflows.dispatch(PLAIN, idempotency_key="k") == first.__class__(first.run_id, False, workflows)


def test_no_key_is_no_key() -> None:
    assert workflows.dispatch(PLAIN).run_id != workflows.dispatch(PLAIN).run_id


def test_a_taken_key_leaves_the_transaction_usable() -> None:
    with transaction.atomic():
        workflows.dispatch(PLAIN, idempotency_key="k")
        assert not workflows.dispatch(PLAIN, idempotency_key="k").created
        workflows.dispatch(PLAIN)
    assert Run.objects.count() == 2


# --- transactions -------------------------------------------------------------------------------


def test_what_the_caller_rolls_back_never_happened() -> None:
    with transaction.atomic():
        kept = workflows.dispatch(PLAIN, {"kept": True})
        with transaction.atomic():
            workflows.dispatch(PLAIN, {"kept": False})
            transaction.set_rollback(True)
    assert list(Run.objects.values_list("id", flat=True)) == [kept.run_id]
    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_nobody_sees_a_dispatch_before_the_commit() -> None:
    other = connections.create_connection("default")
    try:
        with transaction.atomic():
            workflows.dispatch(PLAIN)
            with other.cursor() as cursor:
                cursor.execute(
                    "SELECT (SELECT count(*) FROM workflow_run), (SELECT count(*) FROM workflow_job)"
                )
                assert cursor.fetchone() == (0, 0)
        with other.cursor() as cursor:
            cursor.execute("SELECT (SELECT count(*) FROM workflow_run), (SELECT count(*) FROM workflow_job)")
            assert cursor.fetchone() == (1, 1)
    finally:
        other.close()


@pytest.mark.django_db(transaction=True)
def test_outside_of_a_transaction_a_failure_in_the_middle_leaves_nothing() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE workflow_job ADD CONSTRAINT broken CHECK (queue <> 'broken')")
        try:
            for dispatch in (
                lambda: workflows.dispatch(PLAIN, queue="broken"),
                lambda: workflows.dispatch_many(PLAIN, [1, 2], queue="broken"),
            ):
                with pytest.raises(Exception, match="broken"):
                    dispatch()
        finally:
            cursor.execute("ALTER TABLE workflow_job DROP CONSTRAINT broken")
    assert rows.counts() == dict.fromkeys(rows.counts(), 0)


# --- who, and async -----------------------------------------------------------------------------


def test_who_dispatched_is_the_first_entry_of_the_history() -> None:
    one = workflows.dispatch(PLAIN, by="ann")
    (two,) = workflows.dispatch_many(PLAIN, [None], by="bob")
    for handle, name in ((one, "ann"), (two, "bob")):
        event = rows.last_event(handle.run_id)
        assert (event.seq, event.name, event.node) == (1, "log", None)
        assert event.data == {"message": "dispatched", "by": name}
        rows.check_whole(handle.run_id)


@pytest.fixture
async def _async_connection_closed() -> Any:
    yield
    await sync_to_async(connections.close_all)()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_async_connection_closed")
async def test_async_code_has_twins() -> None:
    handle = await workflows.adispatch(PLAIN, {"a": 1}, idempotency_key="k")
    (other,) = await workflows.adispatch_many(PLAIN, [{"a": 2}])
    assert not (await workflows.adispatch(PLAIN, idempotency_key="k")).created
    assert (await handle.astatus()).run.state == {"a": 1}
    await handle.acancel()
    assert (await handle.await_finished(timeout=1)).run.status == "cancelled"
    page = await workflows.alist()
    assert [item.id for item in page.items] == [other.run_id, handle.run_id]
    assert await workflows.apublish("some.event")
    assert await Event.objects.acount() == 1
    assert await workflows.aprune(0) == 1


def test_a_handle_shows_its_run_and_nothing_else() -> None:
    handle = workflows.dispatch(PLAIN)
    assert repr(handle) == f"RunHandle(run_id={handle.run_id!r}, created=True)"
    assert str(handle.run_id) == str(Run.objects.get().pk)
