"""The table of addresses: what the views check, what ``openapi.json`` says and what the reference lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pydantic import BaseModel

from workflow import errors
from workflow.api import endpoints, refusals, schemas
from workflow.api.endpoints import Endpoint
from workflow.results import PausedQueueInfo, RunPage, RunStatus

COMMON: Final = (
    refusals.TOO_LARGE,
    refusals.UNAUTHENTICATED,
    refusals.FORBIDDEN,
    refusals.METHOD_NOT_ALLOWED,
    refusals.INVALID,
)
"""Codes that any address can answer with."""
_RUN: Final = (errors.RunNotFound.code,)
_STEER: Final = (*_RUN, errors.RunConflict.code)


@dataclass(frozen=True, slots=True)
class Operation:
    """One address with its one method. ``answers`` has a model for each status; ``refusals`` are codes of its own."""

    name: str
    method: Literal["GET", "POST"]
    route: str
    summary: str
    endpoint: Endpoint
    answers: Mapping[int, type[BaseModel]]
    query: type[schemas.Query] = schemas.NoQuery
    body: type[schemas.Body] = schemas.NoBody
    refusals: tuple[str, ...] = ()
    tagged: bool = field(default=False)
    """Whether the answer has an ETag."""
    one_by_one: bool = field(default=False)
    """Whether it commits run by run, even where the project wraps requests in transactions."""

    @property
    def writes(self) -> bool:
        return self.method == "POST"

    @property
    def codes(self) -> tuple[str, ...]:
        """Every code that it can answer with."""
        bodily = (refusals.MALFORMED, refusals.UNREADABLE, refusals.CSRF_FAILED) if self.writes else ()
        return (*COMMON, *bodily, *self.refusals)


OPERATIONS: Final = (
    Operation(
        "runs",
        "GET",
        "",
        "Runs, newest first",
        endpoints.list_runs,
        {200: RunPage},
        query=schemas.ListQuery,
    ),
    Operation(
        "dispatch",
        "POST",
        "dispatch/",
        "Dispatch a workflow by its name",
        endpoints.dispatch,
        {201: schemas.Dispatched, 200: schemas.Dispatched},
        body=schemas.DispatchBody,
        refusals=(
            errors.WorkflowUnknown.code,
            errors.InputInvalid.code,
            errors.PayloadInvalid.code,
            errors.RunConflict.code,
        ),
    ),
    Operation(
        "retry-many",
        "POST",
        "retry/",
        "Retry every run that a filter matches",
        endpoints.retry_many,
        {200: schemas.BulkResult},
        body=schemas.BulkRetryBody,
        one_by_one=True,
    ),
    Operation(
        "cancel-many",
        "POST",
        "cancel/",
        "Cancel every run that a filter matches",
        endpoints.cancel_many,
        {200: schemas.BulkResult},
        body=schemas.BulkCancelBody,
        one_by_one=True,
    ),
    Operation(
        "pauses",
        "GET",
        "pauses/",
        "Queues that are paused",
        endpoints.list_pauses,
        {200: schemas.PausePage},
    ),
    Operation(
        "pause",
        "POST",
        "pause/",
        "Pause a queue",
        endpoints.pause,
        {200: PausedQueueInfo},
        body=schemas.PauseBody,
    ),
    Operation(
        "unpause",
        "POST",
        "unpause/",
        "Resume a paused queue",
        endpoints.unpause,
        {200: schemas.Unpaused},
        body=schemas.UnpauseBody,
    ),
    Operation(
        "run",
        "GET",
        "<str:run_id>/",
        "A run and its nodes in tree order",
        endpoints.show_run,
        {200: RunStatus},
        refusals=_RUN,
        tagged=True,
    ),
    Operation(
        "history",
        "GET",
        "<str:run_id>/history/",
        "What happened to a run",
        endpoints.show_history,
        {200: schemas.HistoryPage},
        query=schemas.HistoryQuery,
        refusals=_RUN,
    ),
    Operation(
        "retry",
        "POST",
        "<str:run_id>/retry/",
        "Let a failed run go on",
        endpoints.retry,
        {200: RunStatus},
        body=schemas.RetryBody,
        refusals=(
            *_STEER,
            errors.NodeUnknown.code,
            errors.WorkflowUnknown.code,
            errors.VersionConflict.code,
        ),
    ),
    Operation(
        "cancel",
        "POST",
        "<str:run_id>/cancel/",
        "Cancel a pending, running or waiting run",
        endpoints.cancel,
        {200: RunStatus},
        body=schemas.CancelBody,
        refusals=_STEER,
    ),
    Operation(
        "resume",
        "POST",
        "<str:run_id>/resume/",
        "Satisfy what a run is parked on",
        endpoints.resume,
        {200: RunStatus},
        body=schemas.ResumeBody,
        refusals=(*_STEER, errors.PayloadInvalid.code),
    ),
)
"""In the order in which addresses are tried: a run's id would match the fixed ones as well."""
