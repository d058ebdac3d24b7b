"""Runs: found by id, correlation id or idempotency key; shown with their tree and history; steered in bulk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.db.models.fields.json import KeyTextTransform
from django.http import HttpRequest
from django.utils.safestring import SafeString

from workflow import bulk, history, terminal, viewing, workflows
from workflow.admin import shown
from workflow.admin.base import ReadOnlyAdmin, as_uuid
from workflow.admin.filters import CreatedFilter, RunStatusFilter, WorkflowFilter
from workflow.admin.paging import values
from workflow.conf import conf
from workflow.models import Job, Node, Run
from workflow.overview import pause_of_run
from workflow.redact import redact, redact_error, redact_text
from workflow.sql import lists as sql

MOST_NODES: Final = 1_000
"""Rows of the tree on a run's page."""
LATEST: Final = 100
"""History entries on a run's page."""
MANAGE: Final = "workflow.manage_run"


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = (
        "run",
        "shown_workflow",
        "shown_status",
        "correlation",
        "created_at",
        "duration",
        "error_code",
    )
    loaded = ("id", "workflow", "status", "correlation_id", "created_at", "started_at", "finished_at")
    list_display_links = ("run",)
    list_filter = (RunStatusFilter, WorkflowFilter, CreatedFilter)
    search_help_text = "A whole run id, correlation id or idempotency key."
    actions = ("retry", "cancel", "resume")
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *("id", "shown_workflow", "version", "shown_status", "correlation", "key"),
                    *("shown_queue", "priority", "created_at", "started_at", "finished_at", "duration"),
                )
            },
        ),
        ("Error", {"fields": ("shown_error", "traceback")}),
        ("Data", {"fields": ("shown_input", "shown_state", "shown_context")}),
    )

    # --- finding --------------------------------------------------------------------------------

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(code=KeyTextTransform("code", "error"))
        return rows

    def wanted(self, term: str) -> Q:
        # The index of keys begins with the workflow.
        key = Q(workflow__in=values(sql.RUN_WORKFLOWS), idempotency_key=term)
        found = Q(correlation_id=term) | key
        run_id = as_uuid(term)
        return found if run_id is None else found | Q(pk=run_id)

    # --- showing --------------------------------------------------------------------------------

    def run_of(self, row: Run) -> UUID:
        return row.pk

    def mask(self, row: Run) -> None:
        secrets = history.secrets_of_run(row.pk)
        row.input = redact(row.input, secrets=secrets)
        row.state = redact(row.state, secrets=secrets)
        row.context = redact(row.context, secrets=secrets)
        row.error = redact_error(row.error, secrets=secrets)

    def more(self, request: HttpRequest, obj: Run) -> dict[str, Any]:
        secrets = history.secrets_of_run(obj.pk)
        nodes = _nodes(obj.pk)
        entries = history.latest(obj.pk, LATEST, secrets)
        return {
            "live_page": shown.live_page(obj.pk),
            "nodes": [_row(node) for node in nodes[:MOST_NODES]],
            "more_nodes": len(nodes) > MOST_NODES,
            "jobs": [_job(job, secrets) for job in _jobs(obj.pk)],
            "history": [
                {
                    "seq": entry.seq,
                    "at": entry.at,
                    "name": shown.text(entry.name),
                    "node": "" if entry.node is None else shown.text(entry.node),
                    "data": shown.inline(_in_short(entry.data)),
                }
                for entry in entries
            ],
            "more_history": bool(entries) and entries[-1].seq > 1,
        }

    @admin.display(description="run")
    def run(self, run: Run) -> str:
        return str(run.pk)

    @admin.display(description="workflow")
    def shown_workflow(self, run: Run) -> str:
        return shown.text(run.workflow)

    @admin.display(description="queue")
    def shown_queue(self, run: Run) -> str:
        pause = pause_of_run(run.pk)
        return shown.text(run.queue) if pause is None else terminal.pause_line(pause)

    @admin.display(description="status")
    def shown_status(self, run: Run) -> SafeString:
        return shown.status(run.status)

    @admin.display(description="correlation id")
    def correlation(self, run: Run) -> str:
        return shown.text(run.correlation_id)

    @admin.display(description="idempotency key")
    def key(self, run: Run) -> str:
        return shown.text(run.idempotency_key)

    @admin.display(description="took")
    def duration(self, run: Run) -> str:
        return shown.took(run.started_at, run.finished_at)

    @admin.display(description="error")
    def error_code(self, run: Any) -> str:
        return shown.text(run.code)

    @admin.display(description="error")
    def shown_error(self, run: Run) -> SafeString | str:
        return shown.error(run.error)

    @admin.display(description="traceback")
    def traceback(self, run: Run) -> SafeString | str:
        return shown.traceback(run.error)

    @admin.display(description="input")
    def shown_input(self, run: Run) -> SafeString | str:
        return shown.document(run.input)

    @admin.display(description="state")
    def shown_state(self, run: Run) -> SafeString | str:
        return shown.document(run.state)

    @admin.display(description="context")
    def shown_context(self, run: Run) -> SafeString | str:
        return shown.document(run.context)

    # --- steering -------------------------------------------------------------------------------

    def has_manage_permission(self, request: HttpRequest) -> bool:
        """Who may use the actions."""
        return request.user.has_perm(MANAGE)

    @admin.action(description="Retry the selected runs from their failure", permissions=["manage"])
    def retry(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        by = viewing.who(request)
        self._steer(request, queryset, "retried", lambda run_id: workflows.retry(run_id, by=by))

    @admin.action(description="Cancel the selected runs", permissions=["manage"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        by = viewing.who(request)
        self._steer(request, queryset, "cancelled", lambda run_id: workflows.cancel(run_id, by=by))

    @admin.action(description="Resume the selected runs without a payload", permissions=["manage"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        by = viewing.who(request)
        self._steer(request, queryset, "resumed", lambda run_id: workflows.resume(run_id, by=by))

    def _steer(
        self, request: HttpRequest, queryset: QuerySet[Run], done: str, command: Callable[[UUID], object]
    ) -> None:
        """Does it for each run and says how many were done, and how many were refused for which reason."""
        chosen = list(queryset.values_list("pk", flat=True)[: bulk.MOST + 1])
        taken = chosen[: bulk.MOST]
        outcome = bulk.each(taken, viewing.only(viewing.viewable(request.user, taken), command))
        if outcome.done:
            self.message_user(request, f"{_runs(outcome.done)} {done}.", messages.SUCCESS)
        for reason in outcome.reasons:
            examples = ", ".join(str(run_id) for run_id in reason.run_ids[:3])
            more = ", ..." if reason.count > 3 else ""
            told = f"{_runs(reason.count)} refused: {reason.message} ({examples}{more})."
            self.message_user(request, told, messages.WARNING)
        if len(chosen) > bulk.MOST:
            left = f"That was the first {bulk.MOST:,}; more runs match. Do it again for the next ones."
            self.message_user(request, left, messages.WARNING)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def _in_short(data: dict[str, Any] | None) -> dict[str, Any] | None:
    """A history entry's data without the traceback, which the run and its node show in full."""
    if data is None or not isinstance(data.get("error"), dict):
        return data
    return {**data, "error": {key: part for key, part in data["error"].items() if key != "traceback"}}


def _nodes(run_id: UUID) -> list[Any]:
    """The tree in its order, without what the nodes put out."""
    nodes = Node.objects.using(conf.DATABASE).filter(run_id=run_id).order_by("id")
    columns = ("id", "path", "kind", "status", "attempt", "progress", "started_at", "finished_at")
    return list(
        nodes.annotate(code=KeyTextTransform("code", "error")).values(
            *columns, "wait_event", "wait_until", "due_at", "code"
        )[: MOST_NODES + 1]
    )


def _row(node: dict[str, Any]) -> dict[str, Any]:
    note = ""
    if node["wait_event"] is not None:
        note = f"waits for {shown.text(node['wait_event'])}"
    elif node["code"]:
        note = shown.text(node["code"])
    return {
        **node,
        "depth": node["path"].count("."),
        "link": shown.change_link("node", node["id"], shown.text(node["path"].rpartition(".")[2])),
        "percent": None if node["progress"] is None else f"{node['progress']:g}",
        "started": terminal.moment(node["started_at"]),
        "shown_status": shown.status(node["status"]),
        "took": shown.took(node["started_at"], node["finished_at"]),
        "note": note,
    }


def _jobs(run_id: UUID) -> list[Any]:
    jobs = Job.objects.using(conf.DATABASE).filter(run_id=run_id).order_by("node_id")
    columns = ("id", "kind", "queue", "attempt", "available_at", "locked_at", "last_error")
    return list(jobs.values(*columns)[:LATEST])


def _job(job: dict[str, Any], secrets: frozenset[str]) -> dict[str, Any]:
    return {
        **job,
        "queue": shown.text(job["queue"]),
        "link": shown.change_link("job", job["id"], job["kind"]),
        "last_error": shown.text(redact_text(job["last_error"], secrets=secrets)),
    }
