"""What a claimed job is: a unit to drive, an event to deliver, a wait to check, or a ghost.

Ghosts are jobs that must not be executed here: `orphan` (the run no longer goes on: the job is
dropped), `race` (its run cannot be seen yet: it comes back with a backoff) and `version` (this
build does not serve the run's version: it comes back, its attempt given back).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from workflow import failpoints, states
from workflow.definitions import Workflow
from workflow.errors import VersionConflict
from workflow.executor.execution import Execution
from workflow.executor.runtime import Runtime
from workflow.plan import Boundary, HistoryEntry, compact, fault
from workflow.plan.boundary import DELETE
from workflow.registry import registry
from workflow.store import claims as claims_store
from workflow.store import events as events_store
from workflow.store.claims import Claim, Misfit
from workflow.store.settle import Settlement

logger = logging.getLogger("workflow")

RACE_DELAY = 1.0
VERSION_DELAY = 5.0
ghosts: Counter[str] = Counter()
"""How many ghost jobs this process has met, by reason."""


async def execute(claimed: Sequence[Claim], runtime: Runtime, launch: Callable[[Execution], None]) -> None:
    """Sorts claimed jobs: settles what needs no user code, and calls `launch` for each unit to drive."""
    units: list[tuple[Claim, Workflow]] = []
    for claim in claimed:
        if claim.kind in (states.DELIVER, states.CHECK):
            await _deliver(claim, runtime)
            continue
        reason = _ghost(claim)
        if reason is not None:
            await _lay(claim, reason, runtime)
            continue
        run = claim.run
        assert run is not None
        workflow = registry.serves(run.workflow, run.version)
        if workflow is None:
            await _lay(claim, "version", runtime)
        else:
            units.append((claim, workflow))
    if not units:
        return
    found = await claims_store.snapshots(runtime.port, [(claim, workflow.tree) for claim, workflow in units])
    for (claim, workflow), snapshot in zip(units, found, strict=True):
        if isinstance(snapshot, Misfit):
            await _fail_misfit(claim, workflow, snapshot, runtime)
        else:
            launch(Execution(claim, workflow, snapshot, runtime))


async def _deliver(claim: Claim, runtime: Runtime) -> None:
    failpoints.hit("deliver.before")
    if claim.kind == states.DELIVER:
        rows = await events_store.deliver(runtime.port, claim.node_id)
    else:
        rows = await events_store.check(runtime.port, claim.node_id)
    runtime.announce_rows(rows)
    failpoints.hit("deliver.resolved")
    await claims_store.drop(runtime.port, [claim])


async def _fail_misfit(claim: Claim, workflow: Workflow, misfit: Misfit, runtime: Runtime) -> None:
    """Ends a run that the definition cannot go on with: one clear error, and no handler is called."""
    run = claim.run
    assert run is not None
    message = f"version {workflow.version} cannot go on with a run of version {run.version}: {misfit}"
    error = compact(fault(VersionConflict.code, message, workflow.name))
    boundary = Boundary(
        compensating=run.status == states.COMPENSATING,
        run_target=states.FAILED,
        run_error=error,
        cancel_pending=True,
        history=[HistoryEntry(states.EVENT_FAILED, None, f'{{"error":{error}}}')],
        job=DELETE,
    )
    logger.error("run %s: %s", run.id, message)
    await runtime.settle(Settlement(claim.lease(), boundary))


def _ghost(claim: Claim) -> str | None:
    run = claim.run
    if run is None:
        return "race"
    live = (
        run.status == states.COMPENSATING
        if claim.kind == states.COMPENSATE
        else run.status in states.RUN_FORWARD
    )
    return None if live else "orphan"


async def _lay(claim: Claim, reason: str, runtime: Runtime) -> None:
    ghosts[reason] += 1
    run = claim.run
    name = f"{run.workflow} version {run.version}" if run is not None else "unknown"
    logger.info("ghost job %s of run %s (%s): %s", claim.job_id, claim.run_id, name, reason)
    if reason == "orphan":
        await claims_store.drop(runtime.port, [claim])
    elif reason == "race":
        await claims_store.release(
            runtime.port, [claim], delay=RACE_DELAY * claim.attempt, refund=False, reason=reason
        )
    else:
        await claims_store.release(
            runtime.port,
            [claim],
            delay=VERSION_DELAY,
            refund=True,
            reason=f"version: no worker here serves {name}",
        )
