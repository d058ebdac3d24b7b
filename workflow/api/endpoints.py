"""What each address does. An endpoint gets a checked request and returns an answer; see `workflow.api.routes`."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.utils.cache import get_conditional_response

from workflow import bulk, history, viewing, workflows
from workflow.api import refusals, schemas, wire
from workflow.conf import conf
from workflow.errors import RunNotFound
from workflow.manager import arguments
from workflow.models import Run
from workflow.redact import patterns_of, redact_run, redact_status


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was let through. ``run`` is what the address says, ``query`` and ``body`` fit their models."""

    request: HttpRequest
    run: str
    query: Any
    body: Any

    @property
    def by(self) -> str | None:
        return viewing.who(self.request)

    @property
    def user(self) -> Any:
        """None behind an ``authorize`` of its own where nothing sets ``request.user``."""
        return getattr(self.request, "user", None)


Endpoint = Callable[[Call], HttpResponse]


# --- looking ------------------------------------------------------------------------------------


def list_runs(call: Call) -> HttpResponse:
    query: schemas.ListQuery = call.query
    page = workflows.list(
        workflow=query.workflow,
        status=query.status,
        correlation_id=query.correlation,
        limit=query.limit,
        after=query.after,
    )
    seen = viewing.viewable(call.user, [item.id for item in page.items])
    items = [redact_run(item) for item in page.items if item.id in seen]
    return wire.answer(page.model_copy(update={"items": items}))


def show_run(call: Call) -> HttpResponse:
    """The tag is looked up first: what is read afterwards can only be newer than it says."""
    run_id = arguments.run_id(call.run)
    tag = _tag(run_id)
    response = get_conditional_response(call.request, etag=tag)
    if not isinstance(response, HttpResponseNotModified):
        response = _run(run_id)
    response["ETag"] = tag
    response["Cache-Control"] = "private, no-cache"
    return response


def show_history(call: Call) -> HttpResponse:
    query: schemas.HistoryQuery = call.query
    run_id = arguments.run_id(call.run)
    entries, following = history.page(run_id, query.after, query.limit)
    items = [_entry(run_id, entry) for entry in entries]
    return wire.answer(schemas.HistoryPage(items=items, next=following))


# --- steering -----------------------------------------------------------------------------------


def dispatch(call: Call) -> HttpResponse:
    body: schemas.DispatchBody = call.body
    handle = workflows.dispatch(
        body.workflow,
        body.input,
        context=body.context,
        correlation_id=body.correlation_id,
        idempotency_key=body.idempotency_key,
        queue=body.queue,
        priority=body.priority,
        delay=body.delay,
        by=call.by,
    )
    dispatched = schemas.Dispatched(run_id=handle.run_id, created=handle.created)
    response = wire.answer(dispatched, 201 if handle.created else 200)
    response["Location"] = f"{call.request.path.removesuffix('dispatch/')}{handle.run_id}/"
    return response


def retry(call: Call) -> HttpResponse:
    run_id = arguments.run_id(call.run)
    workflows.retry(run_id, from_node=call.body.from_node, by=call.by)
    return _run(run_id)


def cancel(call: Call) -> HttpResponse:
    run_id = arguments.run_id(call.run)
    workflows.cancel(run_id, call.body.reason, compensate=call.body.compensate, by=call.by)
    return _run(run_id)


def resume(call: Call) -> HttpResponse:
    run_id = arguments.run_id(call.run)
    workflows.resume(run_id, call.body.payload, by=call.by)
    return _run(run_id)


def retry_many(call: Call) -> HttpResponse:
    by = call.by
    return _many(call, lambda run_id: workflows.retry(run_id, by=by))


def cancel_many(call: Call) -> HttpResponse:
    body: schemas.BulkCancelBody = call.body
    by = call.by
    return _many(
        call, lambda run_id: workflows.cancel(run_id, body.reason, compensate=body.compensate, by=by)
    )


# --- queues -------------------------------------------------------------------------------------


def list_pauses(call: Call) -> HttpResponse:
    return wire.answer(schemas.PausePage(items=workflows.paused_queues()))


def pause(call: Call) -> HttpResponse:
    body: schemas.PauseBody = call.body
    end = body.seconds if body.until is None else body.until
    try:
        paused = workflows.pause_queue(body.queue, until=end, reason=body.reason, by=call.by)
    except ValueError as error:  # by the database's clock it has passed
        raise refusals.wrong(str(error)) from error
    return wire.answer(paused)


def unpause(call: Call) -> HttpResponse:
    queue: str = call.body.queue
    return wire.answer(schemas.Unpaused(queue=queue, resumed=workflows.resume_queue(queue, by=call.by)))


# --- inside -------------------------------------------------------------------------------------


def _run(run_id: UUID) -> HttpResponse:
    return wire.answer(redact_status(workflows.status(run_id)))


def _tag(run_id: UUID) -> str:
    """Changes with everything that a RunStatus shows: each write to a run counts ``seq`` up or sets ``updated_at``."""
    run = (
        Run.objects.using(conf.DATABASE)
        .filter(pk=run_id)
        .values_list("workflow", "seq", "updated_at")
        .first()
    )
    if run is None:
        raise RunNotFound(f"no run has the id {run_id}")
    workflow, seq, updated_at = run
    masked = zlib.crc32(repr(patterns_of(workflow)).encode())
    return f'W/"{seq}.{updated_at.timestamp():.6f}.{masked:x}"'


def _entry(run_id: UUID, entry: history.Entry) -> schemas.HistoryEntry:
    """As it was pushed: the data first, so that none of it can stand for one of the entry's own fields."""
    own = {"run_id": run_id, "seq": entry.seq, "name": entry.name, "node": entry.node, "at": entry.at}
    return schemas.HistoryEntry.model_validate({**(entry.data or {}), **own, "type": "workflow.event"})


def _many(call: Call, command: bulk.Command) -> HttpResponse:
    body: schemas.BulkBody = call.body
    run_ids, following = _matching(body)
    seen = viewing.viewable(call.user, run_ids)
    if body.filter.ids is None:  # of those that were not named nothing is told
        run_ids = [run_id for run_id in run_ids if run_id in seen]
    outcome = bulk.each(run_ids, viewing.only(seen, command), dry_run=body.dry_run)
    reasons = [
        schemas.Refusal(code=why.code, message=why.message, count=why.count, run_ids=why.run_ids)
        for why in outcome.reasons
    ]
    return wire.answer(
        schemas.BulkResult(
            dry_run=body.dry_run, done=outcome.done, refused=outcome.refused, reasons=reasons, next=following
        )
    )


def _matching(body: schemas.BulkBody) -> tuple[list[UUID], UUID | None]:
    """A page of ids, and where the next one begins. Ids that were named are taken as they are, unknown ones too."""
    chosen = body.filter
    if chosen.ids is not None:
        ordered = sorted(set(chosen.ids), reverse=True)
        found = [run_id for run_id in ordered if body.after is None or run_id < body.after]
    else:
        runs = Run.objects.using(conf.DATABASE).order_by("-id")
        conditions = {
            "workflow": chosen.workflow,
            "status": chosen.status,
            "correlation_id": chosen.correlation,
            "id__lt": body.after,
        }
        given = {name: value for name, value in conditions.items() if value is not None}
        found = list(runs.filter(**given).values_list("pk", flat=True)[: body.limit + 1])
    page = found[: body.limit]
    return page, page[-1] if len(found) > body.limit else None
