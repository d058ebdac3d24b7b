"""What a stage gives: the merge of its actions' outputs, as its `output=` wants it."""

from __future__ import annotations

from typing import Any

from workflow.definitions import Stage, Tree
from workflow.plan.snapshot import RunSnapshot, nest
from workflow.states import COMPLETED


class Outputs:
    """The patches of nodes that completed in this unit's life, in the order of their completion."""

    def __init__(self, tree: Tree, run: RunSnapshot) -> None:
        self._tree = tree
        self._run = run
        self._new: dict[int, Any] = {}

    def add(self, ordinal: int, patch: dict[str, Any]) -> None:
        self._new[ordinal] = patch

    def of_stage(self, ordinal: int, stage: Stage, status: list[str]) -> dict[str, Any] | None:
        """The merge of the actions' outputs as `output=` validates it; None without `output=`.

        Raises whatever the validator raises.
        """
        if stage.output_adapter is None:
            return None
        merged: dict[str, Any] = {}
        for child in self._in_completion_order(ordinal, status):
            merged.update(self._new.get(child) or self._stored(child))
        validated = stage.output_adapter.validate_python(merged)
        dumped = stage.output_adapter.dump_python(validated, mode="json")
        return dumped if isinstance(dumped, dict) else {stage.name: dumped}

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
