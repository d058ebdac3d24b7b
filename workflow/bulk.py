"""One command of the manager for many runs: each succeeds or is refused on its own, refusals counted by reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from django.db import transaction

from workflow.conf import conf
from workflow.errors import RunNotFound, WorkflowError

MOST: Final = 500
"""Runs that one request takes on: some ten milliseconds each, and web servers grant a request half a minute."""
EXAMPLES: Final = 10
"""Ids that a reason names."""

Command = Callable[[UUID], object]


@dataclass(slots=True)
class Reason:
    """Why some runs were refused: the error's code, and its message without the run's id."""

    code: str
    message: str
    count: int = 0
    run_ids: list[UUID] = field(default_factory=list)
    """The first few of them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many runs the command was done for, and the reasons of the others, the most frequent first."""

    done: int
    reasons: list[Reason]

    @property
    def refused(self) -> int:
        return sum(reason.count for reason in self.reasons)


def each(run_ids: Iterable[UUID], command: Command, *, dry_run: bool = False) -> Outcome:
    """Calls ``command`` for every run; a ``WorkflowError`` refuses that run, anything else ends it all.

    Every run is a transaction of its own unless the caller has one, so what is done stays done. With
    ``dry_run`` each of them is rolled back: the answer is exact, because the very same checks were made.
    """
    done = 0
    reasons: dict[tuple[str, str], Reason] = {}
    # In the order of their ids, as everybody locks runs: within one transaction nobody can wait crosswise.
    for run_id in sorted(set(run_ids)):
        try:
            if dry_run:
                _try(run_id, command)
            else:
                command(run_id)
        except WorkflowError as error:
            message = _without_id(error, run_id)
            reason = reasons.setdefault((error.code, message), Reason(error.code, message))
            reason.count += 1
            if len(reason.run_ids) < EXAMPLES:
                reason.run_ids.append(run_id)
        else:
            done += 1
    return Outcome(done, sorted(reasons.values(), key=lambda reason: -reason.count))


def _try(run_id: UUID, command: Command) -> None:
    with transaction.atomic(using=conf.DATABASE):
        command(run_id)
        transaction.set_rollback(True, using=conf.DATABASE)


def _without_id(error: WorkflowError, run_id: UUID) -> str:
    """The message as it reads for every run that was refused for the same reason."""
    if isinstance(error, RunNotFound):
        return "there is no such run"
    return str(error).replace(f"run {run_id} ", "the run ").replace(str(run_id), "...")
