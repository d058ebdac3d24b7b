"""Stage, the checkpoint between actions, and WaitFor, the event that a stage waits for instead of acting."""

from __future__ import annotations

from typing import Any, ClassVar, Final, cast

from pydantic import TypeAdapter

from workflow.definitions.actions import Action, Backoff, Function, implicit_action
from workflow.definitions.groups import Groups, make_groups
from workflow.definitions.handlers import Handler, make_handler, make_optional
from workflow.definitions.rules import (
    Definition,
    Seconds,
    Via,
    check_name,
    check_schema,
    check_text,
    check_timeout,
    check_via,
    complete_schema,
    fault,
    guessing,
    quote,
    show,
)
from workflow.definitions.schemas import runs_code


class _Unset:
    def __repr__(self) -> str:
        return "<default>"


_UNSET: Final[Any] = _Unset()
_RUN_DEFAULTS: Final = {"attempts": 3, "backoff": None, "timeout": 300, "compensate": None}


class WaitFor(Definition):
    """The event that ends a wait: of exactly the type ``event``, and of one correlation with ``correlate``.

    ``timeout`` is in seconds or a ``timedelta``, a day by default; None is no limit. ``pick(event)`` gives
    the stage's output, by default the payload. ``correlate`` is a key of the state, or a plain function of
    the state that returns a string.
    """

    kind: ClassVar[str] = "wait"

    event: str
    timeout: float | None
    pick: Function | None
    pick_handler: Handler | None
    correlate: str | Function | None
    correlate_handler: Handler | None  # None too when correlate is a key of the state

    @guessing
    def __init__(
        self,
        event: str,
        *,
        timeout: Seconds | None = 86_400,
        pick: Function | None = None,
        correlate: str | Function | None = None,
    ) -> None:
        self.event = check_text(event, "WaitFor", "event")
        place = f"WaitFor {quote(event)}"
        self.timeout = check_timeout(timeout, place)
        self.pick = pick
        self.pick_handler = make_optional(pick, place, "pick=", ctx=False)
        self.correlate = correlate
        self.correlate_handler = _correlate_handler(correlate, place)

    def __repr__(self) -> str:
        return f"<WaitFor {self.__dict__.get('event', '?')}>"


def _correlate_handler(correlate: object, place: str) -> Handler | None:
    if correlate is None:
        return None
    if isinstance(correlate, str):
        check_text(correlate, place, "correlate=")
        return None
    if not callable(correlate):
        raise fault(
            place, f"correlate= must be a state key or a function of the state, not {show(correlate)}"
        )
    handler = make_handler(correlate, place, "correlate=", ctx=False)
    if handler.is_async:
        raise fault(place, "correlate= must be a plain function: it is asked while the wait parks")
    return handler


class Stage(Definition):
    """A checkpoint: its actions in order (or in groups), one ``run`` of its own, or a wait for an event.

    Exactly one of ``actions``, ``run`` and ``wait_for`` is given. ``attempts``, ``backoff``, ``timeout`` and
    ``compensate`` go with ``run`` alone and mean what they mean to an ``Action``. ``output`` checks the merge
    of the outputs. Raises ``WorkflowInvalid``. One stage may stand in any number of pipelines.
    """

    kind: ClassVar[str] = "stage"

    name: str
    items: Groups[Action]
    wait_for: WaitFor | None
    output: Any
    output_adapter: TypeAdapter[Any] | None
    output_runs_code: bool
    """Whether `output=` may call functions of the user's."""
    via: Via
    when: Function | None
    when_handler: Handler | None
    precheck: Function | None
    precheck_handler: Handler | None
    size: int

    @guessing
    def __init__(
        self,
        name: str,
        *,
        actions: Any = None,
        run: Function | None = None,
        wait_for: WaitFor | None = None,
        output: Any = None,
        via: Via = "inline",
        when: Function | None = None,
        precheck: Function | None = None,
        attempts: int = _UNSET,
        backoff: Backoff | None = _UNSET,
        timeout: Seconds | None = _UNSET,
        compensate: Function | None = _UNSET,
    ) -> None:
        self.name = check_name("Stage", name)
        place = self._place
        options = {"attempts": attempts, "backoff": backoff, "timeout": timeout, "compensate": compensate}
        given = {option: value for option, value in options.items() if value is not _UNSET}
        self.wait_for = _check_body(place, actions, run, wait_for, given)
        self.items = _make_items(self.name, place, actions, run, given)
        self.output = output
        self.output_adapter = check_schema(output, place, "output=")
        self.output_runs_code = runs_code(self.output_adapter)
        self.via = check_via(via, place)
        self.when = when
        self.when_handler = make_optional(when, place, "when=", ctx=False)
        self.precheck = precheck
        self.precheck_handler = make_optional(precheck, place, "precheck=", ctx=False)
        self.size = 1 + sum(map(len, self.items))

    @property
    def _place(self) -> str:
        return f"Stage {quote(self.name)}"

    def seal(self) -> None:
        """Resolve the schemas of the stage and of its actions: a workflow with this stage is in use."""
        if self.output_adapter is not None and not self.output_adapter.pydantic_complete:
            complete_schema(self.output_adapter, self._place, "output=")
            self.__dict__["output_runs_code"] = runs_code(self.output_adapter)
        for group in self.items:
            for action in group:
                action.seal()


def _check_body(place: str, actions: Any, run: Any, wait_for: Any, given: dict[str, Any]) -> WaitFor | None:
    """Refuse a stage with less or more than one body, or with options that only a ``run`` can have."""
    bodies = {"actions=": actions, "run=": run, "wait_for=": wait_for}
    present = [option for option, value in bodies.items() if value is not None]
    if len(present) != 1:
        found = " and ".join(present) if present else "none of them"
        raise fault(place, f"takes exactly one of actions=, run= and wait_for=, and was given {found}")
    if given and run is None:
        options = ", ".join(f"{option}=" for option in given)
        why = "each action has its own" if actions is not None else "a wait has no use for it"
        raise fault(place, f"{options} can only be given with run=: {why}")
    if wait_for is not None and not isinstance(wait_for, WaitFor):
        raise fault(place, f"wait_for= takes a WaitFor(...), not {show(wait_for)}")
    return wait_for


def _make_items(name: str, place: str, actions: Any, run: Any, given: dict[str, Any]) -> Groups[Action]:
    if run is not None:
        return ((implicit_action(name, run, **cast(Any, _RUN_DEFAULTS | given)),),)
    return () if actions is None else make_groups(actions, Action, place, "actions=")
