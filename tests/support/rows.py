"""Brings runs into the states that tests start from, row by row along legal edges, without an engine.

What the engine would leave behind is left behind here too: history with its numbers, completion numbers
on nodes, no jobs for what is parked or over. `check_whole` tells whether a command kept all that in order.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.contrib.postgres.functions import TransactionNow
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from workflow import ids, states
from workflow.errors import FailureCode
from workflow.models import Job, Node, Run, RunEvent

LIVE = states.NODE_LIVE


def node(run_id: uuid.UUID, path: str) -> Node:
    return Node.objects.get(run_id=run_id, path=path)


def statuses(run_id: uuid.UUID) -> dict[str, str]:
    """The run's status under "" and its nodes' under their paths."""
    found = {"": Run.objects.get(pk=run_id).status}
    found.update(Node.objects.filter(run_id=run_id).values_list("path", "status"))
    return found


def history(run_id: uuid.UUID) -> list[tuple[int, str, str | None]]:
    return list(RunEvent.objects.filter(run_id=run_id).order_by("seq").values_list("seq", "name", "node"))


def names(run_id: uuid.UUID) -> list[str]:
    return [name for _, name, _ in history(run_id)]


def last_event(run_id: uuid.UUID) -> RunEvent:
    return RunEvent.objects.filter(run_id=run_id).order_by("-seq")[0]


def note(run_id: uuid.UUID, name: str, path: str | None = None, data: Any = None) -> int:
    """Appends a history entry; its number."""
    Run.objects.filter(pk=run_id).update(seq=F("seq") + 1)
    seq = Run.objects.get(pk=run_id).seq
    RunEvent.objects.create(run_id=run_id, seq=seq, name=name, node=path, data=data)
    return seq


def start(run_id: uuid.UUID) -> None:
    """A worker has claimed the first pipeline and begun it."""
    Run.objects.filter(pk=run_id).update(status=states.RUNNING, started_at=Now())
    note(run_id, states.EVENT_STARTED)
    first = Node.objects.filter(run_id=run_id).earliest("id")
    begin(run_id, first.path)
    lease(run_id)


def lease(run_id: uuid.UUID) -> uuid.UUID:
    """All jobs of the run are in a worker's hands; the token."""
    token = uuid.uuid4()
    Job.objects.filter(run_id=run_id).update(
        lease_token=token, worker_id=uuid.uuid4(), locked_at=Now(), started_at=Now(), attempt=F("attempt") + 1
    )
    return token


def begin(run_id: uuid.UUID, path: str) -> None:
    """The node and its ancestors are running."""
    parts = path.split(".")
    for depth in range(1, len(parts) + 1):
        Node.objects.filter(run_id=run_id, path=".".join(parts[:depth]), status=states.PENDING).update(
            status=states.RUNNING, started_at=Now(), attempt=int(depth == 3)
        )


def complete(run_id: uuid.UUID, path: str, output: Any = None) -> None:
    """An action (or stage, or pipeline) has completed, its output is merged as the engine merges it."""
    begin(run_id, path)
    is_action = path.count(".") == 2
    seq = note(run_id, states.EVENT_ACTION_COMPLETED if is_action else states.EVENT_STAGE_COMPLETED, path)
    Node.objects.filter(run_id=run_id, path=path).update(
        status=states.COMPLETED, finished_at=Now(), output=output, completed_seq=seq
    )
    if output is not None:
        key = path.rsplit(".", 1)[1].removesuffix("#run")
        run = Run.objects.get(pk=run_id)
        patch = output if isinstance(output, dict) else {key: output}
        Run.objects.filter(pk=run_id).update(state={**run.state, **patch})


def skip(run_id: uuid.UUID, paths: Iterable[str]) -> None:
    Node.objects.filter(run_id=run_id, path__in=list(paths)).update(status=states.SKIPPED, finished_at=Now())


def fault(path: str, code: str = FailureCode.ACTION_FAILED) -> dict[str, Any]:
    return {"code": code, "message": "no", "node": path, "type": "RuntimeError", "traceback": "..."}


def fail(run_id: uuid.UUID, path: str) -> None:
    """The action has failed for good, and with `on_failure="halt"` so have its ancestors and the run."""
    begin(run_id, path)
    error = fault(path)
    parts = path.split(".")
    note(run_id, states.EVENT_ACTION_FAILED, path, {"error": error})
    for depth in range(len(parts), 0, -1):
        Node.objects.filter(run_id=run_id, path=".".join(parts[:depth])).update(
            status=states.FAILED, finished_at=Now(), error=error
        )
    note(run_id, states.EVENT_FAILED, None, {"error": error})
    end(run_id, states.FAILED, error)


def end(run_id: uuid.UUID, status: str, error: Any = None) -> None:
    """The run is over: what is live is cancelled, its jobs are gone."""
    if Run.objects.get(pk=run_id).status == states.PENDING:
        start(run_id)
    Node.objects.filter(run_id=run_id, status__in=LIVE).update(status=states.CANCELLED, finished_at=Now())
    Job.objects.filter(run_id=run_id).delete()
    Run.objects.filter(pk=run_id).update(status=status, finished_at=Now(), error=error)


def park(run_id: uuid.UUID, path: str, event: str, correlation: str | None = None) -> None:
    """A wait stage is parked; nothing else of its run can go on."""
    begin(run_id, path.rpartition(".")[0])
    Node.objects.filter(run_id=run_id, path=path).update(
        status=states.WAITING,
        started_at=Now(),
        wait_event=event,
        wait_correlation=correlation,
        wait_until=Now() + timedelta(days=1),
        parked_at=Now(),
    )


def park_run(run_id: uuid.UUID, path: str, event: str, correlation: str | None = None) -> None:
    """A wait stage is parked, and with it its run."""
    if Run.objects.get(pk=run_id).status == states.PENDING:
        start(run_id)
    park(run_id, path, event, correlation)
    Job.objects.filter(run_id=run_id).delete()
    Run.objects.filter(pk=run_id).update(status=states.WAITING)
    note(run_id, states.EVENT_WAITING, path)


def age(run_id: uuid.UUID, days: float) -> None:
    """As if the run had begun and finished so many days ago."""
    moved = timedelta(days=days)
    Run.objects.filter(pk=run_id).update(
        created_at=F("created_at") - moved,
        started_at=F("started_at") - moved,
        finished_at=F("finished_at") - moved,
    )


def due(job: Job) -> bool:
    """Whether a worker could claim the job now, by the database's clock."""
    return Job.objects.filter(
        pk=job.pk, lease_token__isnull=True, available_at__lte=TransactionNow()
    ).exists()


def counts() -> dict[str, int]:
    """Rows by table."""
    tables = ("run", "node", "job", "step", "event", "runevent")
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(f"(SELECT count(*) FROM workflow_{table})" for table in tables))
        return dict(zip(tables, cursor.fetchone(), strict=True))


def check_whole(run_id: uuid.UUID) -> None:
    """What holds for every run at rest, whoever wrote it."""
    run = Run.objects.get(pk=run_id)
    assert [seq for seq, _, _ in history(run_id)] == list(range(1, run.seq + 1))
    nodes = list(Node.objects.filter(run_id=run_id))
    jobs = list(Job.objects.filter(run_id=run_id))
    if run.status in states.RUN_TERMINAL:
        assert [n.path for n in nodes if n.status in LIVE] == []
        assert jobs == []
    for n in nodes:
        parked = n.status == states.WAITING and n.wait_outcome is None
        assert (n.wait_event is not None) == parked, n.path
        assert (n.wait_until is not None) == parked, n.path
    for job in jobs:
        assert ids.run_of(job.node_id) == run_id
