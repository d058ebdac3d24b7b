"""The values that `plan` produces: a boundary, and what the executor is to do once it is settled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

if TYPE_CHECKING:
    from workflow.plan.backward import Undo

# The phases of a ledger.
FORWARD: Final = "run"
"""The steps of an action."""
BACKWARD: Final = "compensate"
"""The steps of its compensation."""

# What becomes of the unit's own job.
KEEP: Final = "keep"
"""The unit goes on under its lease."""
DELETE: Final = "delete"
"""The unit's work is settled."""
RELEASE: Final = "release"
"""The job goes back to the queue, due after `delay` seconds."""
AWAIT: Final = "await"
"""The unit lets go until a child or a wait settles: the job goes, unless one has settled already. A run of which
nothing but parked waits is left is `waiting` from here on."""


@dataclass(slots=True)
class Change:
    """One node's transition. It counts only while the node still has the status `source`."""

    ordinal: int
    source: str
    target: str
    attempt: int | None = None
    compensate_attempt: int | None = None
    output: str | None = None
    """JSON text, or None to leave the column alone."""
    error: str | None = None
    """JSON text; the empty string clears the column."""
    due: float | None = None
    """Seconds from now at which the node may go on."""
    progress: float | None = None
    event: int | None = None
    """Position (1-based) of the entry that ends it, completed or failed, among the boundary's events."""
    wait: Park | None = None


@dataclass(slots=True)
class Park:
    """What a parked wait stage waits for. `timeout` in seconds, None for no limit."""

    event: str
    correlation: str | None
    timeout: float | None


@dataclass(slots=True)
class HistoryEntry:
    """One row of history. `node` is a path; `data` is JSON text; `due`: it also says when, so many seconds from now."""

    name: str
    node: str | None = None
    data: str | None = None
    due: float | None = None


HistoryRow = tuple[UUID | str, int, str, str | None, Any, dict[str, Any] | None]
"""The same once it was written: run id, seq, name, the node's path, when, and its data."""


@dataclass(slots=True)
class NewJob:
    """A job to add, due after `delay` seconds. A node that has one keeps that."""

    kind: str
    ordinal: int
    delay: float = 0.0


@dataclass(slots=True)
class Wake:
    """Adds the unit's job once every one of `siblings` is terminal: whoever settles last does it."""

    unit: int
    siblings: tuple[int, ...]


@dataclass(slots=True)
class StepWrite:
    """One ledger row, added or brought up to date; one that is settled stays as it is.

    `deadline`, `lease` and `poll` are seconds from now. A deadline that is set stands: it is fixed when the
    step first parks, and only a step that failed and is opened again gets a new one.
    """

    ordinal: int
    phase: str
    key: str
    kind: str
    status: str
    attempt: int = 0
    value: str | None = None
    error: str | None = None
    lease: float | None = None
    deadline: float | None = None
    poll: float | None = None
    event: str | None = None
    correlation: str | None = None
    compensable: bool = False
    """It is completed, and the walk back is to undo it."""


@dataclass(slots=True)
class Boundary:
    """All that a worker decides between two pieces of user code, settled as one or not at all."""

    compensating: bool = False
    """True: the run must be compensating; False: it must be pending, running or waiting."""
    run_target: str | None = None
    run_error: str | None = None
    """JSON text, or None to leave it alone."""
    patch: str | None = None
    """JSON text of the object that is merged into the run's state, or None."""
    changes: list[Change] = field(default_factory=list)
    cancel_pending: bool = False
    """Also cancels every node of the run that is still live: the run is over, or turns back."""
    history: list[HistoryEntry] = field(default_factory=list)
    steps: list[StepWrite] = field(default_factory=list)
    ledgers_over: list[tuple[int, str]] = field(default_factory=list)
    """Nodes and phases whose handlers are over for good, and may have left rows open in their ledgers."""
    alone: bool = False
    """Nobody else settles boundaries of this run meanwhile: the run's own stamp tells what became of this one."""
    job: str = KEEP
    delay: float = 0.0
    last_error: str | None = None
    refund: bool = False
    """Gives the job's attempt back."""
    moves: tuple[int, ...] = ()
    """The nodes that the unit's job moves on to, one after another: it is the last one's from here on, as if it had
    been claimed as that (0: the run's, for its compensation). The database refuses such a boundary where the job is to
    go through the queue."""
    new_jobs: list[NewJob] = field(default_factory=list)
    wakes: list[Wake] = field(default_factory=list)
    awaited: list[tuple[int, ...]] = field(default_factory=list)
    """Sets of nodes; the unit is due at once when one of them has settled as a whole."""

    def lead_with(self, notes: Notes | None) -> None:
        """Puts a handler's notes before the entry that completes it."""
        if notes is None:
            return
        self.history[:0] = notes.entries
        for change in self.changes:
            if change.event is not None:
                change.event += len(notes.entries)
            change.progress = notes.progress

    @property
    def empty(self) -> bool:
        return not (
            self.changes
            or self.history
            or self.run_target
            or self.job != KEEP
            or self.moves
            or self.new_jobs
            or self.steps
        )


@dataclass(slots=True)
class Start:
    """An attempt to run once the boundary is settled."""

    ordinal: int
    attempt: int
    state: dict[str, Any]
    compensation: bool = False
    step: str | None = None
    """The key of the step that is to be undone, instead of the action: `state` is what its handler was started with."""
    resumed: bool = False
    """Whether the attempt has been suspended before."""


@dataclass(slots=True)
class Ask:
    """User code to ask before a node can go on: its gates, its correlation, its pick, or its `output=`."""

    ordinal: int
    state: dict[str, Any]
    event: dict[str, Any] | None = None
    """The event for `pick`; None when the gates are asked."""
    checks: bool = False
    """Whether it is `output=` that is asked, about `value`."""
    value: Any = None


@dataclass(slots=True)
class Timer:
    """A retry, or a suspended handler, that comes due while other members of the unit are still at work."""

    ordinal: int
    delay: float


@dataclass(slots=True)
class Move:
    """What to do next: settle the boundary, then start, ask and wait. `done`: the unit has let go."""

    boundary: Boundary = field(default_factory=Boundary)
    starts: list[Start] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    done: bool = False
    back: Undo | None = None
    """The plan that goes on from here: the unit's job is the compensation's, and `starts` are its first."""


@dataclass(slots=True)
class Notes:
    """What a handler has reported and nobody has written yet: its latest progress, and history entries."""

    progress: float | None = None
    entries: list[HistoryEntry] = field(default_factory=list)


# --- what just happened -------------------------------------------------------------------------


@dataclass(slots=True)
class Completed:
    """An attempt returned. `text` is the JSON text of `output`; settled: an atomic action did it itself. `leaves_open`:
    its ledger may have rows that wait, or whose bodies were at work: nobody comes back to them."""

    ordinal: int
    output: Any
    text: str | None
    settled: bool = False
    notes: Notes | None = None
    leaves_open: bool = False


@dataclass(slots=True)
class Failed:
    """An attempt failed. `delay` is how long the next one waits; `final`: there is no next one."""

    ordinal: int
    error: dict[str, Any]
    delay: float = 0.0
    final: bool = False
    notes: Notes | None = None


@dataclass(slots=True)
class Suspended:
    """A handler parked itself in its ledger; it goes on after `delay` seconds, or when woken before."""

    ordinal: int
    delay: float
    notes: Notes | None = None
    steps: list[StepWrite] = field(default_factory=list)


@dataclass(slots=True)
class Answered:
    """The gates let the node start (`go`) or skip it; `correlation` is what a wait is to match."""

    ordinal: int
    go: bool
    correlation: str | None = None


@dataclass(slots=True)
class Checked:
    """What `output=` has made of what a stage gives, with its JSON text; or the error of one that it does not fit."""

    ordinal: int
    value: Any = None
    text: str = "null"
    error: dict[str, Any] | None = None


@dataclass(slots=True)
class Refused:
    """A gate, a correlation or a pick raised, or an invariant did not hold: the node fails."""

    ordinal: int
    error: dict[str, Any]


@dataclass(slots=True)
class Due:
    """A node's turn has come. Of a `timer` that has been replaced since, it counts no more."""

    ordinal: int
    timer: Timer | None = None


Fact = Completed | Failed | Suspended | Answered | Checked | Refused | Due


def is_start(fact: Fact) -> bool:
    """Whether a fact brings no data of user code's: its boundary merely starts the node, or skips it."""
    return isinstance(fact, Due) or (isinstance(fact, Answered) and fact.correlation is None)
