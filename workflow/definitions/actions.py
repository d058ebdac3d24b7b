"""Action, the unit of work that is retried and compensated, and the decorator that makes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from inspect import signature
from typing import Any, ClassVar, TypeVar, overload

from pydantic import TypeAdapter

from workflow.definitions.handlers import Handler, make_backoff, make_handler, make_optional
from workflow.definitions.rules import (
    MAX_ATTEMPTS,
    Definition,
    Seconds,
    Via,
    check_flag,
    check_integer,
    check_name,
    check_options,
    check_schema,
    check_timeout,
    check_via,
    complete_schema,
    fault,
    guessing,
    quote,
    show,
)

F = TypeVar("F", bound=Callable[..., Any])
Function = Callable[..., Any]
Backoff = Seconds | Callable[[int], Any]


class Action(Definition):
    """One handler with its rules; may stand in any number of stages, and is called like the plain function.

    ``input`` and ``output`` are pydantic models or whatever ``TypeAdapter`` takes. ``timeout`` is for each
    attempt, in seconds or a ``timedelta``; None is no limit. ``attempts`` counts the first one too. For
    ``backoff`` see ``workflow.retry``. Raises ``WorkflowInvalid`` for whatever can't be right.
    """

    kind: ClassVar[str] = "action"

    name: str
    run: Function
    run_handler: Handler
    compensate_handler: Handler | None
    compensate_attempts: int
    input: Any
    input_adapter: TypeAdapter[Any] | None
    output: Any
    output_adapter: TypeAdapter[Any] | None
    attempts: int
    backoff: float | Callable[[int], Any] | None
    timeout: float | None
    via: Via
    when: Function | None
    when_handler: Handler | None
    precheck: Function | None
    precheck_handler: Handler | None
    atomic: bool
    implicit: bool

    @guessing
    def __init__(
        self,
        name: str,
        run: Function,
        *,
        input: Any = None,  # noqa: A002  the contract's name
        output: Any = None,
        attempts: int = 3,
        backoff: Backoff | None = None,
        timeout: Seconds | None = 300,
        via: Via = "inline",
        when: Function | None = None,
        precheck: Function | None = None,
        compensate: Function | None = None,
        compensate_attempts: int = 3,
        atomic: bool = False,
    ) -> None:
        self.name = check_name("Action", name)
        place = self._place
        self.implicit = False
        self._set_run(place, run, attempts, backoff, timeout, compensate, compensate_attempts)
        self.input = input
        self.input_adapter = check_schema(input, place, "input=")
        self.output = output
        self.output_adapter = check_schema(output, place, "output=")
        self.via = check_via(via, place)
        self.when = when
        self.when_handler = make_optional(when, place, "when=", ctx=False)
        self.precheck = precheck
        self.precheck_handler = make_optional(precheck, place, "precheck=", ctx=False)
        self.atomic = check_flag(atomic, place, "atomic=")
        if self.atomic and self.run_handler.is_async:
            raise fault(place, "atomic=True needs a plain function: Django's transactions are not async")
        update_wrapper(self, run, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as a unit test does: no validation, no retry, no run."""
        return self.run(*args, **kwargs)

    def compensate(self, fn: F) -> F:
        """Decorator: ``fn(state[, ctx])`` undoes this action. Sets ``compensate_handler`` and returns ``fn``.

        Raises ``WorkflowInvalid`` when there is one already, and once a workflow with this action is in use
        (registered, or its tree compiled): a compensation that shows up later would undo some runs and not
        others, by the order of imports.
        """
        if self.compensate_handler is not None:
            raise fault(self._place, "has a compensation already, a second one can't be set")
        if self.__dict__.get("_in_use"):
            raise fault(
                self._place, "is in use already; a compensation is set before its workflow is registered"
            )
        self.__dict__["compensate_handler"] = make_handler(fn, self._place, "compensate=", ctx=True)
        return fn

    def seal(self) -> None:
        """Resolve the schemas and let no compensation be set from here on: a workflow with it is in use."""
        complete_schema(self.input_adapter, self._place, "input=")
        complete_schema(self.output_adapter, self._place, "output=")
        self.__dict__["_in_use"] = True

    @property
    def _place(self) -> str:
        return f"Action {quote(self.name)}"

    def _set_run(
        self,
        place: str,
        run: Function,
        attempts: int,
        backoff: Backoff | None,
        timeout: Seconds | None,
        compensate: Function | None,
        compensate_attempts: int,
    ) -> None:
        """What an action of a user and the implicit one of a stage have in common."""
        self.run = run
        self.run_handler = make_handler(run, place, "run=", ctx=True)
        self.attempts = check_integer(attempts, place, "attempts=", MAX_ATTEMPTS)
        self.backoff = make_backoff(backoff, place)
        self.timeout = check_timeout(timeout, place)
        self.compensate_handler = make_optional(compensate, place, "compensate=", ctx=True)
        self.compensate_attempts = check_integer(
            compensate_attempts, place, "compensate_attempts=", MAX_ATTEMPTS
        )


def implicit_action(
    stage: str,
    run: Function,
    *,
    attempts: int,
    backoff: Backoff | None,
    timeout: Seconds | None,
    compensate: Function | None,
) -> Action:
    """The action ``<stage>#run`` that does a stage's ``run=``: inline, without gates or schemas."""
    action = Action.__new__(Action)
    action.name = f"{stage}#run"  # "#" is not open to users, so this meets no name of theirs
    action.implicit = True
    action._set_run(f"Stage {quote(stage)}", run, attempts, backoff, timeout, compensate, 3)
    action.input = action.input_adapter = action.output = action.output_adapter = None
    action.when = action.when_handler = action.precheck = action.precheck_handler = None
    action.via = "inline"
    action.atomic = False
    return action


@overload
def action(fn: Function, /) -> Action: ...


@overload
def action(
    own_name: str | None = None,
    /,
    *,
    name: str | None = None,
    input: Any = None,
    output: Any = None,
    attempts: int = 3,
    backoff: Backoff | None = None,
    timeout: Seconds | None = 300,
    via: Via = "inline",
    when: Function | None = None,
    precheck: Function | None = None,
    compensate: Function | None = None,
    compensate_attempts: int = 3,
    atomic: bool = False,
) -> Callable[[Function], Action]: ...


def action(fn: Function | str | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Make an ``Action`` of a function: ``@action``, or ``@action(attempts=5)`` with options of ``Action``.

    The name defaults to the function's; ``@action("charge")`` and ``@action(name="charge")`` give another. Raises
    ``WorkflowInvalid`` when that is no valid name either.
    """
    if isinstance(fn, str):
        if name is not None:
            raise fault("@action", f"is given two names, {fn!r} and {name!r}")
        fn, name = None, fn
    if fn is None:
        return lambda function: _from_function(function, name, options)
    return _from_function(fn, name, options)


def _from_function(fn: Function, name: str | None, options: dict[str, Any]) -> Action:
    if isinstance(fn, Definition) or not callable(fn):
        raise fault("@action", f"decorates a function, not {show(fn)}")
    if name is None:
        name = getattr(fn, "__name__", "")
        try:
            check_name("Action", name)
        except Exception as error:
            raise fault("@action", f"can't take its name from the function ({error}); give name=") from error
    known = signature(Action.__init__).parameters.keys() - {"self", "name", "run"}
    check_options(f'@action "{name}"', options, known)
    return Action(name, fn, **options)
