"""Jobs, events and workers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.db.models.functions import Now
from django.utils.safestring import SafeString

from workflow import history, ids, states
from workflow.admin import shown
from workflow.admin.base import ReadOnlyAdmin, as_uuid
from workflow.admin.filters import AliveFilter, CreatedFilter, JobStateFilter, QueueFilter
from workflow.conf import conf
from workflow.models import Event, Job, Step, Worker, WorkerQuerySet
from workflow.redact import redact, redact_text
from workflow.store.workers import silent_after


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = (
        "job",
        "kind",
        "workflow",
        "of_run",
        "shown_queue",
        "priority",
        "attempt",
        "available_at",
        "leased",
    )
    list_select_related = ("run",)
    loaded = (
        *("id", "kind", "run_id", "node_id", "queue", "priority", "attempt", "available_at", "locked_at"),
        "run__workflow",
    )
    list_display_links = ("job",)
    list_filter = (JobStateFilter, QueueFilter)
    search_help_text = "A whole job id, run id or node id."
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *(
                        "id",
                        "kind",
                        "of_run",
                        "of_node",
                        "shown_queue",
                        "priority",
                        "attempt",
                        "available_at",
                    ),
                    *("worker", "started_at", "locked_at", "error"),
                )
            },
        ),
    )

    def wanted(self, term: str) -> Q:
        wanted = as_uuid(term)
        if wanted is None:
            return Q(pk__in=[])
        run_id = ids.run_of(wanted)
        found = Q(pk=wanted) | Q(run_id=wanted) | Q(run_id=run_id, node_id=wanted)
        # Checks have no run where a stage waits, and no node where a step of its handler does.
        last = wanted if ids.ordinal_of(wanted) else UUID(int=wanted.int | ids.MAX_ORDINAL)
        found |= Q(run_id__isnull=True, node_id__range=(wanted, last), kind=states.CHECK)
        steps = Step.objects.using(conf.DATABASE).filter(run_id=run_id, node_id=wanted)
        return found | Q(run_id=run_id, node_id__in=steps.values("pk"), kind=states.CHECK)

    def run_of(self, row: Job) -> UUID | None:
        """A job that checks a wait stage has no run of its own, but that stage's id tells it."""
        if row.run_id is None and row.kind == states.CHECK:
            return ids.run_of(row.node_id)
        return row.run_id

    def mask(self, row: Job) -> None:
        run_id = self.run_of(row)
        secrets = frozenset() if run_id is None else history.secrets_of_run(run_id)
        row.last_error = redact_text(row.last_error, secrets=secrets)

    @admin.display(description="job")
    def job(self, job: Job) -> str:
        return str(job.pk)

    @admin.display(description="workflow")
    def workflow(self, job: Job) -> str:
        return "-" if job.run_id is None or job.run is None else shown.text(job.run.workflow)

    @admin.display(description="run")
    def of_run(self, job: Job) -> SafeString | str:
        return shown.change_link("run", self.run_of(job))

    @admin.display(description="for")
    def of_node(self, job: Job) -> SafeString | str:
        if job.kind == states.DELIVER:
            return shown.change_link("event", job.node_id)
        if job.run_id == job.node_id:
            return "the run"
        if job.kind == states.CHECK and job.run_id is not None:
            step = Step.objects.using(conf.DATABASE).filter(pk=job.node_id, run_id=job.run_id).first()
            return shown.change_link("node", None if step is None else step.node_id)
        return shown.change_link("node", job.node_id)

    @admin.display(description="queue")
    def shown_queue(self, job: Job) -> str:
        return shown.text(job.queue)

    @admin.display(description="leased", boolean=True)
    def leased(self, job: Job) -> bool:
        return job.locked_at is not None

    @admin.display(description="worker")
    def worker(self, job: Job) -> SafeString | str:
        return shown.change_link("worker", job.worker_id)

    @admin.display(description="last error")
    def error(self, job: Job) -> SafeString | str:
        return shown.lines(job.last_error)


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    list_display = ("shown_type", "shown_correlation", "at", "taken")
    loaded = ("id", "type", "correlation", "at", "taken")
    list_display_links = ("shown_type",)
    list_filter = (CreatedFilter,)
    search_help_text = "A whole type, correlation or event id."
    fieldsets = (
        (None, {"fields": ("id", "shown_type", "shown_correlation", "event", "at", "taken")}),
        ("Data", {"fields": ("shown_payload",)}),
    )

    def wanted(self, term: str) -> Q:
        found = Q(type=term) | Q(correlation=term) | Q(event_id=term)
        row_id = as_uuid(term)
        return found if row_id is None else found | Q(pk=row_id)

    def mask(self, row: Event) -> None:
        row.payload = redact(row.payload)

    @admin.display(description="type")
    def shown_type(self, event: Event) -> str:
        return shown.text(event.type)

    @admin.display(description="correlation")
    def shown_correlation(self, event: Event) -> str:
        return shown.text(event.correlation)

    @admin.display(description="event id")
    def event(self, event: Event) -> str:
        return shown.text(event.event_id)

    @admin.display(description="payload")
    def shown_payload(self, event: Event) -> SafeString | str:
        return shown.document(event.payload)


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = ("name", "alive", "load", "abandoned_threads", "queues_served", "started_at", "seen_at")
    loaded = (
        *("id", "hostname", "pid", "concurrency", "abandoned_threads", "queues"),
        *("started_at", "seen_at", "stopped_at"),
    )
    list_display_links = ("name",)
    list_filter = (AliveFilter,)
    search_help_text = "A whole host name or worker id."
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *("id", "name", "alive", "load", "threads", "abandoned_threads"),
                    *("started_at", "seen_at", "stopped_at"),
                )
            },
        ),
        ("Serves", {"fields": ("queues_served", "workflows_served")}),
    )

    def rows(self) -> QuerySet[Any]:
        """Alive is who has not stopped and keeps up its heartbeats, by the database's clock."""
        fresh = Q(stopped_at__isnull=True, seen_at__gt=Now() - timedelta(seconds=silent_after()))
        workers: WorkerQuerySet = super().rows()  # type: ignore[assignment]  # the manager's own
        return workers.with_held().annotate(alive=ExpressionWrapper(fresh, output_field=BooleanField()))

    def wanted(self, term: str) -> Q:
        worker_id = as_uuid(term)
        return Q(hostname=term) if worker_id is None else Q(pk=worker_id)

    def mask(self, row: Worker) -> None:
        """Workers hold no data of runs."""

    @admin.display(description="worker")
    def name(self, worker: Worker) -> str:
        return f"{shown.text(worker.hostname)}:{worker.pid}"

    @admin.display(description="alive", boolean=True)
    def alive(self, worker: Any) -> bool:
        return bool(worker.alive)

    @admin.display(description="units in hand")
    def load(self, worker: Any) -> str:
        return f"{worker.held} of {worker.concurrency}"

    @admin.display(description="queues")
    def queues_served(self, worker: Worker) -> str:
        return shown.text(", ".join(str(queue) for queue in worker.queues or ()) or "all", 200)

    @admin.display(description="workflows")
    def workflows_served(self, worker: Worker) -> SafeString | str:
        return shown.document(worker.serves)
