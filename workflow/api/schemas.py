"""What the API takes and gives, as models: requests are checked by them, and ``openapi.json`` is made of them.

A request is strict: no unknown fields, no text for a number. What the manager answers is in `workflow.results`.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal, LiteralString
from uuid import UUID

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError

from workflow import bulk, history
from workflow.manager import arguments
from workflow.results import PausedQueueInfo, RunState

_DIGITS: Final = re.compile(r"[0-9]{1,18}")


def _plain_digits(value: object) -> object:
    """A number of a query string: pydantic alone would take "+5", " 5" and "1_000" as well."""
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else None


def _wrong(rule: LiteralString) -> PydanticCustomError:
    """What is wrong with a value, said as it is: before a ValueError's text pydantic puts "Value error, "."""
    return PydanticCustomError("value_error", rule)


def _storable(value: str) -> str:
    """What a text column can hold; the lengths are for the fields to say."""
    if "\0" in value:
        raise _wrong("must not hold a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _wrong("must not hold half a surrogate pair") from None
    return value


def _written_moment(value: object) -> object:
    """A time as JSON can have it: pydantic alone would take a number, and the text of one, for a Unix time."""
    if not isinstance(value, str):
        return value
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise _wrong("must be a time in ISO 8601, with an offset") from None


def _ordinary(queue: str) -> str:
    try:
        return arguments.ordinary_queue(queue)
    except ValueError:
        raise _wrong("must not be the engine's own queue") from None


Digits = BeforeValidator(_plain_digits)
Storable = AfterValidator(_storable)
Name = Annotated[str, Field(min_length=1, max_length=80), Storable]
Text = Annotated[str, Field(min_length=1, max_length=arguments.MAX_TEXT), Storable]
AnyText = Annotated[str, Field(max_length=arguments.MAX_TEXT), Storable]
Queue = Annotated[str, Field(min_length=1, max_length=arguments.MAX_QUEUE), Storable]
OrdinaryQueue = Annotated[Queue, AfterValidator(_ordinary)]
Path = Annotated[str, Field(min_length=1, max_length=arguments.MAX_PATH), Storable]
Reason = Annotated[str, Field(max_length=arguments.MAX_REASON), Storable]
Id = Annotated[UUID, Field(strict=False)]
"""JSON has no type for it, so here a text is what is wanted."""


class Query(BaseModel):
    """Base of query strings. All values are texts at first, hence not strict."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Body(BaseModel):
    """Base of request bodies."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NoQuery(Query):
    """No parameter at all."""


class ListQuery(Query):
    """Which runs; all that is given must hold."""

    workflow: AnyText | None = Field(None, description="Only runs of this workflow.")
    status: RunState | None = Field(None, description="Only runs in this status.")
    correlation: AnyText | None = Field(None, description="Only runs with this correlation id.")
    limit: Annotated[int, Digits] = Field(50, ge=1, le=arguments.MAX_LIMIT, description="Runs on a page.")
    after: UUID | None = Field(None, description="The `next` of the page before.")


class HistoryQuery(Query):
    """Which entries."""

    after: Annotated[int, Digits] = Field(
        0, ge=0, le=history.MAX_SEQ, description="Only entries whose `seq` is greater."
    )
    limit: Annotated[int, Digits] = Field(100, ge=1, le=history.MOST, description="Entries on a page.")


class NoBody(Body):
    """An empty object, or nothing."""


class DispatchBody(Body):
    """What to run; the options are those of ``workflows.dispatch``."""

    workflow: Name = Field(description="The name of a registered workflow.")
    input: Any = Field(None, description="What its `input=` accepts.")
    context: Any = Field(None, description="Handed to the handlers as `ctx.context`.")
    correlation_id: Text | None = Field(None, description="To find the run by, and to match events with.")
    idempotency_key: Text | None = Field(
        None, description="The same key for the same workflow gives the run that it was first used for."
    )
    queue: OrdinaryQueue = Field("default", description="Which workers take it.")
    priority: int = Field(
        0, ge=-arguments.MAX_PRIORITY - 1, le=arguments.MAX_PRIORITY, description="Higher goes first."
    )
    delay: float | None = Field(
        None, ge=0, le=arguments.MAX_DELAY, allow_inf_nan=False, description="Seconds before it is due."
    )


class RetryBody(Body):
    """From where to go on."""

    from_node: Path | None = Field(
        None, description="A node's path: it and all that comes after it is done again."
    )


class CancelBody(Body):
    """How to end it."""

    reason: Reason | None = Field(None, description="Kept in the history.")
    compensate: bool = Field(False, description="Undo what is completed, instead of leaving it as it is.")


class ResumeBody(Body):
    """What the wait is to be satisfied with."""

    payload: Any = Field(None, description="Taken for the payload of the event.")


class PauseBody(Body):
    """Which queue to pause, and for how long: `until` or `seconds`, or neither for no end."""

    queue: OrdinaryQueue = Field(description="Its name.")
    until: Annotated[AwareDatetime, BeforeValidator(_written_moment)] | None = Field(
        None, description="When the pause ends."
    )
    seconds: float | None = Field(
        None, gt=0, le=arguments.MAX_DELAY, allow_inf_nan=False, description="After how long it ends."
    )
    reason: Reason = Field("", description="For whoever finds it paused.")

    @model_validator(mode="after")
    def _ends_once(self) -> PauseBody:
        if self.until is not None and self.seconds is not None:
            raise _wrong("until and seconds can't be given together")
        return self


class UnpauseBody(Body):
    """Which queue to resume."""

    queue: Queue = Field(description="Its name.")


class Filter(Body):
    """Which runs a bulk command is for: `ids` alone, or at least one of the others, of which all must hold."""

    workflow: AnyText | None = Field(None, description="Runs of this workflow.")
    status: RunState | None = Field(None, description="Runs in this status.")
    correlation: AnyText | None = Field(None, description="Runs with this correlation id.")
    ids: Annotated[list[Id], Field(min_length=1, max_length=bulk.MOST)] | None = Field(
        None, description="Exactly these runs."
    )

    @model_validator(mode="after")
    def _says_which(self) -> Filter:
        named = [self.workflow, self.status, self.correlation]
        if self.ids is None and named == [None, None, None]:
            raise _wrong("the filter must name a workflow, a status, a correlation or ids")
        if self.ids is not None and named != [None, None, None]:
            raise _wrong("ids can't be combined with other conditions")
        return self


class BulkBody(Body):
    """A command for many runs, a page of them at a time."""

    filter: Filter
    dry_run: bool = Field(False, description="Count only: every change is rolled back.")
    limit: int = Field(bulk.MOST, ge=1, le=bulk.MOST, description="Runs to take on, the newest first.")
    after: Id | None = Field(None, description="The `next` of the answer before.")


class BulkRetryBody(BulkBody):
    """Retry every run that the filter matches, each from its failure."""


class BulkCancelBody(BulkBody):
    """Cancel every run that the filter matches."""

    reason: Reason | None = Field(None, description="Kept in the history of each.")
    compensate: bool = Field(False, description="Undo what is completed, instead of leaving it as it is.")


class Dispatched(BaseModel):
    """The run; `created` is false when its idempotency key had been dispatched before."""

    run_id: UUID
    created: bool


class HistoryEntry(BaseModel):
    """One entry, in the shape in which it is pushed; further fields depend on its name."""

    model_config = ConfigDict(extra="allow")

    type: Literal["workflow.event"] = "workflow.event"
    name: str
    run_id: UUID
    seq: int
    node: str | None = Field(description="The node's path.")
    at: datetime


class HistoryPage(BaseModel):
    """Entries in their order. `next` is what `after` takes for the entries that follow, if there are any yet."""

    items: list[HistoryEntry]
    next: int | None


class PausePage(BaseModel):
    """The queues that are paused now, by name."""

    items: list[PausedQueueInfo]


class Unpaused(BaseModel):
    """The queue is not paused; `resumed` is false when it was not before either."""

    queue: str
    resumed: bool


class Refusal(BaseModel):
    """Why some of the runs were refused."""

    code: str
    message: str
    count: int
    run_ids: list[UUID] = Field(description=f"The first {bulk.EXAMPLES} of them.")


class BulkResult(BaseModel):
    """What became of this page of runs. `next` is what `after` takes for the runs that are left, if any."""

    dry_run: bool
    done: int
    refused: int
    reasons: list[Refusal]
    next: UUID | None


class ErrorDetail(BaseModel):
    """One thing that is wrong with a request; `loc` leads to it."""

    model_config = ConfigDict(extra="allow")

    type: str
    loc: list[str | int]
    msg: str


class Error(BaseModel):
    """`code` is stable, `message` is for people."""

    code: str
    message: str
    details: list[ErrorDetail]


class ErrorBody(BaseModel):
    """Every answer that is no success."""

    error: Error
