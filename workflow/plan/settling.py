"""What follows from a node that became terminal: its group, its stage, its pipeline, its run. Pure.

Containers are driven by counting: each knows the group it is in and how many of that group's
members are still live, so that one outcome costs the same in a tree of ten nodes or ten thousand.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from workflow import states
from workflow.definitions import Stage, Tree, Workflow
from workflow.errors import FailureCode
from workflow.plan.boundary import AWAIT, DELETE, Ask, Boundary, NewJob, Wake
from workflow.plan.draft import Draft
from workflow.plan.faults import Unfit, compact, fault
from workflow.plan.layout import layout
from workflow.plan.moving import Moving
from workflow.plan.order import Order
from workflow.plan.outputs import Outputs, as_patch, validated
from workflow.plan.snapshot import RunSnapshot
from workflow.states import (
    ACTION,
    CANCELLED,
    COMPLETED,
    FAILED,
    NODE_DONE,
    NODE_LIVE,
    PENDING,
    PIPELINE,
    RUNNING,
    SKIPPED,
    STAGE,
)


class Settling(Moving):
    """The half of a `Unit` that looks upward; the other half takes nodes up and hears of their outcomes."""

    def __init__(self, tree: Tree, ordinal: int, run: RunSnapshot) -> None:
        super().__init__(tree, ordinal, run, Draft(*_own_rows(tree, ordinal, run)))
        self.run_status = run.status
        self.inflight: set[int] = set()
        """Nodes whose attempt, gate, pick or `output=` is at work in this process. A plan that is made anew is told
        before `begin` whose attempts are; questions it asks again, and hears the first answer alone."""
        self._outputs = Outputs(tree, run)
        self._order = Order(tree)
        self._cursor: dict[int, int] = {}
        """By open container: the group that it is in."""
        self._open: dict[int, int] = {}
        """By open container: how many members of that group are live."""
        self._children: set[int] = set()
        """Nodes with jobs of their own in the groups that are open."""
        self._failures: dict[int, list[int]] = {}
        """By open container: the members that have failed."""
        self._errors: dict[int, dict[str, Any]] = {}
        self._failed_at: dict[int, tuple[int, int]] = {}
        """By node that has failed since the claim: when it did, or what is beneath it; in the order of tuples."""
        self._later: dict[int, float] = {}
        """By node that waits for its turn: seconds until then, from when that was known."""
        self._held = False
        """Something can go on only after the run has been read again."""

    @abstractmethod
    def _enter(self, ordinal: int) -> None:
        """Takes up a live node whose turn it is."""

    def awaited(self) -> list[tuple[int, ...]]:
        """The groups of which only children with jobs of their own are left, while others of the unit are at work:
        what comes after such a group need not wait for those."""
        left: dict[tuple[int, ...], set[int]] = {}
        for child in self._children:
            if self.status[child] in NODE_LIVE:
                parent = self.tree.nodes[child].parent
                group = self.tree.nodes[parent].groups[self._cursor.get(parent, 0)]
                left.setdefault(group, {n for n in group if self.status[n] in NODE_LIVE})
        return [tuple(sorted(live)) for live in left.values() if live <= self._children]

    # --- containers -----------------------------------------------------------------------------

    def _open_container(self, ordinal: int, start: int = 0) -> None:
        """Enters the first group, from `start` on, that has anything left to do."""
        groups = self.tree.nodes[ordinal].groups
        for index in range(start, len(groups)):
            group = groups[index]
            left = [member for member in group if self.status[member] not in NODE_DONE]
            if not left:
                continue
            live = [member for member in left if self.status[member] in NODE_LIVE]
            self._cursor[ordinal] = index
            self._open[ordinal] = len(live)
            self._failures[ordinal] = [member for member in left if self.status[member] not in NODE_LIVE]
            if not live:
                self._container_failed(ordinal)
                return
            if len(group) > 1:
                self.states.open_group(ordinal, [m for m in live if not self.tree.nodes[m].own_job])
            for member in live:
                self._enter(member)
            return
        self._container_completed(ordinal)

    def _settled(self, ordinal: int) -> None:
        """A node became terminal: its group, and what follows from it."""
        if ordinal == self.ordinal and not self._rises():
            self._unit_over()
            return
        parent = self.tree.nodes[ordinal].parent
        if self.status[ordinal] == FAILED:
            self._failures[parent].append(ordinal)
        self._open[parent] -= 1
        if self._open[parent]:
            return
        if self._failures[parent]:
            self._container_failed(parent)
        elif parent in self._order.doubtful:
            self._held = True
        else:
            self._open_container(parent, self._cursor[parent] + 1)

    def _container_completed(self, ordinal: int) -> None:
        definition = self.tree.nodes[ordinal].definition
        if not isinstance(definition, Stage) or definition.output_adapter is None:
            self._container_over(ordinal)
            return
        checked = self._checked(ordinal, definition, self._outputs.of_stage(ordinal, self.status))
        if checked is not None:
            value, text = checked
            self._container_over(ordinal, *as_patch(definition.name, value, text))

    def _checked(self, ordinal: int, stage: Stage, value: Any) -> tuple[Any, str] | None:
        """What a stage's `output=` makes of a value; None when the stage has failed, or user code is asked first."""
        if self._condemn(ordinal):
            return None
        if stage.output_runs_code:
            self.inflight.add(ordinal)
            self._draft.move.asks.append(Ask(ordinal, {}, checks=True, value=value))
            return None
        try:
            return validated(value, self.tree, ordinal)
        except Unfit as unfit:
            self._fail(ordinal, unfit.error)
            return None

    def _container_over(
        self, ordinal: int, patch: dict[str, Any] | None = None, output: str | None = None
    ) -> None:
        node = self.tree.nodes[ordinal]
        event: int | None = None
        if patch is not None:
            self._draft.patch(patch, output)
            self._order.merged(ordinal, patch)
            self.states.merge(ordinal, patch)
        if node.kind == STAGE:
            event = self._draft.say(states.EVENT_STAGE_COMPLETED, node.path)
        self._draft.change(ordinal, COMPLETED, output=output, event=event)
        self._settled(ordinal)

    def _container_failed(self, ordinal: int) -> None:
        """The error of the first node beneath it that failed is the container's, too."""
        first = min(self._failures[ordinal], key=self._when_failed)
        self._failed_at[ordinal] = self._when_failed(first)
        error = self._errors.get(first) or self.run.nodes[first].error
        path = self.tree.nodes[first].path
        self._fail(ordinal, error or fault(FailureCode.ACTION_FAILED, "the node was cancelled", path))

    def _when_failed(self, ordinal: int) -> tuple[int, int]:
        at = self._failed_at.get(ordinal)
        if at is None:  # before the claim
            rows = self.run.nodes[ordinal : self.tree.nodes[ordinal].end]
            at = (0, min((row.completed_seq or 0 for row in rows if row.status == FAILED), default=0))
        return at

    def _fail(self, ordinal: int, error: dict[str, Any]) -> None:
        node = self.tree.nodes[ordinal]
        self._errors[ordinal] = error
        self._failed_at.setdefault(ordinal, (1, len(self._failed_at)))
        event: int | None = None
        if node.kind == ACTION:
            data = compact({"error": error, "attempt": self.attempt[ordinal]})
            event = self._draft.say(states.EVENT_ACTION_FAILED, node.path, data)
        elif node.kind == STAGE:
            event = self._draft.say(states.EVENT_STAGE_FAILED, node.path, compact({"error": error}))
        self._later.pop(ordinal, None)
        self._draft.change(ordinal, FAILED, error=compact(error), event=event)
        if node.kind != PIPELINE:
            self._cover(ordinal, CANCELLED)
        self._settled(ordinal)

    def _skip(self, ordinal: int) -> None:
        node = self.tree.nodes[ordinal]
        name = states.EVENT_ACTION_SKIPPED if node.kind == ACTION else states.EVENT_STAGE_SKIPPED
        self._draft.say(name, node.path)
        self._draft.change(ordinal, SKIPPED)
        self._cover(ordinal, SKIPPED)
        self._settled(ordinal)

    def _cover(self, ordinal: int, target: str) -> None:
        """Everything beneath a node that will not run follows it."""
        for below in range(ordinal + 1, self.tree.nodes[ordinal].end):
            if self.status[below] in NODE_LIVE:
                self._draft.change(below, target)

    # --- the unit and the run -------------------------------------------------------------------

    def _unit_over(self) -> None:
        if self.tree.nodes[self.ordinal].kind != PIPELINE:
            self._child_over()
        elif self.status[self.ordinal] == FAILED:
            self._run_failed(self._errors[self.ordinal])
        else:
            self._next_pipeline()

    def _child_over(self) -> None:
        """Lets go of a queued child's job, and wakes the parent if the rest of the group is over, too."""
        parent = self.tree.nodes[self.tree.nodes[self.ordinal].parent]
        self._leave().wakes.append(Wake(parent.unit, layout(self.tree).crew[self.ordinal]))

    def _late(self) -> None:
        """The unit was over before this claim.

        An atomic action's worker died between the commit and waking the parent; or a parent that read the
        node while it was pending, and settled after it was over, added its job once more.
        """
        if self.tree.nodes[self.ordinal].kind == PIPELINE:
            self._leave()
        else:
            self._child_over()

    def _next_pipeline(self) -> None:
        for (pipeline,) in self.tree.nodes[0].groups:
            if self.status[pipeline] not in NODE_DONE:
                if self._crosses(pipeline):
                    self._enter(pipeline)
                else:
                    self._let_go().new_jobs.append(NewJob(states.UNIT, pipeline))
                return
        self._let_go().run_target = COMPLETED
        self._draft.say(states.EVENT_COMPLETED)

    def _run_failed(self, error: dict[str, Any]) -> None:
        workflow = self.tree.nodes[0].definition
        assert isinstance(workflow, Workflow)
        turns_back = workflow.on_failure != "halt" and self._turns_back(error)
        boundary = self._draft.move.boundary if turns_back else self._let_go()
        text = compact({"error": error})
        boundary.run_error = compact(error)
        boundary.cancel_pending = True
        if workflow.on_failure == "halt":
            boundary.run_target = FAILED
            self._draft.say(states.EVENT_FAILED, None, text)
            return
        boundary.run_target = states.COMPENSATING
        self._draft.say(states.EVENT_COMPENSATING, None, text)
        if not turns_back:
            boundary.new_jobs.append(NewJob(states.COMPENSATE, 0))

    def _let_go(self) -> Boundary:
        """The unit's own work is settled; what its boundary still has to say is the caller's."""
        self._draft.move.done = True
        self._draft.move.boundary.job = DELETE
        return self._draft.move.boundary

    def _leave(self) -> Boundary:
        """Lets go while the run goes on. Waits that are parked may be all that is left of it: then it is `waiting`."""
        boundary = self._let_go()
        if layout(self.tree).waits:
            boundary.job = AWAIT
        return boundary

    def _run_goes_on(self, event: str) -> None:
        if self.run_status != RUNNING:
            self.run_status = RUNNING
            self._draft.move.boundary.run_target = RUNNING
            self._draft.say(event)

    def _condemn(self, ordinal: int) -> bool:
        """Fails a node instead of running user code for it, if there is a verdict."""
        if self._verdict is None:
            return False
        message = f"nothing was at work when the worker was lost ({self.run.last_error})"
        error = fault(self._verdict, message, self.tree.nodes[ordinal].path)
        self._fail(ordinal, self._first_failure(range(ordinal + 1, self.tree.nodes[ordinal].end)) or error)
        return True

    def _first_failure(self, among: Iterable[int]) -> dict[str, Any] | None:
        """The error of the first of these nodes that had failed at the claim."""
        rows = [self.run.nodes[ordinal] for ordinal in among if self.run.nodes[ordinal].status == FAILED]
        return min(rows, key=lambda row: row.completed_seq or 0).error if rows else None


def _own_rows(tree: Tree, unit: int, run: RunSnapshot) -> tuple[list[str], list[int]]:
    """Statuses and attempts by ordinal: of the unit's subtree, and the pipelines' statuses; the rest is never read."""
    status = [PENDING] * len(tree.nodes)
    attempt = [0] * len(tree.nodes)
    for (pipeline,) in tree.nodes[0].groups:
        status[pipeline] = run.nodes[pipeline].status
    for ordinal in range(unit, tree.nodes[unit].end):
        row = run.nodes[ordinal]
        status[ordinal] = row.status
        attempt[ordinal] = row.attempt
    return status, attempt
