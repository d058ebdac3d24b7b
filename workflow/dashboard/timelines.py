"""When each node of a run was running and when it was waiting: the bars of the timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from workflow import states

MOST_MOVES: Final = 20_000
"""History entries that a timeline is made of."""

RUN: Final = "run"
RETRY: Final = "retry"
"""An attempt that failed and was not the last."""
WAIT: Final = "wait"
FAILED: Final = "failed"
UNDO: Final = "undo"

Move = tuple[str, str | None, float, bool]
Segment = tuple[str, float, float | None]
"""(kind, from, to): seconds since the epoch; to is None for what still goes on."""


@dataclass(slots=True)
class Track:
    """The bars of one node. The run's own has the path ""."""

    path: str
    kind: str
    segments: list[Segment] = field(default_factory=list)
    open: tuple[str, float] | None = None

    def begin(self, kind: str, at: float) -> None:
        self.end(at)
        self.open = (kind, at)

    def end(self, at: float | None, kind: str | None = None) -> None:
        """Ends what goes on, as `kind` if that is something else in the end."""
        if self.open is not None:
            self.segments.append((kind or self.open[0], self.open[1], at))
            self.open = None


def tracks(run: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], moves: Iterable[Move]) -> list[Track]:
    """One track for the run and each node that has begun, in tree order."""
    root = Track("", RUN)
    by_path = {node["path"]: Track(node["path"], node["kind"]) for node in nodes}
    root.begin(WAIT, _seconds(run["created_at"]) or 0.0)
    for name, path, at, compensating in moves:
        track = by_path.get(path or "")
        if track is None or track.kind != states.ACTION:
            _move_run(root, name, at)
        else:
            _move_action(track, name, at, compensating)
    root.end(_seconds(run["finished_at"]))
    for node in nodes:
        _complete(by_path[node["path"]], node)
    return [root, *(track for track in by_path.values() if track.segments)]


def _move_run(root: Track, name: str, at: float) -> None:
    """What the run's own entries say, and those of stages that wait."""
    if name in (states.EVENT_STARTED, states.EVENT_RESUMED):
        root.begin(RUN, at)
    elif name == states.EVENT_WAITING:
        root.begin(WAIT, at)
    elif name == states.EVENT_COMPENSATING:
        root.begin(UNDO, at)
    elif name in (
        states.EVENT_FAILED,
        states.EVENT_CANCELLED,
        states.EVENT_COMPLETED,
        states.EVENT_COMPENSATED,
    ):
        root.end(at)


def _move_action(track: Track, name: str, at: float, compensating: bool) -> None:
    if name in (states.EVENT_ACTION_STARTED, states.EVENT_RESUMED):
        track.begin(RUN, at)
    elif name == states.EVENT_WAITING:  # a handler has suspended itself
        track.begin(WAIT, at)
    elif name == states.EVENT_ACTION_RETRYING and compensating:
        track.segments.append((RETRY, at, at))
    elif name == states.EVENT_ACTION_RETRYING:
        track.end(at, RETRY)
        track.begin(WAIT, at)
    elif name == states.EVENT_ACTION_COMPLETED:
        track.end(at)
    elif name == states.EVENT_ACTION_FAILED:
        track.end(at, FAILED)
    elif name == states.EVENT_ACTION_COMPENSATED:
        track.segments.append((UNDO, at, at))
    elif name == states.EVENT_ACTION_COMPENSATION_FAILED:
        track.segments.append((FAILED, at, at))


def _complete(track: Track, node: Mapping[str, Any]) -> None:
    started, finished = _seconds(node["started_at"]), _seconds(node["finished_at"])
    if track.open is not None:
        track.end(finished)
    elif node["kind"] != states.ACTION and started is not None:
        waits = "wait_event" in node or node["status"] == states.WAITING or node.get("is_wait", False)
        track.segments.insert(0, (WAIT if waits else node["kind"], started, finished))


def _seconds(moment: str | None) -> float | None:
    return None if moment is None else datetime.fromisoformat(moment).timestamp()
