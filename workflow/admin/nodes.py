"""Nodes: those of one run, or those that wait for an event; each with its ledger."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.safestring import SafeString

from workflow import history, ids
from workflow.admin import shown
from workflow.admin.base import ReadOnlyAdmin, as_uuid
from workflow.admin.filters import CreatedFilter, NodeKindFilter, NodeStatusFilter, ParkedFilter
from workflow.conf import conf
from workflow.models import Node, Step
from workflow.redact import redact, redact_error, redact_text

MOST_STEPS: Final = 200


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display = (
        "shown_path",
        "kind",
        "shown_status",
        "attempt",
        "percent",
        "started_at",
        "duration",
        "of_run",
    )
    loaded = ("id", "run_id", "path", "kind", "status", "attempt", "progress", "started_at", "finished_at")
    list_display_links = ("shown_path",)
    list_filter = (NodeStatusFilter, NodeKindFilter, ParkedFilter, CreatedFilter)
    search_help_text = "A whole run id or node id, or the type of an event that nodes wait for."
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *("id", "of_run", "shown_path", "kind", "shown_status", "attempt", "compensate_attempt"),
                    *("percent", "started_at", "finished_at", "duration", "due_at"),
                )
            },
        ),
        ("Wait", {"fields": ("event", "correlation", "wait_until", "parked_at", "outcome")}),
        ("Error", {"fields": ("shown_error", "traceback")}),
        ("Data", {"fields": ("shown_output",)}),
    )

    def wanted(self, term: str) -> Q:
        node_id = as_uuid(term)
        if node_id is None:
            return Q(wait_event=term)
        if ids.ordinal_of(node_id):
            return Q(pk=node_id)
        # By the primary key, which gives the order as well: along it, looking for the run would begin with the oldest.
        return Q(pk__gt=node_id, pk__lte=UUID(int=node_id.int | ids.MAX_ORDINAL))

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Within a run in the order of its tree, else the newest first."""
        run_id = as_uuid(request.GET.get("q", "").strip())
        within = run_id is not None and ids.ordinal_of(run_id) == 0
        return ("pk",) if within else ("-pk",)

    def has_section(self, title: Any, obj: Node) -> bool:
        if title == "Wait":
            return obj.parked_at is not None or obj.wait_outcome is not None
        return super().has_section(title, obj)

    def mask(self, row: Node) -> None:
        secrets = history.secrets_of_run(row.run_id)
        row.output = redact(row.output, secrets=secrets)
        row.wait_outcome = redact(row.wait_outcome, secrets=secrets)
        row.error = redact_error(row.error, secrets=secrets)
        if row.wait_correlation is not None:  # it may be the value of a secret key
            row.wait_correlation = redact_text(row.wait_correlation, secrets=secrets)

    def more(self, request: HttpRequest, obj: Node) -> dict[str, Any]:
        secrets = history.secrets_of_run(obj.run_id)
        steps = Step.objects.using(conf.DATABASE).filter(run_id=obj.run_id, node_id=obj.pk)
        facts = ("phase", "key", "kind", "status", "attempt", "value", "error")
        columns = (*facts, "created_at", "lease_until", "finished_at")
        return {
            "steps": [
                {
                    **step,
                    "key": shown.text(redact_text(step["key"], secrets=secrets)),
                    "value": shown.inline(redact({step["key"]: step["value"]}, secrets=secrets)[step["key"]]),
                    "error": shown.inline(redact_error(step["error"], secrets=secrets)),
                }
                for step in steps.order_by("phase", "id").values(*columns)[:MOST_STEPS]
            ]
        }

    @admin.display(description="path")
    def shown_path(self, node: Node) -> str:
        return shown.text(node.path)

    @admin.display(description="run")
    def of_run(self, node: Node) -> SafeString | str:
        return shown.change_link("run", node.run_id)

    @admin.display(description="status")
    def shown_status(self, node: Node) -> SafeString:
        return shown.status(node.status)

    @admin.display(description="progress")
    def percent(self, node: Node) -> str:
        return "-" if node.progress is None else f"{node.progress:g} %"

    @admin.display(description="took")
    def duration(self, node: Node) -> str:
        return shown.took(node.started_at, node.finished_at)

    @admin.display(description="event")
    def event(self, node: Node) -> str:
        return shown.text(node.wait_event)

    @admin.display(description="correlation")
    def correlation(self, node: Node) -> str:
        return shown.text(node.wait_correlation)

    @admin.display(description="outcome")
    def outcome(self, node: Node) -> SafeString | str:
        return shown.document(node.wait_outcome)

    @admin.display(description="error")
    def shown_error(self, node: Node) -> SafeString | str:
        return shown.error(node.error)

    @admin.display(description="traceback")
    def traceback(self, node: Node) -> SafeString | str:
        return shown.traceback(node.error)

    @admin.display(description="output")
    def shown_output(self, node: Node) -> SafeString | str:
        return shown.document(node.output)
