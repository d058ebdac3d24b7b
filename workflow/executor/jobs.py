"""What a claimed job is: a unit to drive, an event to deliver, a wait to check, or a ghost.

Ghosts are jobs that must not be executed here: `orphan` (the run no longer goes on: the job is
dropped), `race` (its run cannot be seen yet: it comes back with a backoff) and `version` (this
build does not serve the run's version, or has a tree that cannot undo it: it comes back, its attempt given back).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Sequence

from workflow import failpoints, states
from workflow.definitions import Workflow
from workflow.errors import FailureCode, VersionConflict
from workflow.executor.execution import Execution
from workflow.executor.ghosts import met
from workflow.executor.runtime import Runtime
from workflow.failures import clean_text
from workflow.plan import Boundary, HistoryEntry, Wake, compact, fault
from workflow.plan.boundary import DELETE
from workflow.plan.faults import UNBEGUN, loss
from workflow.registry import registry
from workflow.store import claims as claims_store
from workflow.store import events as events_store
from workflow.store.claims import Claim, Leftover, Misfit, Spoilt
from workflow.store.pieces import name_once
from workflow.store.settle import Lease, Settlement
from workflow.store.trouble import is_connection_lost, is_in_the_way
from workflow.texts import one_line

logger = logging.getLogger("workflow")

RACE_DELAY = 1.0
LOCKED_DELAY = 1.0
"""Seconds after which events are offered again to waits of a run that somebody has locked; twice as many each time."""
LONGEST_LOCKED_DELAY = 10.0
VERSION_DELAY = 5.0
"""Seconds after which a job that is not served here may come back, where nothing keeps it from coming back here."""
LEFT = "version"
"""What a job says of it that this code has left it to others, and a number where nobody else may have come for it."""
ENGINE_FAILED = "ENGINE_FAILED"
"""What `last_error` of a job begins with, and a number, when the engine itself could not go on with it."""
MAX_FAILURES = 10
"""How often in a row that may be."""
LONGEST_DELAY = 60.0


async def execute(
    claimed: Sequence[Claim],
    runtime: Runtime,
    launch: Callable[[Execution], None],
    strangers: set[tuple[str, int]] | None = None,
) -> None:
    """Sorts claimed jobs: settles what needs no user code, and calls `launch` for each unit to drive.

    Versions of workflows that turn out not to be served here are added to `strangers`, for a caller that spares
    them when it claims: their jobs are left to others at once. Without it they come back after a while.

    One job that cannot be handled goes back to the queue and takes no other with it; what is left when
    the database goes away is given back too, as far as it can be.
    """
    errands = [claim for claim in claimed if claim.kind in (states.DELIVER, states.CHECK)]
    units: list[tuple[Claim, Workflow]] = []
    try:
        for claim in claimed:
            if claim.kind not in (states.DELIVER, states.CHECK):
                workflow = await _admit(claim, runtime, strangers)
                if workflow is not None:
                    units.append((claim, workflow))
        await _launch_all(units, runtime, launch)
        units = []
        await _deliver(errands, runtime)
        errands = []
    finally:
        left = [claim for claim, _ in units] + errands
        if left:
            await claims_store.release(runtime.port, left, delay=1.0, refund=True)


async def _launch_all(
    units: list[tuple[Claim, Workflow]], runtime: Runtime, launch: Callable[[Execution], None]
) -> None:
    if not units:
        return
    found = await claims_store.snapshots(runtime.port, [(claim, workflow.tree) for claim, workflow in units])
    for (claim, workflow), snapshot in zip(list(units), found, strict=True):
        units.pop(0)
        try:
            if isinstance(snapshot, Misfit):
                await _fail_misfit(claim, workflow, snapshot, runtime)
            elif isinstance(snapshot, Leftover):
                await _pass_on(claim, snapshot, runtime)
            else:
                launch(Execution(claim, workflow, snapshot, runtime))
        except Exception as error:
            await give_back(claim, claim.lease(), error, runtime)


async def _deliver(errands: list[Claim], runtime: Runtime) -> None:
    if not errands:
        return
    failpoints.hit("deliver.before")
    again = await _run_errands(errands, runtime)
    failpoints.hit("deliver.resolved")
    done = [claim for claim in errands if claim.node_id not in again]

    async def drop(claims: list[Claim]) -> None:
        await claims_store.drop(runtime.port, claims)

    if done:
        await _each_for_itself(done, drop)
    by_return: dict[tuple[float, str], list[Claim]] = {}
    for claim in errands:
        if claim.node_id in again:
            by_return.setdefault(_come_again(claim, again[claim.node_id]), []).append(claim)
    for (delay, reason), claims in by_return.items():

        async def release(claims: list[Claim], delay: float = delay, reason: str = reason) -> None:
            await claims_store.release(runtime.port, claims, delay=delay, refund=True, reason=reason)

        await _each_for_itself(claims, release)


async def _run_errands(errands: list[Claim], runtime: Runtime) -> dict[str, str]:
    """Which of them have to come again, by their events and waits, and why. One that fails takes no other with it."""
    events = [claim.node_id for claim in errands if claim.kind == states.DELIVER]
    waits = [claim.node_id for claim in errands if claim.kind == states.CHECK]
    again: dict[str, str] = {}
    try:
        if events:
            delivered = await events_store.deliver(runtime.port, events)
            runtime.announce_rows(delivered.told)
            again |= delivered.again
        if waits:
            delivered = await events_store.check(runtime.port, waits)
            runtime.announce_rows(delivered.told)
            again |= delivered.again
        return again
    except Exception as error:
        if is_connection_lost(error):
            raise
        if is_in_the_way(error):  # of a whole table: each of them would wait for it in turn
            return dict.fromkeys(events + waits, events_store.LOCKED)
        if len(errands) == 1:
            name_once(errands[0].kind, errands[0].node_id, error)
            return {errands[0].node_id: f"{type(error).__name__}: {clean_text(error, 500)}"}
    for claim in errands:
        again |= await _run_errands([claim], runtime)
    return again


async def _each_for_itself(claims: list[Claim], settle: Callable[[list[Claim]], Awaitable[None]]) -> None:
    """All of them at once; one after the other when that fails. One that fails alone comes back with its lease."""
    try:
        await settle(claims)
    except Exception as error:
        if is_connection_lost(error):
            raise
        if len(claims) == 1:
            logger.warning("job %s comes back when its lease is over: %s", claims[0].job_id, error)
            return
        for claim in claims:
            await _each_for_itself([claim], settle)


def _come_again(claim: Claim, why: str) -> tuple[float, str]:
    """After how many seconds, and what its job says meanwhile: each time it is longer."""
    locked = why == events_store.LOCKED
    name = "locked" if locked else ENGINE_FAILED
    count = _times(claim, name)
    if locked:
        return min(LOCKED_DELAY * 2.0 ** min(count - 1, 10), LONGEST_LOCKED_DELAY), f"{name} {count}"
    return min(2.0 ** min(count, 10), LONGEST_DELAY), f"{name} {count}: {why}"


async def _admit(claim: Claim, runtime: Runtime, strangers: set[tuple[str, int]] | None) -> Workflow | None:
    """The definition that the unit is driven by; None for a ghost, which is laid."""
    delay = VERSION_DELAY
    reason = _ghost(claim)
    if reason is None:
        run = claim.run
        assert run is not None
        workflow = registry.serves(run.workflow, run.version)
        if workflow is not None:
            return workflow
        reason = "version"
        if strangers is not None:
            strangers.add((run.workflow, run.version))
            delay = 0.0
    await _lay(claim, reason, runtime, delay)
    return None


async def _fail_misfit(claim: Claim, workflow: Workflow, misfit: Misfit, runtime: Runtime) -> None:
    """Ends a run that the definition cannot go on with: one clear error, and no handler is called.

    One that compensates is left to code that fits: nothing takes it up again once it is over, and what it has still
    to undo would be lost.
    """
    run = claim.run
    assert run is not None
    code = VersionConflict.code
    if isinstance(misfit, Spoilt):
        code = FailureCode.STUCK_RUN_REAPED
        message = f"{misfit}: somebody has changed it by hand (a retry makes it anew from the outputs)"
    elif workflow.version == run.version:
        message = f"the tree of version {run.version} has changed since the run was dispatched: {misfit}"
    else:
        message = f"version {workflow.version} cannot go on with a run of version {run.version}: {misfit}"
    if code == VersionConflict.code and run.status == states.COMPENSATING:
        await _await_code(claim, message, runtime)
        return
    await _end_run(claim, claim.lease(), code, message, runtime)


async def _await_code(claim: Claim, why: str, runtime: Runtime) -> None:
    """Leaves a run to code that can compensate it, each time for longer."""
    count = _times(claim, LEFT)
    if count == 1:
        logger.error(
            "run %s waits for code that can compensate it, and comes back until then: %s",
            claim.run_id,
            one_line(why),
        )
    met(LEFT, claim.job_id, claim.run_id, why)
    told = f"{LEFT} {count}: {clean_text(why, 1000)}"
    if loss(claim.last_error):  # whoever takes it up judges by how its last attempt was lost
        told = f"{claim.last_error.partition(f'; {LEFT} ')[0]}; {told}"
    delay = min(VERSION_DELAY * 2.0 ** min(count - 1, 10), LONGEST_DELAY)
    await claims_store.release(runtime.port, [claim], delay=delay, refund=True, reason=told)


def _times(claim: Claim, what: str) -> int:
    """How often in a row, this time included, that has come of the job."""
    before = re.search(rf"(?:^|^{UNBEGUN}: |; ){what} (\d+)", claim.last_error)
    return 1 + (int(before[1]) if before else 0)


async def _pass_on(claim: Claim, left: Leftover, runtime: Runtime) -> None:
    """Lets go of a job that has nothing left to do but to wake what goes on after it: that unit may await it."""
    boundary = Boundary(job=DELETE, wakes=[Wake(left.unit, ())])
    await runtime.settle(Settlement(claim.lease(left.places), boundary))


async def give_back(claim: Claim, lease: Lease, error: BaseException, runtime: Runtime) -> None:
    """A unit that the engine could not drive comes back later; one that it can never drive ends its run.

    Raises what the store raises when the database is away: then the job comes back with its lease.
    """
    if is_connection_lost(error):
        await claims_store.release(runtime.port, [claim], delay=1.0, refund=True)
        return
    logger.error("job %s of run %s: the engine failed", claim.job_id, claim.run_id, exc_info=error)
    count = _times(claim, ENGINE_FAILED)
    what = f"{type(error).__name__}: {clean_text(error, 500)}"
    if count >= MAX_FAILURES:
        message = f"the engine failed {count} times in a row to go on with the run ({what})"
        await _end_run(claim, lease, FailureCode.STUCK_RUN_REAPED, message, runtime)
        return
    await claims_store.release(
        runtime.port,
        [claim],
        delay=min(2.0**count, LONGEST_DELAY),
        refund=False,
        reason=f"{ENGINE_FAILED} {count}: {what}",
    )


async def _end_run(claim: Claim, lease: Lease, code: str, message: str, runtime: Runtime) -> None:
    """Fails a run outright, without user code."""
    run = claim.run
    assert run is not None
    error = compact(fault(code, message, None))
    boundary = Boundary(
        compensating=run.status == states.COMPENSATING,
        run_target=states.FAILED,
        run_error=error,
        cancel_pending=True,
        history=[HistoryEntry(states.EVENT_FAILED, None, f'{{"error":{error}}}')],
        job=DELETE,
    )
    logger.error("run %s of %s fails: %s: %s", run.id, run.workflow, code, one_line(message))
    await runtime.settle(Settlement(lease, boundary))


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


async def _lay(claim: Claim, reason: str, runtime: Runtime, delay: float) -> None:
    run = claim.run
    name = f"{run.workflow} version {run.version}" if run is not None else "a run that cannot be seen"
    met(reason, claim.job_id, claim.run_id, f"{name} is not executed here")
    if reason == "orphan":
        await claims_store.drop(runtime.port, [claim])
    elif reason == "race":
        await claims_store.release(
            runtime.port, [claim], delay=RACE_DELAY * claim.attempt, refund=False, reason=reason
        )
    else:
        # Whoever takes it up judges by how its last attempt was lost.
        told = None if loss(claim.last_error) else f"{LEFT}: no worker here serves {name}"
        await claims_store.release(runtime.port, [claim], delay=delay, refund=True, reason=told)
