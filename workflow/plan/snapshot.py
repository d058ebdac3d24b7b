"""What a unit knows of its run when it is claimed, and how outputs make a state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from workflow.definitions import Tree
from workflow.payload import in_order
from workflow.plan.layout import needed, visible
from workflow.states import COMPENSATED, COMPLETED, PENDING

__all__ = [
    "NodeSnapshot",
    "RunSnapshot",
    "StepSnapshot",
    "fold",
    "merged",
    "needed",
    "nest",
    "seed",
    "standing",
    "state_before",
]


@dataclass(slots=True)
class NodeSnapshot:
    """One node's row. `due_in`: seconds until it may go on, or None."""

    status: str = PENDING
    attempt: int = 0
    compensate_attempt: int = 0
    due_in: float | None = None
    output: Any = None
    error: dict[str, Any] | None = None
    completed_seq: int | None = None
    wait_outcome: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StepSnapshot:
    """A completed step that can be undone, of the node `ordinal`. `seq`: the run's as the step was completed.

    `attempt`: how often its compensation was started; `failed`: it has failed for good.
    """

    ordinal: int
    key: str
    seq: int
    attempt: int = 0
    failed: bool = False


@dataclass(slots=True)
class RunSnapshot:
    """A claimed run. `nodes` by the ordinals of `tree`, if there is one, else of the definition's; index 0 stands for
    the run itself and is never read."""

    status: str
    input: Any
    state: dict[str, Any]
    nodes: list[NodeSnapshot]
    error: dict[str, Any] | None = None
    places: tuple[int, ...] | None = None
    """By the ordinals of `tree`: those of the run's own tree, when that is another version's; else None."""
    tree: Tree | None = None
    """With `places`: the definition's tree as the run has it, jobs and nodes that it alone has included."""
    last_error: str = ""
    """The job's: tells why an attempt that is still `running` at the claim was lost."""
    job_attempt: int = 0
    """The job's: how often it was claimed, this time included, less what was given back."""
    seq: int | None = None
    """The run's, when `state` was read. The nodes may be read later: outputs of a higher number are not in it yet."""
    steps: list[StepSnapshot] = field(default_factory=list)
    """For a walk back: the steps that are not undone, in the order in which they were completed."""


def seed(value: Any) -> dict[str, Any]:
    """The state that a validated input starts a run with."""
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"input": value}


def nest(key: str, output: Any) -> dict[str, Any] | None:
    """The patch that an output merges into the state: objects as they are, the rest under `key`, null nothing."""
    if output is None:
        return None
    return output if isinstance(output, dict) else {key: output}


def fold(
    tree: Tree, run_input: Any, nodes: list[NodeSnapshot], among: Iterable[int] | None = None
) -> dict[str, Any]:
    """The state made again from the input and the outputs that stand, in the order of their completion; `among`
    these nodes, or all."""
    outputs = standing(nodes, range(1, len(nodes)) if among is None else among)
    return merged(tree, nodes, seed(run_input), outputs)


def standing(nodes: list[NodeSnapshot], among: Iterable[int]) -> list[int]:
    """Which of these nodes have an output that stands, in the order of their completion."""
    return _with_output(nodes, among, (COMPLETED,))


def state_before(tree: Tree, run: RunSnapshot, ordinal: int) -> dict[str, Any]:
    """The state that an action was started with, also where what came before it is undone by now.

    What it lies in was not over then: a stage's own output came later.
    """
    later = {ordinal}
    above = tree.nodes[ordinal].parent
    while above > 0:
        later.add(above)
        above = tree.nodes[above].parent
    among = (n for first, last in visible(tree, ordinal) for n in range(first, last + 1) if n not in later)
    outputs = _with_output(run.nodes, among, (COMPLETED, COMPENSATED))
    return merged(tree, run.nodes, seed(run.input), outputs)


def _with_output(nodes: list[NodeSnapshot], among: Iterable[int], statuses: tuple[str, ...]) -> list[int]:
    found = [n for n in among if nodes[n].output is not None and nodes[n].status in statuses]
    found.sort(key=lambda n: nodes[n].completed_seq or 0)
    return found


def merged(
    tree: Tree, nodes: list[NodeSnapshot], state: dict[str, Any], outputs: Iterable[int]
) -> dict[str, Any]:
    """A copy of `state` with the outputs of these nodes merged into it, one after another; in the order of jsonb."""
    result = dict(state)
    for ordinal in outputs:
        result.update(nest(tree.nodes[ordinal].key, nodes[ordinal].output) or {})
    return result if len(result) == len(state) else in_order(result)
