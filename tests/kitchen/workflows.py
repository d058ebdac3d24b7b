"""Handlers that look for a file: whoever makes it lets them go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workflow import Stage, WaitFor, Workflow, action, parallel

State = dict[str, Any]


@action
def weigh(state: State) -> State:
    return {"grams": 500}


@action(timeout=120)
def oven(state: State, ctx: Any) -> State:
    """Is at 40 % until the file is there."""
    ctx.progress(40, "warming up")
    while not Path(state["file"]).exists():
        if ctx.signal.wait(0.02):
            ctx.signal.raise_if_aborted()
    return {"baked": True}


@action(attempts=1)
def taste(state: State) -> State:
    if not Path(state["file"]).exists():
        raise RuntimeError(state.get("complaint", "too salty"))
    return {"good": True}


@action
def stir(state: State, ctx: Any) -> None:
    """Tells of its progress a thousand times."""
    for number in range(1_000):
        ctx.progress(number / 10, f"turn {number}")


@action
def wipe(state: State) -> None:
    """Does nothing."""


@action
def serve(state: State) -> State:
    return {"served": True}


@serve.compensate
def take_back(state: State) -> None:
    """Does nothing either."""


def burn(state: State) -> None:
    raise ValueError("burnt")


bread = Workflow("kitchen-bread", stages=[Stage("mix", actions=[weigh]), Stage("bake", actions=[oven])])
soup = Workflow(
    "kitchen-soup", on_failure="halt", stages=[Stage("mix", actions=[weigh]), Stage("try", actions=[taste])]
)
sauce = Workflow("kitchen-sauce", stages=[Stage("cook", actions=[stir])])
table = Workflow("kitchen-table", stages=[Stage("guest", wait_for=WaitFor("guest.came", correlate="name"))])
toast = Workflow(
    "kitchen-toast",
    stages=[
        Stage("mix", actions=[parallel(weigh, wipe)]),
        Stage("serve", actions=[serve]),
        Stage("again", run=burn, attempts=1),
    ],
)
