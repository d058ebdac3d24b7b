"""What user code does with the state it is given stays with it: the engine's own is what the run has stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, model_validator

from tests.support.runs import run_through, staged
from workflow import Action, Retry, Stage, Workflow, parallel

DATA = {"items": [1], "meta": {"list": [1]}}


class Open(BaseModel):
    """A schema that leaves open what is inside: pydantic passes that on as it is."""

    items: Any = None
    meta: dict = {}  # type: ignore[type-arg]


class Spoiling(BaseModel):
    """A schema that changes what it is shown, before it is validated."""

    items: list[int]

    @model_validator(mode="before")
    @classmethod
    def spoil(cls, data: dict[str, Any]) -> dict[str, Any]:
        data["items"].append(2)
        return data


def spoil(given: Open) -> None:
    given.items.append("dirt")
    given.meta["list"].append("dirt")


def test_a_handler_with_input_may_change_what_it_is_given() -> None:
    seen: list[Any] = []

    def act(given: Open, ctx: Any) -> None:
        seen.append(given.model_dump())
        spoil(given)
        if ctx.attempt == 1:
            raise Retry(0)

    status = run_through(
        staged(Action("act", act, input=Open), Action("look", lambda state: seen.append(state))), DATA
    )
    assert seen == [{"items": [1], "meta": {"list": [1]}}] * 3
    assert status.run.state == DATA


def test_a_validator_may_change_what_it_is_shown() -> None:
    seen: list[Any] = []
    act = Action("act", lambda given: seen.append(given.items), input=Spoiling)
    status = run_through(staged(act, Action("look", lambda state: seen.append(state["items"]))), DATA)
    assert seen == [[1, 2], [1]]
    assert status.run.state == DATA


@pytest.mark.parametrize("correlate", [lambda state: state.pop("key"), lambda state: state["list"].pop()])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_steps_correlate_may_change_what_it_is_given(
    correlate: Callable[[dict[str, Any]], str], is_async: bool
) -> None:
    seen: list[Any] = []

    def plain(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.wait_event("e", "go", correlate=correlate)

    async def coroutine(state: dict[str, Any], ctx: Any) -> None:
        await ctx.step.await_event("e", "go", correlate=correlate)

    def look(state: dict[str, Any], ctx: Any) -> None:
        seen.append(state)
        if ctx.attempt == 1:
            raise Retry(0)

    mates = parallel(Action("wait", coroutine if is_async else plain), Action("look", look))
    data = {"key": "k", "list": ["k"]}
    run_through(Workflow("w", stages=[Stage("s", actions=[mates])]), data)
    assert seen == [data] * 2
