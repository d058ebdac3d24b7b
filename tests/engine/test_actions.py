"""Actions: what handlers get, what becomes of what they return, and how long they may take."""

from __future__ import annotations

import asyncio
import enum
import uuid
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.db import connection, transaction
from pydantic import BaseModel, field_validator, model_serializer, model_validator

from tests.support.heeding import heeding
from tests.support.runs import history, names, node, run_through, staged
from workflow import Action, Stage, Workflow, action, workflows
from workflow.models import Event, Run, RunEvent
from workflow.testing import drain


class Order(BaseModel):
    order_id: uuid.UUID
    total: Decimal
    due: date


def test_the_input_seeds_the_state_and_each_output_merges_into_it() -> None:
    @action
    def first(state: dict[str, Any]) -> dict[str, Any]:
        return {"a": state["given"] + 1}

    @action
    def second(state: dict[str, Any]) -> dict[str, Any]:
        return {"b": state["a"] + 1, "given": 0}

    status = run_through(staged(first, second), {"given": 1})
    assert status.run.status == "completed"
    assert status.run.state == {"given": 0, "a": 2, "b": 3}


@pytest.mark.parametrize(
    ("output", "state"),
    [
        (None, {}),
        (4200, {"act": 4200}),
        ([1, 2], {"act": [1, 2]}),
        ("text", {"act": "text"}),
        (False, {"act": False}),
        ({}, {}),
        ({"k": None}, {"k": None}),
    ],
)
def test_a_scalar_or_list_nests_under_the_actions_name_and_null_writes_nothing(
    output: Any, state: Any
) -> None:
    status = run_through(staged(Action("act", lambda s: output)))
    assert status.run.state == state
    assert node(status, "w.s.act").output == output


def test_an_implicit_action_nests_its_output_under_the_stages_name() -> None:
    status = run_through(Workflow("w", stages=[Stage("ship", run=lambda state: 7)]))
    assert status.run.state == {"ship": 7}
    assert [n.path for n in status.nodes] == ["w", "w.ship", "w.ship.ship#run"]


def test_a_handler_with_input_gets_the_validated_model_restored_from_json() -> None:
    seen: list[Order] = []
    act = Action("act", lambda order: seen.append(order), input=Order)
    given = {"order_id": uuid.uuid4(), "total": Decimal("19.90"), "due": date(2026, 1, 2)}
    run_through(staged(act, input=Order), given)
    assert seen == [Order(**given)]


def test_a_handler_without_input_gets_a_copy_that_it_may_change() -> None:
    def spoil(state: dict[str, Any], ctx: Any) -> None:
        state["list"].append(3)
        ctx.state["list"].append(4)
        state.clear()

    seen = []
    status = run_through(
        staged(Action("spoil", spoil), Action("look", lambda state: seen.append(state["list"]))),
        {"list": [1, 2]},
    )
    assert seen == [[1, 2]]
    assert status.run.state == {"list": [1, 2]}


def test_the_context_tells_who_and_where_the_handler_is() -> None:
    seen: list[Any] = []

    def look(state: dict[str, Any], ctx: Any) -> None:
        seen.append(
            (
                ctx.run_id,
                ctx.node_id,
                ctx.path,
                ctx.workflow,
                ctx.attempt,
                ctx.state,
                ctx.context,
                ctx.correlation_id,
            )
        )
        assert not ctx.signal.aborted
        assert ctx.signal.reason is None
        assert ctx.signal.wait(0) is False
        ctx.signal.raise_if_aborted()

    handle = workflows.dispatch(
        staged(Action("look", look)), {"n": 1}, context={"user": 5}, correlation_id="order-1"
    )
    drain(handle.run_id)
    run_id, node_id, *rest = seen[0]
    assert run_id == handle.run_id
    assert isinstance(node_id, uuid.UUID)
    assert rest == ["w.s.look", "w", 1, {"n": 1}, {"user": 5}, "order-1"]


def test_the_idempotency_key_is_the_same_for_every_attempt_and_another_for_each_action_and_run() -> None:
    keys: list[tuple[str, str]] = []

    def note(state: dict[str, Any], ctx: Any) -> None:
        keys.append((ctx.path, ctx.idempotency_key))
        if ctx.path.endswith("a") and ctx.attempt == 1:
            raise RuntimeError("again")

    definition = staged(Action("a", note, backoff=1), Action("b", note))
    run_through(definition, seconds=2)
    run_through(definition, seconds=2)
    (a1, a2), (b,) = ([key for path, key in keys[:3] if path.endswith(x)] for x in "ab")
    assert a1 == a2 != b
    assert len({key for _, key in keys}) == 4


def test_async_handlers_run_and_may_use_the_orm() -> None:
    async def make(state: dict[str, Any], ctx: Any) -> dict[str, int]:
        await asyncio.sleep(0)
        await ctx.aprogress(10, "started")
        await ctx.alog("made", kind="group")
        group = await Group.objects.acreate(name="from-async")
        return {"group": group.pk}

    status = run_through(staged(Action("make", make)))
    assert Group.objects.filter(pk=status.run.state["group"]).exists()
    assert names(status)[1:5] == ["action.started", "action.progress", "log", "action.completed"]


def test_plain_handlers_may_start_loops_of_their_own() -> None:
    async def inner() -> int:
        return sum(await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2)))

    def both(state: dict[str, Any]) -> list[int]:
        return [asyncio.run(inner()), async_to_sync(inner)()]

    assert run_through(staged(Action("both", both))).run.state == {"both": [3, 3]}


def test_outputs_are_stored_as_pydantic_serialises_them() -> None:
    class Colour(enum.Enum):
        RED = "red"

    class Model(BaseModel):
        when: date
        price: Decimal

    status = run_through(
        staged(
            Action(
                "act",
                lambda state: {
                    "model": Model(when=date(2026, 5, 1), price=Decimal("1.50")),
                    "enum": Colour.RED,
                    "set": {1},
                    "delta": timedelta(seconds=90),
                    "id": uuid.UUID(int=1),
                },
            )
        )
    )
    assert status.run.state == {
        "model": {"when": "2026-05-01", "price": "1.50"},
        "enum": "red",
        "set": [1],
        "delta": "PT1M30S",
        "id": "00000000-0000-0000-0000-000000000001",
    }


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        {"a": [float("inf")]},
        "nul\x00",
        {"k\x00": 1},
        "\ud83d",
        object(),
        b"bytes",
        {"big": "x" * 2**20},
    ],
    ids=["nan", "infinity", "nul", "nul-key", "surrogate", "object", "bytes", "too-large"],
)
def test_an_output_that_cannot_be_kept_fails_the_action_once_and_names_the_rule(value: Any) -> None:
    status = run_through(staged(Action("act", lambda state: value, attempts=5)))
    error = node(status, "w.s.act").error
    assert error is not None
    assert error["code"] == "PAYLOAD_INVALID"
    assert "w.s.act" in error["message"]
    assert node(status, "w.s.act").attempt == 1
    assert status.run.status == "compensated"


def test_input_and_output_schemas_are_checked_and_never_retried() -> None:
    class Positive(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def positive(cls, value: int) -> int:
            if value < 0:
                raise ValueError("must not be negative")
            return value

    calls: list[int] = []
    bad_input = Action("bad", lambda state: calls.append(1), input=Positive, attempts=5)
    status = run_through(staged(bad_input), {"n": -1, "password": "S3CR3T"})
    assert calls == []
    assert status.run.error is not None
    assert status.run.error["code"] == "INPUT_INVALID"
    assert "n: " in status.run.error["message"]
    assert "S3CR3T" not in status.model_dump_json(exclude={"run": {"input", "state"}})

    bad_output = Action("bad", lambda state: {"n": -2}, output=Positive, attempts=5)
    status = run_through(Workflow("x", stages=[Stage("s", actions=[bad_output])]))
    assert status.run.error is not None
    assert (status.run.error["code"], status.run.error["node"]) == ("OUTPUT_INVALID", "x.s.bad")
    assert node(status, "x.s.bad").attempt == 1


def test_a_stages_output_schema_checks_the_merge_of_its_actions() -> None:
    class Both(BaseModel):
        a: int
        b: int

    fine = Workflow(
        "w",
        stages=[
            Stage(
                "s", actions=[Action("x", lambda s: {"a": 1}), Action("y", lambda s: {"b": 2})], output=Both
            )
        ],
    )
    assert run_through(fine).run.status == "completed"
    short = Workflow("v", stages=[Stage("s", actions=[Action("x", lambda s: {"a": 1})], output=Both)])
    status = run_through(short)
    assert status.run.error is not None
    assert (status.run.error["code"], status.run.error["node"]) == ("OUTPUT_INVALID", "v.s")
    assert node(status, "v.s").status == "failed"
    assert node(status, "v.s.x").status == "completed"


class Stop(BaseException):
    """Not an Exception, as a project may have some."""


@pytest.mark.parametrize("kind", [RuntimeError, Stop, asyncio.CancelledError, GeneratorExit, SystemExit])
def test_whatever_the_validator_of_a_stages_output_raises_fails_the_stage(kind: type[BaseException]) -> None:
    class Bad(BaseModel):
        @model_validator(mode="after")
        def refuse(self) -> Any:
            raise kind("no")

    status = run_through(Workflow("w", stages=[Stage("s", run=lambda state: {"a": 1}, output=Bad)]))
    error = node(status, "w.s").error
    assert status.run.status == "compensated"
    assert error is not None
    assert (error["code"], error["type"], error["message"]) == ("OUTPUT_INVALID", kind.__name__, "no")


@pytest.mark.parametrize("kind", [RuntimeError, Stop, asyncio.CancelledError, GeneratorExit, StopIteration])
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("how", ["plain", "atomic", "async"])
def test_whatever_the_validator_of_an_action_raises_fails_it_once(
    kind: type[BaseException], side: str, how: str
) -> None:
    class Bad(BaseModel):
        @model_validator(mode="after")
        def refuse(self) -> Any:
            raise kind("no")

    async def coroutine(given: Any) -> dict[str, int]:
        return {"a": 1}

    run: Any = coroutine if how == "async" else lambda given: {"a": 1}
    options: dict[str, Any] = {side: Bad, "atomic": how == "atomic"}
    status = run_through(staged(Action("act", run, attempts=5, **options)))
    act = node(status, "w.s.act")
    assert act.error is not None
    code = "INPUT_INVALID" if side == "input" else "OUTPUT_INVALID"
    assert (act.error["code"], act.error["type"], act.error["message"]) == (code, kind.__name__, "no")
    assert (act.attempt, status.run.status) == (1, "compensated")


def test_a_schema_that_shows_its_result_badly_is_an_invalid_output() -> None:
    class Bad(BaseModel):
        @model_serializer
        def show(self) -> Any:
            raise RuntimeError("no")

    status = run_through(staged(Action("act", lambda state: {"a": 1}, output=Bad, attempts=5)))
    act = node(status, "w.s.act")
    assert act.error is not None
    assert (act.error["code"], act.attempt) == ("OUTPUT_INVALID", 1)


def test_an_exception_that_cannot_be_printed_is_an_invalid_output_all_the_same() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise Stop

    class Bad(BaseModel):
        @model_validator(mode="after")
        def refuse(self) -> Any:
            raise Unprintable

    status = run_through(staged(Action("act", lambda state: {"a": 1}, output=Bad, attempts=5)))
    error = node(status, "w.s.act").error
    assert error is not None
    assert (error["code"], error["type"]) == ("OUTPUT_INVALID", "Unprintable")


def test_an_atomic_action_writes_with_its_checkpoint_or_not_at_all() -> None:
    def write(state: dict[str, Any], ctx: Any) -> dict[str, int]:
        assert connection.in_atomic_block
        Group.objects.create(name=f"attempt-{ctx.attempt}")
        if ctx.attempt == 1:
            raise RuntimeError("after the write")
        return {"made": 1}

    status = run_through(staged(Action("write", write, atomic=True, backoff=1)), seconds=1)
    assert status.run.status == "completed"
    assert list(Group.objects.values_list("name", flat=True)) == ["attempt-2"]
    assert names(status) == [
        "started",
        "action.started",
        "action.retrying",
        "action.started",
        "action.completed",
        "stage.completed",
        "completed",
    ]


def test_an_atomic_action_refuses_steps() -> None:
    def write(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("k", int)

    status = run_through(staged(Action("write", write, atomic=True, attempts=1)))
    assert status.run.error is not None
    assert "atomic" in status.run.error["message"]


def test_an_atomic_action_that_breaks_its_transaction_fails_alone() -> None:
    def broken(state: dict[str, Any]) -> None:
        try:
            with transaction.atomic(savepoint=False):
                Group.objects.create(name="x" * 1000)
        except Exception:
            pass

    status = run_through(staged(Action("broken", broken, atomic=True, attempts=1)))
    assert status.run.status == "compensated"
    assert status.run.error is not None
    assert status.run.error["type"] == "TransactionManagementError"


def test_progress_is_coalesced_and_the_last_value_arrives() -> None:
    def work(state: dict[str, Any], ctx: Any) -> None:
        for i in range(10_000):
            ctx.progress(i / 100)
        ctx.progress(100, "all\x00done")

    status = run_through(staged(Action("work", work)))
    entries = list(RunEvent.objects.filter(run_id=status.run.id, name="action.progress"))
    assert len(entries) == 1
    assert entries[0].data["progress"] == 100
    assert "\x00" not in entries[0].data["message"]
    assert node(status, "w.s.work").progress == 100


@pytest.mark.parametrize(
    "percent", [-1, 101, float("nan"), pytest.param(10**400, id="beyond floats"), "50", True, None]
)
@pytest.mark.parametrize("twin", [False, True])
def test_progress_takes_numbers_from_0_to_100(percent: Any, twin: bool) -> None:
    def work(state: dict[str, Any], ctx: Any) -> None:
        ctx.progress(percent)

    async def awork(state: dict[str, Any], ctx: Any) -> None:
        await ctx.aprogress(percent)

    status = run_through(staged(Action("work", awork if twin else work, attempts=1)))
    assert status.run.error is not None
    assert status.run.error["type"] in ("ValueError", "TypeError")
    assert "percent is a number from 0 to 100" in status.run.error["message"]


def test_a_plain_handler_over_its_timeout_is_interrupted_and_counts_as_failed() -> None:
    def spin(state: dict[str, Any], ctx: Any) -> None:
        while True:
            pass

    status = run_through(staged(Action("spin", spin, timeout=0.2, attempts=1)))
    assert status.run.error is not None
    assert status.run.error["code"] == "ACTION_TIMEOUT"
    assert history(status)[-1] == ("compensated", None)


def test_an_async_handler_over_its_timeout_is_cancelled_and_counts_as_failed() -> None:
    heard: list[str | None] = []

    async def sleep(state: dict[str, Any], ctx: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            heard.append(ctx.signal.reason)
            raise

    work = Action("sleep", sleep, timeout=0.2, attempts=2, backoff=0)
    status = run_through(staged(work))
    assert heard == ["timeout", "timeout"]
    assert status.run.error is not None
    assert status.run.error["code"] == "ACTION_TIMEOUT"
    assert history(status)[-1] == ("compensated", None)


@pytest.mark.parametrize("how", ["waits", "looks"])
def test_a_plain_handler_may_see_that_its_time_is_up_and_end_by_itself(how: str) -> None:
    heard: list[str | None] = []

    status = run_through(staged(Action("heeds", heeding(how, heard), timeout=0.2, attempts=2, backoff=0)))
    assert heard == ["timeout", "timeout"]
    assert status.run.error is not None
    assert status.run.error["code"] == "ACTION_TIMEOUT"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_returns_when_it_hears_of_its_timeout_has_timed_out(is_async: bool) -> None:
    def listen(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {"heard": ctx.signal.wait(60)}

    async def alisten(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return {"heard": True}
        return {}

    work = Action("listen", alisten if is_async else listen, timeout=0.1, attempts=1)
    status = run_through(staged(work))
    assert status.run.error is not None
    assert status.run.error["code"] == "ACTION_TIMEOUT"
    assert status.run.state == {}


def dispatches(state: dict[str, Any]) -> None:
    workflows.dispatch("child", {"x": object()})


def publishes(state: dict[str, Any]) -> None:
    workflows.publish("t", float("nan"))


@pytest.mark.parametrize("handler", [dispatches, publishes])
def test_what_a_handler_dispatches_or_publishes_and_json_cannot_hold_fails_it_once(handler: Any) -> None:
    """A fault of the code, not a matter of trying again (C59)."""
    workflows.register(Workflow("child", stages=[Stage("s", run=lambda state: None)]))
    status = run_through(staged(Action("a", handler)))
    assert (status.run.status, status.nodes[-1].attempt) == ("compensated", 1)
    assert status.run.error is not None
    assert status.run.error["code"] == "PAYLOAD_INVALID"
    assert not Run.objects.filter(workflow="child").exists()
    assert not Event.objects.exists()
