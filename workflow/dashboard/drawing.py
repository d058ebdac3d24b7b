"""A workflow as people draw it: pipelines of stages in order, what runs at the same time side by side.

One drawing serves runs and definitions alike; a run's has statuses in it. Where the definition that a run began
under is not known here, its nodes are drawn one after another: which of them ran together nobody can tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from workflow import states, terminal
from workflow.definitions import Action, Pipeline, Stage, Tree, TreeNode, WaitFor, Workflow


@dataclass(frozen=True, slots=True)
class Mark:
    """A small fact about a node: what is written, and what it means."""

    text: str
    title: str


@dataclass(slots=True)
class Drawn:
    """One node. `groups` are its children: the members of a group run at the same time."""

    path: str
    name: str
    kind: str
    """`pipeline`, `stage`, `wait` or `action`."""
    status: str = ""
    groups: list[list[Drawn]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    symbol: str = ""
    took: str = ""
    attempt: str = ""
    progress: float | None = None
    note: str = ""
    error: str = ""

    @property
    def broad(self) -> bool:
        """Whether some of its children stand side by side."""
        return any(len(group) > 1 for group in self.groups)

    @property
    def many(self) -> bool:
        """Whether it has so many children that a page starts with them folded."""
        return sum(map(len, self.groups)) > 40


def of_definition(workflow: Workflow) -> list[Drawn]:
    """The pipelines of a definition, with all that is declared."""
    tree = workflow.tree
    return [_from_tree(tree, tree.nodes[at], {}, None) for (at,) in tree.nodes[0].groups]


def of_run(tree: Tree | None, nodes: Sequence[Mapping[str, Any]], now: datetime) -> list[Drawn]:
    """The pipelines of a run. `nodes` as in a snapshot; `tree` is None when its definition is not known."""
    known = {node["path"]: node for node in nodes}
    if tree is not None:
        return [_from_tree(tree, tree.nodes[at], known, now) for (at,) in tree.nodes[0].groups]
    drawn: dict[str, Drawn] = {}
    pipelines: list[Drawn] = []
    for node in nodes:
        one = drawn[node["path"]] = Drawn(node["path"], node["path"].rpartition(".")[2], node["kind"])
        _fill(one, node, now)
        parent = drawn.get(node["parent"] or "")
        if parent is None:
            pipelines.append(one)
        else:
            parent.groups.append([one])
    return pipelines


def _from_tree(
    tree: Tree, node: TreeNode, known: Mapping[str, Mapping[str, Any]], now: datetime | None
) -> Drawn:
    definition = node.definition
    waits = isinstance(definition, Stage) and definition.wait_for is not None
    drawn = Drawn(node.path, _name(node), "wait" if waits else node.kind)
    drawn.marks = marks_of(definition) if now is None else _few_marks(definition)
    if now is not None and node.path in known:
        _fill(drawn, known[node.path], now)
    drawn.groups = [[_from_tree(tree, tree.nodes[at], known, now) for at in group] for group in node.groups]
    return drawn


def _name(node: TreeNode) -> str:
    return "run" if isinstance(node.definition, Action) and node.definition.implicit else node.name


def _fill(drawn: Drawn, node: Mapping[str, Any], now: datetime) -> None:
    drawn.status = node["status"]
    drawn.symbol = terminal.SYMBOLS.get(node["status"], "?")
    if node["status"] != states.COMPENSATED:  # it "finished" when it was undone
        drawn.took = took(node["started_at"], node["finished_at"], now)
    drawn.progress = node["progress"] if node["status"] in states.NODE_LIVE else None
    if node["attempt"] > 1:
        drawn.attempt = f"attempt {node['attempt']}"
    if event := node.get("wait_event"):
        drawn.note = f"for {terminal.one_line(event, 120)}"
    drawn.error = terminal.error_line(node["error"], 160)


def took(started: str | None, finished: str | None, now: datetime) -> str:
    """How long it took, or has taken until now; empty for what never started."""
    if started is None:
        return ""
    end = datetime.fromisoformat(finished) if finished else now
    return terminal.duration((end - datetime.fromisoformat(started)).total_seconds())


# --- what is declared -----------------------------------------------------------------------------


def _few_marks(definition: object) -> list[Mark]:
    """What helps to read a run."""
    marks = []
    if isinstance(definition, Stage | Action):
        if definition.via == "queue":
            marks.append(Mark("queued", "runs in a job of its own"))
        if isinstance(definition, Action) and definition.compensate_handler is not None:
            marks.append(Mark("↶", "has a compensation"))
    return marks


def marks_of(definition: object) -> list[Mark]:
    """All that is declared about a stage or an action."""
    marks: list[Mark] = []
    if isinstance(definition, Pipeline) or not isinstance(definition, Stage | Action):
        return marks
    if definition.when is not None:
        marks.append(Mark("when", f"skipped unless {_function(definition.when)} says so"))
    if definition.precheck is not None:
        marks.append(Mark("precheck", f"fails at once if {_function(definition.precheck)} raises"))
    if definition.via == "queue":
        marks.append(Mark("queued", "runs in a job of its own"))
    if isinstance(definition, Action):
        marks += _action_marks(definition)
    elif definition.wait_for is not None:
        marks += _wait_marks(definition.wait_for)
    return marks


def _action_marks(action: Action) -> list[Mark]:
    marks = [Mark(f"{action.attempts} attempts" if action.attempts > 1 else "1 attempt", _backoff(action))]
    if action.timeout is not None:
        marks.append(Mark(terminal.duration(action.timeout), "timeout of each attempt"))
    if action.atomic:
        marks.append(Mark("atomic", "runs in one transaction with its checkpoint"))
    if action.input_adapter is not None:
        marks.append(Mark("input", f"takes {_type(action.input)}"))
    if action.output_adapter is not None:
        marks.append(Mark("output", f"gives {_type(action.output)}"))
    if action.compensate_handler is not None:
        count = action.compensate_attempts
        undo = f"undone by {_function(action.compensate_handler.fn)}, {count} attempt{'s' * (count > 1)}"
        marks.append(Mark("↶ compensation", undo))
    return marks


def _wait_marks(wait: WaitFor) -> list[Mark]:
    marks = [Mark(f"waits for {terminal.one_line(wait.event, 120)}", "the type of the event")]
    if wait.timeout is not None:
        marks.append(Mark(terminal.duration(wait.timeout), "fails when nothing came by then"))
    else:
        marks.append(Mark("no timeout", "waits for as long as it takes"))
    if wait.correlate is not None:
        by = wait.correlate if isinstance(wait.correlate, str) else _function(wait.correlate)
        marks.append(Mark(f"by {terminal.one_line(by, 80)}", "only an event of this correlation counts"))
    if wait.pick is not None:
        marks.append(Mark("pick", f"keeps what {_function(wait.pick)} makes of the event"))
    return marks


def _backoff(action: Action) -> str:
    if action.backoff is None:
        return "waits 0.5 s, doubling" if action.via == "queue" else "waits 1 s more after each attempt"
    if callable(action.backoff):
        return f"waits as {_function(action.backoff)} says"
    return f"waits {terminal.duration(action.backoff)} more after each attempt"


def _function(fn: Any) -> str:
    name: str = getattr(fn, "__qualname__", type(fn).__qualname__)
    return terminal.one_line(name.rpartition("<locals>.")[2], 80)


def _type(schema: Any) -> str:
    return terminal.one_line(getattr(schema, "__qualname__", None) or schema, 80)
