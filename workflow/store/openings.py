"""Beginning fresh runs in the transaction that claims them: the openings that go out with a claim."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from workflow import ids
from workflow.definitions import Workflow
from workflow.plan import Boundary, opening
from workflow.sql import openings as sql
from workflow.sql.arrays import plain, texts
from workflow.store.pipeline import Statement

ROOM: Final = 200
"""Nodes, at most, in the openings that go out with one claim."""
REST: Final = 5.0
"""Seconds without openings, after the database has refused a claim that had some."""

Key = tuple[str, int, str]
"""Name, version and fingerprint of a workflow."""


class Openings:
    """Of the workflows that are served here: those of which a fresh run was met last, as many as there is room for."""

    def __init__(self, workflows: Iterable[Workflow]) -> None:
        self._known: dict[Key, Boundary] = {}
        for workflow in workflows:
            found = opening(workflow.tree)
            if found is not None:
                self._known[workflow.name, workflow.version, workflow.tree.fingerprint] = found
        self._recent = dict.fromkeys(reversed(self._known))
        """Their keys, those met last at the end."""
        self._resting_until = float("-inf")
        self._choose()

    def statement(self, worker_id: str) -> Statement | None:
        """Begins those of the runs claimed in the same transaction that nobody has begun; None for nothing to send."""
        if not self._chosen or time.monotonic() < self._resting_until:
            return None
        workflows, nodes, history = self._parameters
        return sql.OPEN_RUNS, (*workflows, worker_id, *nodes, *history)

    def boundary(self, key: Key) -> Boundary:
        """What OPEN_RUNS settles for each fresh run of this workflow."""
        return self._known[key]

    def met(self, key: Key) -> None:
        """A fresh run of this workflow was claimed: its opening, if it has one, goes out with the next claims."""
        if key not in self._known:
            return
        del self._recent[key]
        self._recent[key] = None
        if key not in self._chosen:
            self._choose()

    def rest(self) -> None:
        """For a while each run is begun by a boundary of its own, so that one that cannot be is refused alone."""
        self._resting_until = time.monotonic() + REST

    def _choose(self) -> None:
        self._chosen: set[Key] = set()
        room = ROOM
        for key in reversed(self._recent):
            room -= len(self._known[key].changes)
            if room < 0:
                break
            self._chosen.add(key)
        self._parameters = _parameters(
            [(key, self._known[key]) for key in self._recent if key in self._chosen]
        )


def _parameters(openings: list[tuple[Key, Boundary]]) -> tuple[tuple[str, ...], ...]:
    """The parameters of OPEN_RUNS: the workflows, the nodes that their openings start, and the history they begin."""
    keys = [key for key, _ in openings]
    boundaries = [boundary for _, boundary in openings]
    nodes = [(number, change) for number, boundary in enumerate(boundaries) for change in boundary.changes]
    history = [
        (number, place, entry)
        for number, boundary in enumerate(boundaries)
        for place, entry in enumerate(boundary.history, 1)
    ]
    return (
        (
            texts([name for name, _, _ in keys]),
            plain([version for _, version, _ in keys]),
            texts([fingerprint for _, _, fingerprint in keys]),
            plain(range(len(keys))),
            plain([len(boundary.history) for boundary in boundaries]),
            plain([len(boundary.changes) for boundary in boundaries]),
        ),
        (
            plain([number for number, _ in nodes]),
            texts([ids.ending(change.ordinal) for _, change in nodes]),
            plain([change.attempt for _, change in nodes]),
        ),
        (
            plain([number for number, _, _ in history]),
            plain([place for _, place, _ in history]),
            texts([entry.name for _, _, entry in history]),
            texts([entry.node for _, _, entry in history]),
            texts([entry.data for _, _, entry in history]),
        ),
    )
