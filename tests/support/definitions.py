"""Definitions that the tests of commands use. Nothing runs an engine there, so their handlers do nothing."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from workflow import Action, Pipeline, Stage, WaitFor, Workflow, parallel


def nothing(state: Any) -> None:
    """A handler."""


def act(name: str, **options: Any) -> Action:
    return Action(name, nothing, **options)


class Order(BaseModel):
    order_id: str
    total: int = 0


ORDER = Workflow(
    "order",
    input=Order,
    on_failure="halt",
    stages=[
        Stage("reserve", actions=[act("stock"), act("label")]),
        Stage("pay", run=nothing),
        Stage("paid", wait_for=WaitFor("payment.succeeded", correlate="order_id")),
        Stage("ship", actions=[parallel(act("pack"), act("notify", via="queue")), act("send")]),
    ],
)

PHASES = Workflow(
    "phases",
    on_failure="halt",
    pipelines=[
        Pipeline("first", stages=[Stage("a", actions=[act("x"), act("y")])]),
        Pipeline(
            "second",
            stages=[
                parallel(
                    Stage("left", actions=[act("l")]),
                    Stage("right", actions=[act("r1"), act("r2")], via="queue"),
                ),
                Stage("after", actions=[act("z")]),
            ],
        ),
        Pipeline("third", stages=[Stage("last", actions=[act("w")])]),
    ],
)

WAITS = Workflow(
    "waits",
    stages=[
        parallel(
            Stage("one", wait_for=WaitFor("one.happened")),
            Stage("two", wait_for=WaitFor("two.happened"), via="queue"),
        ),
        Stage("then", run=nothing),
    ],
)

PLAIN = Workflow("plain", stages=[Stage("s", run=nothing)])
