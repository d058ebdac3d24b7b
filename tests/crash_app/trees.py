"""Random workflows, the same ones in every process: each is made from its number alone."""

from __future__ import annotations

import random
from typing import Any

from tests.crash_app.parts import KINDS, act
from workflow import Pipeline, Stage, WaitFor, Workflow, parallel

COUNT = 24
CORRELATE = "key"
"""Every wait takes events of its run alone: the input's `key` is their correlation."""


def random_workflow(number: int) -> Workflow:
    """Up to three pipelines of up to four stages, some of it side by side, some of it queued."""
    dice = random.Random(f"tree {number}")
    pipelines = [Pipeline(f"p{i}", stages=_stages(dice)) for i in range(dice.choice([1, 1, 1, 2, 3]))]
    on_failure = "halt" if dice.random() < 0.15 else "compensate"
    return Workflow(f"random-{number:02}", pipelines=pipelines, on_failure=on_failure)


def _stages(dice: random.Random) -> list[Any]:
    stages = [_stage(dice, f"s{i}") for i in range(dice.randint(1, 4))]
    return _grouped(dice, stages)


def _stage(dice: random.Random, name: str) -> Stage:
    via = "queue" if dice.random() < 0.2 else "inline"
    if dice.random() < 0.2:
        return Stage(name, wait_for=WaitFor(f"go-{name}", correlate=CORRELATE, timeout=600), via=via)
    gate = (lambda state: False) if dice.random() < 0.08 else None
    actions = [_action(dice, f"a{i}") for i in range(dice.randint(1, 4))]
    return Stage(name, actions=_grouped(dice, actions), via=via, when=gate)


def _action(dice: random.Random, name: str) -> Any:
    via = "queue" if dice.random() < 0.25 else "inline"
    gate = (lambda state: False) if dice.random() < 0.05 else None
    return act(name, dice.choice(KINDS), undo=dice.random() < 0.8, via=via, when=gate)


def _grouped(dice: random.Random, items: list[Any]) -> list[Any]:
    """The items in order, some neighbours of them side by side."""
    grouped: list[Any] = []
    while items:
        size = min(len(items), dice.choice([1, 1, 2, 3]))
        members, items = items[:size], items[size:]
        grouped.append(members[0] if size == 1 else parallel(members))
    return grouped
