"""What an execution needs of the process it runs in: a worker's event loop, or a test's single thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from workflow.plan import Fact, HistoryRow
from workflow.store.ports import Port
from workflow.store.settle import Settlement

if TYPE_CHECKING:
    from workflow.executor.attempt import Attempt
    from workflow.executor.desk import Desk
    from workflow.executor.execution import Execution
    from workflow.executor.moving import Mover
    from workflow.executor.questions import Question


class Runtime(Protocol):
    """`start` and `ask` run user code and post its fact to the execution. Neither they nor `after` wait for it."""

    @property
    def mover(self) -> Mover | None:
        """Says when units may move on from node to node; None: they never do."""
        ...

    @property
    def port(self) -> Port:
        """Where reads and statements outside of boundaries go."""
        ...

    async def settle(self, settlement: Settlement) -> Settlement:
        """Settles a boundary; `seq` is None when it was refused. Raises `Rejected`."""
        ...

    def start(self, execution: Execution, attempt: Attempt) -> None:
        """Runs an attempt within its timeout."""
        ...

    def ask(self, execution: Execution, question: Question) -> None:
        """Asks gates, a pick or an `output=`."""
        ...

    def after(self, execution: Execution, seconds: float, fact: Fact) -> None:
        """Posts a fact later."""
        ...

    def desk(self) -> Desk:
        """What handlers may ask for while they run."""
        ...

    async def facts(self, execution: Execution) -> list[Fact]:
        """What has been posted; waits until there is something, or the execution is to stop."""
        ...

    def announce_rows(self, rows: Sequence[HistoryRow]) -> None:
        """Pushes history that was appended outside of boundaries."""
        ...
