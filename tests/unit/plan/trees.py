"""Random definitions: small trees with everything that a definition can have."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from hypothesis import strategies as st
from pydantic import AfterValidator

from workflow import Action, Pipeline, Stage, WaitFor, Workflow, parallel


def nothing(state: Any) -> None:
    """Stands for user code; what it does is the test's to say."""


def marked(merged: dict[str, Any], name: str) -> dict[str, Any]:
    """What `output=` of a stage makes of the merge: a key of its own, and one that actions write too."""
    return {**merged, "checked": name, "b": f"{name}'s"}


def _mark(name: str) -> Any:
    return Annotated[dict[str, Any], AfterValidator(lambda merged: marked(merged, name))]


def _refuse(merged: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("the merge is not what it should be")


REFUSING = Annotated[dict[str, Any], AfterValidator(_refuse)]

BOTH = {"when": nothing, "precheck": nothing}
gates = st.sampled_from([{}, {}, {}, {}, {"when": nothing}, {"precheck": nothing}, BOTH])
placements: Any = st.sampled_from(["inline", "inline", "inline", "queue"])


@st.composite
def actions(draw: st.DrawFn, name: str) -> Action:
    return Action(
        name,
        nothing,
        attempts=draw(st.integers(1, 3)),
        via=draw(placements),
        compensate=draw(st.sampled_from([nothing, nothing, None])),
        compensate_attempts=draw(st.integers(1, 2)),
        atomic=draw(st.sampled_from([False, False, False, True])),
        **draw(gates),
    )


@st.composite
def grouped(draw: st.DrawFn, members: Any, prefix: str, most: int, parallel_too: bool = True) -> list[Any]:
    """Up to `most` members in groups, as `actions=` and `stages=` take them."""
    several = [[2], [1, 2], [2, 1], [3], [2, 2]] if parallel_too else [[1, 1, 1]]
    sizes = draw(st.sampled_from([[1], [1, 1], *several]))
    found: list[Any] = []
    count = 0
    for size in sizes:
        size = min(size, most - count)
        group = [draw(members(f"{prefix}{count + place}")) for place in range(size)]
        count += size
        if group:
            found.append(parallel(group))
    return found


@st.composite
def stages(draw: st.DrawFn, name: str, calm: bool = False, parallel_too: bool = True) -> Stage:
    body = draw(st.sampled_from(["actions", "actions", "actions", "run", "wait"]))
    options: dict[str, Any] = {"via": draw(placements), **draw(gates)}
    if body == "wait":
        correlate = draw(st.sampled_from([None, None, nothing, "a"]))
        wait = WaitFor("t", pick=draw(st.sampled_from([None, nothing])), correlate=correlate)
        return Stage(name, wait_for=wait, **options)
    options["output"] = draw(st.sampled_from([None, None, None, _mark(name), None if calm else REFUSING]))
    if body == "run":
        return Stage(name, run=nothing, attempts=draw(st.integers(1, 2)), compensate=nothing, **options)
    return Stage(name, actions=draw(grouped(actions, "a", 4, parallel_too)), **options)


@st.composite
def workflows(
    draw: st.DrawFn, calm: bool = False, parallel_too: bool = True, halting: bool = False
) -> Workflow:
    """`calm`: nothing of it fails by itself. Without `parallel_too` one thing comes after the other. `halting`: a
    failure ends it as it stands, and it is long enough that much stands then."""
    members = partial(stages, calm=calm, parallel_too=parallel_too)
    count = 2 if halting else draw(st.sampled_from([1, 1, 2]))
    pipelines = [
        Pipeline(f"p{place}", draw(grouped(members, "s", 2 if halting else 4, parallel_too)))
        for place in range(count)
    ]
    ends = "halt" if halting else draw(st.sampled_from(["compensate", "halt"]))
    return Workflow("w", pipelines=pipelines, on_failure=ends)


def sketch(workflow: Workflow) -> str:
    """A definition in a few lines, for whoever looks at a failing example."""
    lines = [f"on_failure={workflow.on_failure}"]
    for node in workflow.tree.nodes[1:]:
        definition = node.definition
        names = ("attempts", "compensate_attempts", "when", "precheck", "atomic", "output", "wait_for")
        told = {name: getattr(definition, name, None) for name in names}
        if isinstance(definition, Action):
            told["compensate"] = definition.compensate_handler is not None
        kept = {name: True if callable(value) else value for name, value in told.items() if value}
        lines.append(f"{node.ordinal} {node.path}{' (own job)' * node.own_job} {node.groups} {kept}")
    return "\n".join(lines)
