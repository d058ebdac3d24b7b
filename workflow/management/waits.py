"""What a run is waiting for, in lines for people: events that wait stages and durable steps are parked on, and time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final
from uuid import UUID

from workflow import states
from workflow.conf import conf
from workflow.models import Node, Run, Step
from workflow.overview import due_of_run
from workflow.redact import MASK, masks, redact_text, secrets_of, under_its_key
from workflow.results import RunStatus
from workflow.terminal import moment, one_line

MOST: Final = 10
"""Waits that are shown of one run; a run may have thousands."""


def wait_lines(status: RunStatus) -> list[str]:
    """One printable line for each event that the run waits for, the oldest wait first, and one for when it goes on by
    itself if nothing of it is at work until then; none for most runs.

    "waits for    email.confirmed about ann@example.org, until 2026-03-05 11:59:50 (signup.confirmed)"
    "goes on      2026-03-05 12:30:00"
    """
    if status.run.status not in states.RUN_LIVE:
        return []
    due = due_of_run(status.run.id)
    goes_on = [] if due is None else [f"{'goes on':<12} {moment(due)}"]
    if all(node.status != states.WAITING for node in status.nodes):
        return goes_on
    return _events(status.run.id) + goes_on


def _events(run_id: UUID) -> list[str]:
    found = [*_nodes(run_id), *_steps(run_id)]
    mask = _masking(run_id) if any(correlation or step for _, step, _, correlation, _ in found) else str
    lines = []
    for path, step, event, correlation, until in found[:MOST]:
        place = f"{path}, step {mask(step)}" if step is not None else path
        about = f" about {mask(correlation)}" if correlation is not None else ""
        end = f", until {moment(until)}" if until is not None else ""
        lines.append(f"{'waits for':<12} {one_line(f'{event}{about}{end} ({place})')}")
    return lines + ([f"{'':<12} and for more"] if len(found) > MOST else [])


_Wait = tuple[str, str | None, str, str | None, datetime | None]
"""The node's path, the step's key, the event, its correlation, and until when."""


def _nodes(run_id: UUID) -> Iterator[_Wait]:
    rows = Node.objects.using(conf.DATABASE).filter(run_id=run_id, wait_event__isnull=False)
    columns = ("path", "wait_event", "wait_correlation", "wait_until")
    for path, *wait in rows.order_by("parked_at", "id").values_list(*columns)[: MOST + 1]:
        yield path, None, *wait


def _steps(run_id: UUID) -> Iterator[_Wait]:
    rows = Step.objects.using(conf.DATABASE).filter(
        run_id=run_id, wait_event__isnull=False, finished_at__isnull=True
    )
    found = list(rows.order_by("parked_at", "id")[: MOST + 1])
    nodes = Node.objects.using(conf.DATABASE).filter(id__in={step.node_id for step in found})
    paths = dict(nodes.values_list("id", "path"))
    for step in found:
        path = paths.get(step.node_id, str(step.node_id))
        yield path, step.key, step.wait_event or "", step.wait_correlation, step.deadline


def _masking(run_id: UUID) -> Callable[[str], str]:
    """What masks a correlation or a step's key, which may hold the value of a secret key of the run."""
    run = Run.objects.using(conf.DATABASE).only("workflow", "state", "input").filter(id=run_id).first()
    if run is None:  # pruned meanwhile
        return lambda text: MASK
    if not masks(run.workflow):
        return str
    secrets = secrets_of(run.state, under_its_key("input", run.input), workflow=run.workflow)
    return lambda text: redact_text(text, secrets=secrets, workflow=run.workflow)
