"""What a handler sees of its run: `ctx`."""

from __future__ import annotations

import reprlib
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

from workflow import payload
from workflow.awaits import awaited_of_context
from workflow.conf import conf
from workflow.failures import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from workflow.awaits import Awaits
    from workflow.signals import Signal
    from workflow.steps import Steps


class Context:
    """The second argument of `run(input, ctx)` and `compensate(state, ctx)`.

    `attempt` is 1-based and starts anew in a compensation. `state` is the merged state as the
    handler may read it, `context` what dispatch was given. `idempotency_key` is the same for every
    attempt of this action of this run, and another one for its compensation: hand it to an API that
    knows such keys.
    """

    def __init__(
        self,
        *,
        run_id: str,
        node_id: str,
        path: str,
        workflow: str,
        attempt: int,
        state: dict[str, Any],
        context: Any,
        correlation_id: str | None,
        idempotency_key: str,
        signal: Signal,
        report: Callable[[str, float | None, dict[str, Any]], None],
        steps: Callable[[], Steps],
        awaits: Awaits,
    ) -> None:
        self._run_id = run_id
        self._node_id = node_id
        self.path = path
        self.workflow = workflow
        self.attempt = attempt
        self.state = state
        self.context = context
        self.correlation_id = correlation_id
        self.idempotency_key = idempotency_key
        self.signal = signal
        self._report = report
        self._steps = steps
        self._awaits = awaits

    @cached_property
    def run_id(self) -> UUID:
        """The run's id."""
        return UUID(self._run_id)

    @cached_property
    def node_id(self) -> UUID:
        """This action's node."""
        return UUID(self._node_id)

    @cached_property
    def step(self) -> Steps:
        """Durable steps. Refused with `RuntimeError` in an `atomic=True` action."""
        return self._steps()

    def progress(self, percent: float, message: str | None = None) -> None:
        """Tells people how far the work is: `percent` from 0 to 100 and, if given, a line of text.

        Returns at once. Values are coalesced to a few a second, the last one always arrives.
        Raises `Aborted` once the handler has been asked to stop, `TypeError` or `ValueError` for
        what is no number from 0 to 100.
        """
        self.signal.raise_if_aborted()
        if isinstance(percent, bool) or not isinstance(percent, int | float):
            raise TypeError(f"percent is a number from 0 to 100, not a {type(percent).__name__}")
        if not 0 <= percent <= 100:  # NaN is not
            raise ValueError(f"percent is a number from 0 to 100, not {reprlib.repr(percent)}")
        text = {} if message is None else {"message": clean_text(message, 1000)}
        self._report("action.progress", float(percent), text)

    def log(self, message: str, **fields: Any) -> None:
        """Adds an entry `log` to the run's history. `fields` are anything that JSON can hold.

        Raises `Aborted` once the handler has been asked to stop, and `PayloadInvalid` for fields
        that cannot be kept, or are larger than `MAX_PAYLOAD_BYTES`.
        """
        self.signal.raise_if_aborted()
        entry = {"message": clean_text(message, 10_000)}
        if fields:
            entry["fields"], _ = payload.encode(fields, "ctx.log", conf.MAX_PAYLOAD_BYTES, hidden=None)
        self._report("log", None, entry)

    @awaited_of_context
    async def aprogress(self, percent: float, message: str | None = None) -> None:
        """`progress`, for `async` handlers."""
        self.progress(percent, message)

    @awaited_of_context
    async def alog(self, message: str, **fields: Any) -> None:
        """`log`, for `async` handlers."""
        self.log(message, **fields)
