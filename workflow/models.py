"""The schema: eight tables, their constraints, indexes and triggers. No logic.

Hot tables carry no foreign-key constraint: the run's id is part of every key, rows of a run are
written under the run's row lock and dropped together by `prune`, and a constraint would cost one
extra look-up for each row written. No index covers a column that every transition writes, so
status updates stay heap-only (HOT); migrations set the fill factors that make room for them.
"""

from __future__ import annotations

import pgtrigger
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.models import Q
from django.db.models.functions import Coalesce, Now

from workflow import ids, states
from workflow.texts import one_line

if apps.apps_ready and not apps.is_installed("workflow"):  # Django would speak of an app_label
    raise ImproperlyConfigured('Add "workflow" and "pgtrigger" to INSTALLED_APPS.')


def _choices(values: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(value, value) for value in values]


def _fsm(name: str, edges: dict[str, tuple[str, ...]], stale: str | None = None) -> pgtrigger.Trigger:
    """Refuses every status change that `workflow.states` does not list, whoever writes it, and what writes a row as it
    was once: `stale` is true of that.

    After the update, which is undone with the statement: a trigger before it would lock each row by itself, and that
    lock is written to the WAL, a twelfth of all that a run writes there.
    """
    illegal = states.illegal_edge(edges)
    refusal = (
        "RAISE EXCEPTION 'illegal status change of % %: % -> %', TG_TABLE_NAME, OLD.id, OLD.status, NEW.status "
        "USING ERRCODE = 'check_violation';"
    )
    if stale is not None:
        illegal = f"{stale} OR ({illegal})"
        refusal = (
            f"IF {stale} THEN RAISE EXCEPTION '% % has changed since it was read', TG_TABLE_NAME, OLD.id "
            f"USING ERRCODE = 'check_violation'; END IF; {refusal}"
        )
    return pgtrigger.Trigger(
        name=name,
        when=pgtrigger.After,
        operation=pgtrigger.UpdateOf("status"),
        condition=pgtrigger.Condition(illegal),
        func=refusal,
    )


def _reset_by_retry(name: str) -> pgtrigger.Trigger:
    """Refuses to set a node back that is over, unless it is a retry that does so (`workflow.sql.commands`).

    The edges are there for that alone: a row that was read before its node ended, and is saved afterwards, would take
    them.
    """
    over = ", ".join(f"'{status}'" for status in NODE_TERMINAL)
    return pgtrigger.Trigger(
        name=name,
        when=pgtrigger.After,
        operation=pgtrigger.UpdateOf("status"),
        condition=pgtrigger.Condition(f"NEW.status = 'pending' AND OLD.status IN ({over})"),
        func=(
            "IF current_setting('workflow.retrying', true) IS DISTINCT FROM pg_current_xact_id()::text THEN "
            "RAISE EXCEPTION '% % is over, and only a retry sets it back', TG_TABLE_NAME, OLD.id "
            "USING ERRCODE = 'check_violation'; END IF; RETURN NULL;"
        ),
    )


def _starts_pending(name: str) -> pgtrigger.Trigger:
    return pgtrigger.Trigger(
        name=name,
        when=pgtrigger.Before,
        operation=pgtrigger.Insert,
        condition=pgtrigger.Condition("NEW.status <> 'pending'"),
        func=(
            "RAISE EXCEPTION 'a new row of % starts as pending, not %', TG_TABLE_NAME, NEW.status "
            "USING ERRCODE = 'check_violation';"
        ),
    )


def _finished_iff(terminal: tuple[str, ...], name: str) -> models.CheckConstraint:
    return models.CheckConstraint(
        condition=Q(status__in=terminal, finished_at__isnull=False)
        | (~Q(status__in=terminal) & Q(finished_at__isnull=True)),
        name=name,
    )


NODE_TERMINAL = tuple(status for status in states.NODE_STATUSES if status not in states.NODE_LIVE)


class Run(models.Model):
    """One execution of a workflow. `seq` is the number of its latest history entry."""

    id = models.UUIDField(primary_key=True, default=ids.new_run_id, editable=False)
    workflow = models.CharField(max_length=80)
    version = models.IntegerField()
    fingerprint = models.CharField(max_length=64)
    status = models.CharField(max_length=12, choices=_choices(states.RUN_STATUSES), default=states.PENDING)
    queue = models.CharField(max_length=100, default="default")
    priority = models.IntegerField(default=0)
    input = models.JSONField(null=True)
    state = models.JSONField(default=dict)
    context = models.JSONField(null=True)
    error = models.JSONField(null=True)
    correlation_id = models.CharField(max_length=255, null=True)
    idempotency_key = models.CharField(max_length=255, null=True)
    seq = models.IntegerField(default=0, db_default=0)
    boundary = models.UUIDField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["workflow", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="workflow_run_idempotency",
            ),
            _finished_iff(states.RUN_TERMINAL, "workflow_run_finished"),
        ]
        indexes = [
            models.Index(fields=["workflow", "id"], name="workflow_run_workflow"),
            models.Index(fields=["status", "id"], name="workflow_run_status"),
            models.Index(
                fields=["correlation_id", "id"],
                condition=Q(correlation_id__isnull=False),
                name="workflow_run_correlation",
            ),
            models.Index(
                fields=["finished_at"], condition=Q(finished_at__isnull=False), name="workflow_run_finished"
            ),
            models.Index(fields=["id"], condition=Q(finished_at__isnull=True), name="workflow_run_live"),
        ]
        triggers = [
            # Its history numbers never go back: whoever writes an older one has read the row before it changed.
            _fsm("run_fsm", dict(states.RUN_EDGES), stale="NEW.seq < OLD.seq"),
            _starts_pending("run_starts_pending"),
        ]
        permissions = [("manage_run", "Can dispatch, retry, cancel and resume runs")]

    def __str__(self) -> str:
        return f"{self.workflow} {self.id}"


class Node(models.Model):
    """A pipeline, stage or action of a run. Ids ascend in tree order (see `workflow.ids`).

    `unit` is the ordinal of the nearest ancestor, or itself, that has a job of its own: whoever
    resolves a wait knows from it which job to wake, without the definition at hand.

    `beside` is the ordinal of the first member of the parallel group that it runs in, NULL for one that has its turn
    alone. The definition says so too, as long as it has the node: code that has dropped it goes by this.

    `completed_seq` is the number of the history entry that completed it: the order in which
    outputs were merged, and the reverse of the order of compensation. A node that has failed has the
    number of the entry that says so: of several that failed, the first is the one whose error counts.
    The `wait_*` columns are set while the node is parked for an event; `wait_outcome` is how its wait was resolved
    (`{"event": ...}`, `{"payload": ...}` or `{"timeout": true}`, this one with the `correlation` that it had), written
    once and read by the unit that goes on.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    run = models.ForeignKey(Run, models.CASCADE, db_constraint=False, related_name="nodes")
    path = models.TextField()
    unit = models.IntegerField()
    beside = models.IntegerField(null=True)
    kind = models.CharField(max_length=8, choices=_choices(states.NODE_KINDS))
    status = models.CharField(
        max_length=12,
        choices=_choices(states.NODE_STATUSES),
        default=states.PENDING,
        db_default=states.PENDING,
    )
    attempt = models.IntegerField(default=0, db_default=0)
    compensate_attempt = models.IntegerField(default=0, db_default=0)
    progress = models.FloatField(null=True)
    output = models.JSONField(null=True)
    error = models.JSONField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(null=True)
    completed_seq = models.IntegerField(null=True)
    wait_event = models.TextField(null=True)
    wait_correlation = models.TextField(null=True)
    wait_until = models.DateTimeField(null=True)
    wait_outcome = models.JSONField(null=True)
    parked_at = models.DateTimeField(null=True)
    parked_xact = models.BigIntegerField(null=True)
    parked_snapshot = models.TextField(null=True)
    event_id = models.UUIDField(null=True)

    class Meta:
        ordering = ["id"]
        constraints = [_finished_iff(NODE_TERMINAL, "workflow_node_finished")]
        indexes = [
            models.Index(
                fields=["wait_event", "wait_correlation"],
                condition=Q(wait_event__isnull=False),
                name="workflow_node_wait",
            ),
            models.Index(
                fields=["wait_until"], condition=Q(wait_until__isnull=False), name="workflow_node_wait_until"
            ),
        ]
        triggers = [
            _fsm("node_fsm", dict(states.NODE_EDGES)),
            _reset_by_retry("node_reset"),
            _starts_pending("node_starts_pending"),
        ]

    def __str__(self) -> str:
        return self.path


class Job(models.Model):
    """What is to be executed. `node_id` is the unit's node, the run itself (compensation), an event (delivery), or what
    waits for one, a node or a row of the ledger (check).

    Of a check it is the stage that waits, and `run` is None, or the ledger row on which a handler is suspended.
    A job is claimed while it has a `lease_token`; `attempt` counts its claims, less those given
    back. Leased rows change under their run's lock only, except for the heartbeat's `locked_at` and for those
    that their own worker gives back.
    `rung_at` is when a message was last sent for it, with a transport that sends messages (see `workflow.sql.rings`):
    in no index, so that this stays a heap-only update.
    """

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    kind = models.CharField(max_length=10, choices=_choices(states.JOB_KINDS), default=states.UNIT)
    run = models.ForeignKey(
        Run, models.CASCADE, db_constraint=False, db_index=False, null=True, related_name="jobs"
    )
    node_id = models.UUIDField()
    queue = models.CharField(max_length=100, default="default")
    priority = models.IntegerField(default=0)
    attempt = models.IntegerField(default=0, db_default=0)
    available_at = models.DateTimeField(db_default=Now())
    lease_token = models.UUIDField(null=True)
    worker_id = models.UUIDField(null=True)
    locked_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    boundary = models.UUIDField(null=True)
    rung_at = models.DateTimeField(null=True)
    last_error = models.TextField(default="", db_default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "node_id"], name="workflow_job_one_per_node"),
            models.CheckConstraint(
                condition=Q(
                    lease_token__isnull=True,
                    locked_at__isnull=True,
                    worker_id__isnull=True,
                    started_at__isnull=True,
                )
                | Q(
                    lease_token__isnull=False,
                    locked_at__isnull=False,
                    worker_id__isnull=False,
                    started_at__isnull=False,
                ),
                name="workflow_job_lease_whole",
            ),
        ]
        indexes = [
            models.Index(
                fields=["queue", "priority", "available_at"],
                condition=Q(lease_token__isnull=True),
                name="workflow_job_due",
            ),
            models.Index(
                fields=["worker_id"], condition=Q(lease_token__isnull=False), name="workflow_job_leased"
            ),
        ]
        triggers = [
            pgtrigger.Trigger(
                name="job_notify",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                # Also when nothing is due yet: an idle worker sleeps until the next job that it knows of.
                func="PERFORM pg_notify('workflow_job', ''); RETURN NULL;",
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class Step(models.Model):
    """The ledger of durable steps: one row for each key of an execution. Settled rows never change.

    `phase` is `run` or `compensate` for the steps of an action and of its compensation, and `undo` for the compensation
    of the step of that key. `completed_seq` is set where there is one: the run's history number at that time.

    `kind` is `run`, `sleep`, `poll` or `event`; `status` is `running` (a body is at work, under a lease of its own),
    `waiting`, `completed` or `failed`. A `sleep` stays `waiting` when it is over: its `deadline`, fixed when it began,
    tells, and one more write for each of them would tell nothing more. `attempt` counts the calls of a `run`; that of a
    wait is a mark above 1 where it was begun by a replay that had missed the wait before (see `workflow.ledger.stray`).
    """

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    run = models.ForeignKey(Run, models.CASCADE, db_constraint=False, db_index=False, related_name="steps")
    node_id = models.UUIDField()
    phase = models.CharField(max_length=10, default="run")
    key = models.TextField()
    kind = models.CharField(max_length=10)
    status = models.CharField(max_length=10)
    attempt = models.IntegerField(default=0, db_default=0)
    value = models.JSONField(null=True)
    error = models.JSONField(null=True)
    lease_token = models.UUIDField(null=True)
    lease_until = models.DateTimeField(null=True)
    next_poll_at = models.DateTimeField(null=True)
    deadline = models.DateTimeField(null=True)
    wait_event = models.TextField(null=True)
    wait_correlation = models.TextField(null=True)
    parked_at = models.DateTimeField(null=True)
    parked_xact = models.BigIntegerField(null=True)
    parked_snapshot = models.TextField(null=True)
    event_id = models.UUIDField(null=True)
    completed_seq = models.IntegerField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "node_id", "phase", "key"], name="workflow_step_key"),
        ]
        indexes = [
            models.Index(
                fields=["wait_event", "wait_correlation"],
                condition=Q(wait_event__isnull=False),
                name="workflow_step_wait",
            ),
        ]
        triggers = [
            pgtrigger.Trigger(
                name="step_settled",
                when=pgtrigger.Before,
                operation=pgtrigger.Update,
                condition=pgtrigger.Condition(
                    "OLD.status = 'completed' AND (NEW.status, NEW.value, NEW.key, NEW.node_id) "
                    "IS DISTINCT FROM (OLD.status, OLD.value, OLD.key, OLD.node_id)"
                ),
                func=(
                    "RAISE EXCEPTION 'ledger row % is settled and cannot be rewritten', OLD.key "
                    "USING ERRCODE = 'check_violation';"
                ),
            )
        ]

    def __str__(self) -> str:
        return one_line(self.key)


class Event(models.Model):
    """A domain event. `xact` is the transaction that published it: what a wait compares with its own snapshot."""

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    type = models.TextField()
    correlation = models.TextField(null=True)
    payload = models.JSONField(null=True)
    event_id = models.TextField(null=True)
    taken = models.BooleanField(default=False, db_default=False)
    at = models.DateTimeField(
        db_default=models.Func(function="clock_timestamp", output_field=models.DateTimeField())
    )
    xact = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["event_id"], condition=Q(event_id__isnull=False), name="workflow_event_once"
            ),
        ]
        indexes = [
            models.Index(
                fields=["correlation", "type", "at", "id"],
                condition=Q(correlation__isnull=False),
                name="workflow_event_correlation",
            ),
            models.Index(fields=["type", "at", "id"], name="workflow_event_type_at"),
            models.Index(fields=["type", "xact"], name="workflow_event_type"),
        ]

    def __str__(self) -> str:
        return f"{one_line(self.type)} {self.id}"


class RunEvent(models.Model):
    """The history of a run: `seq` counts up by one from 1."""

    pk = models.CompositePrimaryKey("run_id", "seq")
    run = models.ForeignKey(Run, models.CASCADE, db_constraint=False, db_index=False, related_name="history")
    seq = models.IntegerField()
    name = models.CharField(max_length=40)
    node = models.TextField(null=True)
    at = models.DateTimeField(db_default=Now())
    data = models.JSONField(null=True)

    def __str__(self) -> str:
        return f"{self.run_id} {self.seq} {self.name}"


class WorkerQuerySet(models.QuerySet["Worker"]):
    """Reads of workers."""

    def with_held(self) -> WorkerQuerySet:
        """Each with `held`, the jobs that it has in hand now: `units` is as old as its last heartbeat."""
        leased = Job.objects.filter(worker_id=models.OuterRef("pk"), lease_token__isnull=False).order_by()
        count = leased.values("worker_id").annotate(number=models.Count("pk")).values("number")
        found: WorkerQuerySet = self.annotate(held=Coalesce(models.Subquery(count), 0))
        return found


class Worker(models.Model):
    """A worker process that is, or was, alive. Nothing about a job's lease depends on this row."""

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    hostname = models.TextField()
    pid = models.IntegerField()
    queues = models.JSONField(default=list)
    serves = models.JSONField(default=list)
    concurrency = models.IntegerField()
    threads = models.IntegerField()
    units = models.IntegerField(default=0, db_default=0)
    abandoned_threads = models.IntegerField(default=0, db_default=0)
    started_at = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(db_default=Now())
    stopped_at = models.DateTimeField(null=True)

    objects = WorkerQuerySet.as_manager()

    class Meta:
        indexes = [models.Index(fields=["seen_at"], name="workflow_worker_seen")]

    def __str__(self) -> str:
        return f"{one_line(self.hostname)} {self.pid}"


class PausedQueue(models.Model):
    """A queue of which workers claim nothing until `until`, or while the row is there where that is NULL.

    Read by every claim: a handful of rows. One whose time is over counts for nothing, and a sweep drops it.
    """

    queue = models.CharField(max_length=100, primary_key=True)
    until = models.DateTimeField(null=True, blank=True)
    reason = models.TextField(blank=True, default="", db_default="")
    by = models.TextField(null=True, blank=True)
    paused_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=~Q(queue=states.EVENTS_QUEUE), name="workflow_pausedqueue_not_events"
            ),
        ]

    def __str__(self) -> str:
        return one_line(self.queue)
