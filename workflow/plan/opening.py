"""The boundary that begins a run, where the definition alone says what it is. Pure."""

from __future__ import annotations

from typing import Final

from workflow.definitions import Tree
from workflow.plan.boundary import KEEP, Boundary
from workflow.plan.forward import Unit
from workflow.plan.snapshot import NodeSnapshot, RunSnapshot
from workflow.states import PENDING, RUNNING

LONGEST: Final = 50
"""Nodes, at most, that an opening starts: it goes out with claims that may find no run of its workflow."""


def opening(tree: Tree) -> Boundary | None:
    """What the first unit of any run of this definition settles before its first handlers start.

    None where that is not one and the same for all runs: a gate is asked first, a wait is parked, a child goes to the
    queue; and where it would be longer than is worth sending.
    """
    pipelines = tree.nodes[0].groups
    if not pipelines:
        return None
    run = RunSnapshot(status=PENDING, input=None, state={}, nodes=[NodeSnapshot()] * len(tree.nodes))
    move = Unit(tree, pipelines[0][0], run).begin()
    boundary = move.boundary
    starts_handlers = move.starts and not (move.done or move.asks or move.timers)
    return boundary if starts_handlers and _is_plain(boundary) else None


def _is_plain(boundary: Boundary) -> bool:
    """Whether it does nothing but begin the run and start nodes."""
    others = (boundary.patch, boundary.steps, boundary.new_jobs, boundary.wakes, boundary.awaited)
    return (
        boundary.run_target == RUNNING
        and boundary.job == KEEP
        and not any(others)
        and len(boundary.changes) <= LONGEST
        and all(change.target == RUNNING and change.wait is None for change in boundary.changes)
    )
