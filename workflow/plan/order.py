"""Whether the order in which outputs were merged is known here.

An atomic action settles its own completion, and this unit hears of it later. Outputs that were merged in
between may stand before or after it in the database. That matters only where both write the same key.
"""

from __future__ import annotations

from typing import Any

from workflow.definitions import Action, Tree


class Order:
    """`doubtful`: containers whose state is not known here until it is read again."""

    def __init__(self, tree: Tree) -> None:
        self.doubtful: set[int] = set()
        self._tree = tree
        self._since: dict[int, int] = {}
        """By atomic action at work: how long the log was when it began."""
        self._log: list[tuple[int, dict[str, Any]]] = []
        """What was merged while an atomic action was at work: by which node, and the patch."""

    def started(self, ordinal: int) -> None:
        """An attempt begins."""
        definition = self._tree.nodes[ordinal].definition
        if isinstance(definition, Action) and definition.atomic:
            if not self._since:
                self._log.clear()
            self._since[ordinal] = len(self._log)

    def ended(self, ordinal: int) -> None:
        """An attempt is over that settled nothing itself."""
        self._since.pop(ordinal, None)

    def merged(self, ordinal: int, patch: dict[str, Any]) -> None:
        """This unit merges an output, or takes over one that an atomic action has settled."""
        if self._since:
            self._log.append((ordinal, patch))

    def settled(self, ordinal: int, patch: dict[str, Any]) -> None:
        """An atomic action has settled this output, at some time since it began."""
        for other, keys in self._log[self._since.pop(ordinal, len(self._log)) :]:
            if not keys.keys().isdisjoint(patch):
                self.doubtful.add(self._meeting(ordinal, other))

    def _meeting(self, one: int, other: int) -> int:
        """The innermost container that both lie in."""
        nodes = self._tree.nodes
        place = nodes[one].parent
        while not place <= other < nodes[place].end:
            place = nodes[place].parent
        return place
