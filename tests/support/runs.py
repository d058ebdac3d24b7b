"""Short ways to start a run and to look at it."""

from __future__ import annotations

from typing import Any

from workflow import Stage, WaitFor, Workflow, workflows
from workflow.models import RunEvent
from workflow.results import NodeInfo, RunHandle, RunStatus
from workflow.testing import advance, drain

PATIENCE = 120.0
"""Seconds that a test gives what takes moments: a busy machine is no fault of the code."""


def run_through(definition: Workflow, data: Any = None, *, seconds: float = 0, rounds: int = 1) -> RunStatus:
    """Dispatches, drains, and lets time pass in between; the status after that."""
    handle = workflows.dispatch(definition, {} if data is None else data)
    drain(handle.run_id, timeout=PATIENCE)
    for _ in range(rounds if seconds else 0):
        advance(seconds)
        drain(handle.run_id, timeout=PATIENCE)
    return handle.status()


def staged(*actions: Any, **options: Any) -> Workflow:
    """A workflow `w` with one stage `s` of these actions."""
    return Workflow("w", stages=[Stage("s", actions=list(actions))], **options)


def node(status: RunStatus, path: str) -> NodeInfo:
    """One node of a run, by path."""
    return next(n for n in status.nodes if n.path == path)


def statuses(status: RunStatus) -> dict[str, str]:
    """Every node's status, by path."""
    return {n.path: n.status for n in status.nodes}


def history(status: RunStatus) -> list[tuple[str, str | None]]:
    """(name, node) of each entry; fails when `seq` has a gap."""
    entries = list(RunEvent.objects.filter(run_id=status.run.id).order_by("seq"))
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    return [(entry.name, entry.node) for entry in entries]


def names(status: RunStatus) -> list[str]:
    """The names of the history's entries, in order."""
    return [name for name, _ in history(status)]


def parked(wait: WaitFor, data: Any = None, **options: Any) -> RunHandle:
    """A run of one wait stage and an end, drained until it is parked."""
    definition = Workflow(
        "w", stages=[Stage("wait", wait_for=wait), Stage("end", run=lambda state: None)], **options
    )
    handle = workflows.dispatch(definition, {} if data is None else data)
    drain(handle.run_id)
    return handle
