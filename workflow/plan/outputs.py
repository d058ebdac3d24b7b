"""What a stage gives: the merge of its actions' outputs, as its `output=` wants it."""

from __future__ import annotations

from typing import Any

from workflow import payload
from workflow.conf import conf
from workflow.definitions import Stage, Tree, Workflow
from workflow.errors import FailureCode, PayloadInvalid
from workflow.failures import describe
from workflow.plan.faults import Unfit, compact
from workflow.plan.snapshot import RunSnapshot, nest
from workflow.states import COMPLETED


class Outputs:
    """The patches of nodes that completed in this unit's life, in the order of their completion."""

    def __init__(self, tree: Tree, run: RunSnapshot) -> None:
        self._tree = tree
        self._run = run
        self._new: dict[int, dict[str, Any]] = {}

    def add(self, ordinal: int, patch: dict[str, Any]) -> None:
        self._new[ordinal] = patch

    def of_stage(self, ordinal: int, status: list[str]) -> dict[str, Any]:
        """The merge of the actions' outputs, for `output=`."""
        merged: dict[str, Any] = {}
        for child in self._in_completion_order(ordinal, status):
            merged.update(self._new.get(child) or self._stored(child))
        return merged

    def _in_completion_order(self, ordinal: int, status: list[str]) -> list[int]:
        node = self._tree.nodes[ordinal]
        children = [child for group in node.groups for child in group if status[child] == COMPLETED]
        mine = {child: place for place, child in enumerate(self._new)}
        return sorted(
            children,
            key=lambda child: (
                (1, mine[child]) if child in mine else (0, self._run.nodes[child].completed_seq or 0)
            ),
        )

    def _stored(self, ordinal: int) -> dict[str, Any]:
        return nest(self._tree.nodes[ordinal].key, self._run.nodes[ordinal].output) or {}


def validated(value: Any, tree: Tree, ordinal: int) -> tuple[Any, str]:
    """What a stage's `output=` makes of a value, as plain data and as JSON text. Raises `Unfit`, whatever a validator
    does."""
    node, workflow = tree.nodes[ordinal], tree.nodes[0].definition
    assert isinstance(workflow, Workflow)
    assert isinstance(node.definition, Stage)
    adapter = node.definition.output_adapter
    assert adapter is not None
    path, secret_keys = node.path, workflow.secret_keys
    try:
        checked = adapter.validate_python(payload.normalise(value, path))
        return payload.encode(
            adapter.dump_python(checked), f"{path} output", conf.MAX_PAYLOAD_BYTES, secret_keys, node.key
        )
    except PayloadInvalid as error:
        raise Unfit(describe(error, FailureCode.PAYLOAD_INVALID, path)) from error
    except BaseException as error:  # else the whole unit, and what else it has in hand, would pay for it
        raise Unfit(describe(error, FailureCode.OUTPUT_INVALID, path)) from error


def as_patch(name: str, value: Any, text: str) -> tuple[dict[str, Any], str]:
    """What a stage's output merges into the state, with its JSON text: what is no object stands under its name."""
    return (value, text) if isinstance(value, dict) else ({name: value}, compact({name: value}))
