"""Workflows whose jobs move on, and a worker process that is run inside the test, in a burst: so handlers can do at
the right moment what tells moving on from going through the queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from workflow import Action, Fatal, Stage, Workflow, workflows
from workflow.executor import moving
from workflow.models import Job, Node
from workflow.registry import registry
from workflow.results import RunHandle
from workflow.store.ports import connection_parameters
from workflow.worker import leaving
from workflow.worker.options import Options
from workflow.worker.process import WorkerProcess

called: list[str] = []
"""Paths of handlers, in the order of their calls."""
undone_under: list[tuple[Any, str, bool]] = []
"""By compensation: its job's id and kind, and whether that is the run's."""
deeds: dict[str, Callable[[Any], Any]] = {}
"""By path: what its handler does."""


def handle(state: dict[str, Any], ctx: Any) -> None:
    called.append(ctx.path)
    if (deed := deeds.get(ctx.path)) is not None:
        deed(ctx)


async def ahandle(state: dict[str, Any], ctx: Any) -> None:
    called.append(ctx.path)
    if (deed := deeds.get(ctx.path)) is not None:
        await deed(ctx)


def gate(state: dict[str, Any]) -> bool:
    called.append("gate")
    workflows.pause_queue("default")
    return False


def undo(state: dict[str, Any], ctx: Any) -> None:
    called.append(f"undo {ctx.path}")
    job = Job.objects.get(run_id=ctx.run_id)
    undone_under.append((job.pk, job.kind, job.node_id == ctx.run_id))


def fatal(ctx: Any) -> None:
    raise Fatal("it does")


def of(run: Any, **options: Any) -> list[Action]:
    return [Action("a", run, **options)]


CHAIN = Workflow("chain", stages=[Stage(f"s{n}", actions=of(handle), via="queue") for n in range(4)])
ACHAIN = Workflow("achain", stages=[Stage(f"s{n}", actions=of(ahandle), via="queue") for n in range(4)])
ATOMIC = Workflow(
    "atomic", stages=[Stage(f"s{n}", actions=of(handle, via="queue", atomic=True)) for n in range(3)]
)
GATED = Workflow(
    "gated",
    stages=[Stage(f"s{n}", actions=of(handle), via="queue", when=gate if n == 1 else None) for n in range(3)],
)
SAGA = Workflow(
    "saga",
    stages=[
        Stage("s", actions=[Action(name, handle, compensate=undo, attempts=1, timeout=2) for name in "abc"])
    ],
)
MIXED = Workflow(
    "mixed",
    stages=[Stage(f"s{n}", actions=of(handle), via="inline" if n == 1 else "queue") for n in range(3)],
)
OTHER = Workflow("other", stages=[Stage("s", actions=of(handle))])
WHOLE = [f"chain.s{n}.a" for n in range(4)]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    called.clear()
    deeds.clear()
    undone_under.clear()
    monkeypatch.setattr(moving, "SLICE", 600.0)  # however slow the machine is
    with registry.isolated():
        for definition in (CHAIN, ACHAIN, ATOMIC, GATED, MIXED, SAGA, OTHER):
            workflows.register(definition)
        yield


class Worked:
    """A worker process that has run in this one until nothing was due."""

    def __init__(self, on_start: Callable[[WorkerProcess], None] | None = None, **options: Any) -> None:
        parameters = connection_parameters()

        async def main() -> None:
            self.process = WorkerProcess(parameters, Options(**{"concurrency": 1, "burst": True, **options}))
            if on_start is not None:
                on_start(self.process)
            self.code = await self.process.run()

        leaving.run(main())
        for thread in threading.enumerate():
            if thread.name == "workflow-handler":  # it closes its connection when it ends
                thread.join(10)

    @property
    def taken(self) -> int:
        return self.process._units.launched


def refused(caplog: pytest.LogCaptureFixture) -> int:
    """How many boundaries were refused because of their moves."""
    return sum("goes through the queue" in record.getMessage() for record in caplog.records)


def status(run: RunHandle) -> str:
    return run.status().run.status


def jobs(run: RunHandle) -> list[tuple[str, int]]:
    """The path of the node whose job it is, and the job's attempt, of those that are nobody's."""
    rows = Job.objects.filter(run_id=run.run_id, lease_token=None).values_list("node_id", "attempt")
    return [(Node.objects.get(pk=node).path, attempt) for node, attempt in rows]
