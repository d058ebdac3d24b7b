"""What the manager answers: handles, statuses and pages. Values only; reading them asks nothing.

The exception is `RunHandle`, which knows the manager that made it and asks again when told to.
Times are as Django gives them: aware, or naive in the current time zone where ``USE_TZ`` is False.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, WithJsonSchema

RunState = Literal[
    "pending", "running", "waiting", "compensating", "completed", "compensated", "failed", "cancelled"
]
NodeState = Literal[
    "pending", "running", "waiting", "skipped", "completed", "failed", "compensated", "cancelled"
]

if TYPE_CHECKING:
    State = dict[str, Any]
else:  # whatever somebody has put there by hand: pydantic neither refuses it nor warns as it writes it
    State = Annotated[Any, WithJsonSchema({"type": "object", "additionalProperties": True})]


class RunInfo(BaseModel):
    """One run. ``error`` is ``{"code", "message", "node", "type", "traceback"}``, or None."""

    model_config = ConfigDict(frozen=True)

    id: uuid.UUID
    workflow: str
    version: int
    status: RunState
    state: State
    input: Any
    error: dict[str, Any] | None
    correlation_id: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class NodeInfo(BaseModel):
    """One node. ``parent`` is its path, None for a pipeline; ``progress`` is in percent.

    The ``output`` of a stage that declares none is the merge of its completed actions' outputs.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    kind: Literal["pipeline", "stage", "action"]
    parent: str | None
    status: NodeState
    attempt: int
    progress: float | None
    output: Any
    error: dict[str, Any] | None
    started_at: datetime | None
    finished_at: datetime | None


class RunStatus(BaseModel):
    """A run and all its nodes, in tree order, as one moment saw them."""

    model_config = ConfigDict(frozen=True)

    run: RunInfo
    nodes: list[NodeInfo]


class RunPage(BaseModel):
    """Runs, newest first. ``next`` is what ``list(after=...)`` takes for the page that follows, if any."""

    model_config = ConfigDict(frozen=True)

    items: list[RunInfo]
    next: str | None


class PausedQueueInfo(BaseModel):
    """A queue that is paused: workers claim nothing of it. ``until`` is None for one that stays so until it is resumed.

    ``paused_at`` is since when; ``reason`` and ``by`` are those of the latest ``pause_queue``.
    """

    model_config = ConfigDict(frozen=True)

    queue: str
    until: datetime | None
    reason: str
    by: str | None
    paused_at: datetime


class Commands(Protocol):
    """What a handle needs of its manager."""

    def status(self, run_id: uuid.UUID) -> RunStatus: ...

    async def astatus(self, run_id: uuid.UUID) -> RunStatus: ...

    def cancel(self, run_id: uuid.UUID) -> None: ...

    async def acancel(self, run_id: uuid.UUID) -> None: ...

    def wait(self, run_id: uuid.UUID, timeout: float | timedelta | None) -> RunStatus: ...

    async def await_finished(
        self,
        run_id: uuid.UUID,
        timeout: float | timedelta | None,  # noqa: ASYNC109
    ) -> RunStatus: ...


@dataclass(frozen=True, slots=True)
class RunHandle:
    """A dispatched run. ``created`` is False when its idempotency key had been dispatched before."""

    run_id: uuid.UUID
    created: bool
    _commands: Commands = field(repr=False, compare=False)
    instead_of_storing_it: ClassVar[str] = "take str(handle.run_id)"
    """For the message of ``PayloadInvalid``."""

    def status(self) -> RunStatus:
        """The run as it is now. Raises ``RunNotFound`` once it is pruned."""
        return self._commands.status(self.run_id)

    def wait(self, timeout: float | timedelta | None = None) -> RunStatus:
        """Looks, at growing intervals, until the run is over, and returns its final status.

        ``timeout`` is in seconds or a ``timedelta``, None for no limit; past it, ``TimeoutError``. Inside a
        transaction a limit is required: no worker sees a run before it is committed.
        """
        return self._commands.wait(self.run_id, timeout)

    def cancel(self) -> None:
        """As ``workflows.cancel``. Raises ``RunConflict`` when the run can't be cancelled any more."""
        self._commands.cancel(self.run_id)

    async def astatus(self) -> RunStatus:
        """``status``, for async code."""
        return await self._commands.astatus(self.run_id)

    async def await_finished(self, timeout: float | timedelta | None = None) -> RunStatus:  # noqa: ASYNC109
        """``wait``, for async code; holds no thread between two looks."""
        return await self._commands.await_finished(self.run_id, timeout)

    async def acancel(self) -> None:
        """``cancel``, for async code."""
        await self._commands.acancel(self.run_id)
