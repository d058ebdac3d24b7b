"""From rows to a RunStatus: parents from paths, and the outputs that stages have by their actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workflow import states
from workflow.results import NodeInfo, RunInfo, RunStatus
from workflow.store.commands import StatusRow


def to_status(rows: Sequence[StatusRow]) -> RunStatus:
    """``rows`` are the run's own and its nodes' in tree order, as ``store.status`` gives them."""
    run, nodes = rows[0], rows[1:]
    merged = _merged_outputs(nodes)
    return RunStatus(
        run=RunInfo(
            id=run.id,
            workflow=run.workflow,
            version=run.version,
            status=run.status,
            state=run.state,
            input=run.output,
            error=run.error,
            correlation_id=run.correlation_id,
            created_at=run.created_at,
            started_at=run.started_at,
            finished_at=run.finished_at,
        ),
        nodes=[
            NodeInfo(
                path=node.path,
                kind=node.kind,
                parent=parent(node.path),
                status=node.status,
                attempt=node.attempt,
                progress=node.progress,
                output=node.output if node.output is not None else merged.get(node.path),
                error=node.error,
                started_at=node.started_at,
                finished_at=node.finished_at,
            )
            for node in nodes
        ],
    )


def parent(path: str) -> str | None:
    """The path of the node that holds this one; None for a pipeline."""
    return path.rpartition(".")[0] or None


def _merged_outputs(nodes: Sequence[StatusRow]) -> dict[str, dict[str, Any]]:
    """By stage: what its completed actions put out, merged in the order in which they completed."""
    completed = [
        node
        for node in nodes
        if node.kind == states.ACTION and node.status == states.COMPLETED and node.output is not None
    ]
    merged: dict[str, dict[str, Any]] = {}
    for node in sorted(completed, key=lambda node: node.completed_seq or 0):
        stage, _, name = node.path.rpartition(".")
        nested = node.output if isinstance(node.output, dict) else {_key(name): node.output}
        merged.setdefault(stage, {}).update(nested)
    return merged


def _key(name: str) -> str:
    """Where a scalar or list output nests: under the action's name, or its stage's for an implicit action."""
    return name.removesuffix("#run")
