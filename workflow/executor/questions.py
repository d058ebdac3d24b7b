"""The user code that is asked before a node goes on: `when`, `precheck`, `correlate`, `pick`, `output=`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from workflow import payload
from workflow.conf import conf
from workflow.definitions import Action, Stage, Tree
from workflow.definitions.handlers import Handler
from workflow.errors import FailureCode, PayloadInvalid
from workflow.failures import describe
from workflow.plan import Answered, Ask, Checked, Completed, Fact, Refused, fault
from workflow.plan.faults import Unfit
from workflow.plan.outputs import validated
from workflow.plan.waits import published_text

DEFAULT_PATIENCE = 300.0
"""Seconds that the gates of a stage may take: an action's default timeout."""
Call = Callable[[Handler, Any], Awaitable[Any]]
"""Calls a handler with one argument, wherever the runtime runs such code."""


@dataclass(frozen=True, slots=True)
class PublishedEvent:
    """What `pick(event)` gets."""

    type: str
    payload: Any
    correlation: str | None
    id: UUID
    at: datetime


class Question:
    """Everything that is to be asked about one node before its next transition."""

    def __init__(self, tree: Tree, ask: Ask) -> None:
        node = tree.nodes[ask.ordinal]
        assert isinstance(node.definition, Action | Stage)
        self.ordinal = ask.ordinal
        self.path = node.path
        self._tree = tree
        self._definition = node.definition
        self._ask = ask

    @property
    def patience(self) -> float | None:
        """Seconds that asking may take, None for no limit: as long as the action, or as an action by default."""
        return self._definition.timeout if isinstance(self._definition, Action) else DEFAULT_PATIENCE

    def unanswered(self, seconds: float) -> Fact:
        """The fact of a question that was not answered in time."""
        what = "pick" if self._ask.event is not None else "when, precheck or correlate"
        if self._ask.checks:
            what = "output="
        error = fault(FailureCode.ACTION_TIMEOUT, f"{what} took longer than {seconds:g} s", self.path)
        return Checked(self.ordinal, error=error) if self._ask.checks else Refused(self.ordinal, error)

    async def answer(self, call: Call) -> Fact:
        """Asks; whatever user code raises fails the node and nobody else."""
        if self._ask.checks:
            return await self._check(call)
        if self._ask.event is not None:
            return await self._pick(call, self._ask.event)
        code = FailureCode.ACTION_FAILED
        try:
            when = self._definition.when_handler
            if when is not None and not await call(when, payload.copy_json(self._ask.state)):
                return Answered(self.ordinal, go=False)
            precheck = self._definition.precheck_handler
            if precheck is not None:
                code = FailureCode.PRECHECK_FAILED
                await call(precheck, payload.copy_json(self._ask.state))
                code = FailureCode.ACTION_FAILED
            return Answered(self.ordinal, go=True, correlation=await self._correlation(call))
        except BaseException as error:
            return Refused(self.ordinal, describe(error, code, self.path))

    async def _check(self, call: Call) -> Fact:
        def check(value: Any) -> tuple[Any, str]:
            return validated(value, self._tree, self.ordinal)

        try:
            value, text = await call(Handler(check, is_async=False, wants_ctx=False), self._ask.value)
            return Checked(self.ordinal, value, text)
        except Unfit as unfit:
            return Checked(self.ordinal, error=unfit.error)
        except BaseException as error:
            return Checked(self.ordinal, error=describe(error, FailureCode.OUTPUT_INVALID, self.path))

    async def _correlation(self, call: Call) -> str | None:
        wait = self._definition.wait_for if isinstance(self._definition, Stage) else None
        if wait is None or wait.correlate_handler is None:
            return None
        value = await call(wait.correlate_handler, payload.copy_json(self._ask.state))
        if not isinstance(value, str):
            raise TypeError(
                f"correlate returned a value of type {type(value).__name__}; it must return a string"
            )
        return published_text(value, "what correlate returns")

    async def _pick(self, call: Call, event: dict[str, Any]) -> Fact:
        assert isinstance(self._definition, Stage) and self._definition.wait_for is not None
        handler = self._definition.wait_for.pick_handler
        assert handler is not None
        picked = PublishedEvent(
            event["type"],
            payload.copy_json(event["payload"]),
            event["correlation"],
            UUID(event["id"]),
            datetime.fromisoformat(event["at"]),
        )
        code = FailureCode.ACTION_FAILED
        try:
            value = await call(handler, picked)
            if value is None:
                return Completed(self.ordinal, None, None)
            return Completed(
                self.ordinal, *payload.encode(value, f"{self.path} pick", conf.MAX_PAYLOAD_BYTES)
            )
        except BaseException as error:
            if isinstance(error, PayloadInvalid):
                code = FailureCode.PAYLOAD_INVALID
            return Refused(self.ordinal, describe(error, code, self.path))
