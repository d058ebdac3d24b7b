"""A move in the making: statuses as they will be once its boundary is settled, and what it takes to get there."""

from __future__ import annotations

from typing import Any

from workflow.plan.boundary import Boundary, Change, HistoryEntry, Move, Notes, Park
from workflow.plan.faults import compact


class Draft:
    """`status` and `attempt` by ordinal are the working copy.

    A unit makes one move after another. Nothing is ever taken back: a refused boundary ends the unit.
    """

    def __init__(self, status: list[str], attempt: list[int]) -> None:
        self.status = status
        self.attempt = attempt
        self.move: Move
        """What is being made, from `open` on."""
        self._changes: dict[int, Change]
        self._patches: list[tuple[dict[str, Any], str | None]]

    def open(self, *, compensating: bool = False) -> Boundary:
        """Begins the next move."""
        self.move = Move(boundary=Boundary(compensating=compensating))
        self._changes = {}
        self._patches = []
        return self.move.boundary

    def close(self) -> Move:
        """The finished move."""
        if self._patches:
            self.move.boundary.patch = self._merged()
        return self.move

    def _merged(self) -> str:
        patch, text = self._patches[0]
        if len(self._patches) == 1:
            return compact(patch) if text is None else text
        merged: dict[str, Any] = {}
        for patch, _ in self._patches:
            merged.update(patch)
        return compact(merged)

    def say(
        self, name: str, node: str | None = None, data: str | None = None, due: float | None = None
    ) -> int:
        """Appends to the history; returns the entry's position, from 1."""
        history = self.move.boundary.history
        history.append(HistoryEntry(name, node, data, due))
        return len(history)

    def note(self, ordinal: int, notes: Notes | None) -> None:
        """Takes over what a handler has reported and nobody has written yet."""
        if notes is not None:
            self.move.boundary.history.extend(notes.entries)
            if notes.progress is not None:
                self.change(ordinal, self.status[ordinal], progress=notes.progress)

    def patch(self, patch: dict[str, Any], text: str | None = None) -> None:
        """Merges an output into the run's state; `text` is its JSON text, if that is at hand."""
        self._patches.append((patch, text))

    def change(
        self,
        ordinal: int,
        target: str,
        *,
        attempt: int | None = None,
        compensate_attempt: int | None = None,
        output: str | None = None,
        error: str | None = None,
        due: float | None = None,
        progress: float | None = None,
        event: int | None = None,
        wait: Park | None = None,
    ) -> None:
        """Adds a transition; a second one of the same node in one boundary becomes one with the first."""
        source = self.status[ordinal]
        self.status[ordinal] = target
        if attempt is not None:
            self.attempt[ordinal] = attempt
        change = self._changes.get(ordinal)
        if change is None:
            change = self._changes[ordinal] = Change(
                ordinal,
                source,
                target,
                attempt,
                compensate_attempt,
                output,
                error,
                due,
                progress,
                event,
                wait,
            )
            self.move.boundary.changes.append(change)
            return
        change.target = target
        if attempt is not None:
            change.attempt = attempt
        if compensate_attempt is not None:
            change.compensate_attempt = compensate_attempt
        if output is not None:
            change.output = output
        if error is not None:
            change.error = error
        if progress is not None:
            change.progress = progress
        change.due, change.event, change.wait = due, event, wait
