"""The rules that every part of a definition is held to, and the words in which a breach is reported.

A *place* is the text that a message starts with (``Stage "pay"``); a *rule* is what follows it. Nothing here
knows the shape of a workflow: these are checks of one value each, which return the value in the form in which
definitions keep it.
"""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, Literal, ParamSpec, TypeVar, cast

from pydantic import BaseModel, TypeAdapter

from workflow.errors import WorkflowInvalid

MAX_NAME = 80
MAX_EVENT = 255
MAX_ATTEMPTS = 1_000_000
MAX_NODES = 1_000_000
MAX_VERSION = 2**31 - 1  # the runs' version column is a 32-bit integer
MAX_SECONDS = 100 * 365.25 * 86_400  # a century: far beyond use, and safe to add to any timestamptz

Seconds = int | float | timedelta
Via = Literal["inline", "queue"]
D = TypeVar("D", bound="Definition")
P = ParamSpec("P")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class Definition:
    """Base of everything a user declares. Attributes are written once: threads and workflows share it."""

    kind: ClassVar[str]
    name: str

    if not TYPE_CHECKING:  # declared for the interpreter alone, or type checkers would allow any attribute

        def __setattr__(self, attribute: str, value: object) -> None:
            if attribute in self.__dict__:
                raise AttributeError(f"{self!r} does not change once made: {attribute} is already set")
            object.__setattr__(self, attribute, value)

    def __repr__(self) -> str:
        return f"<{self.kind.capitalize()} {self.__dict__.get('name', '?')}>"


def fault(place: str, rule: str) -> WorkflowInvalid:
    """The error for a breach of ``rule`` at ``place``, to be raised by the caller."""
    return WorkflowInvalid(f"{place}: {rule}")


def show(value: object) -> str:
    """A short ``repr`` for messages, which survives values whose own ``repr`` raises."""
    try:
        return reprlib.repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def quote(text: str) -> str:
    """``text`` in double quotes, shortened and escaped where it must be."""
    return f'"{show(text)[1:-1]}"'


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """``; did you mean "x"?`` for the closest of ``known``, or nothing."""
    close = difflib.get_close_matches(str(value), list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


_ATTEMPTS: Final = frozenset({"retries", "max_retries", "tries"})
"""What other libraries call it, too far from our word to be told from its letters."""


def check_options(place: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse a keyword that is none, as Python does, with the one that may be meant."""
    for option in given:
        if option not in known:
            attempts = option in _ATTEMPTS and "attempts" in known
            hint = '; did you mean "attempts"?' if attempts else did_you_mean(option, known)
            raise TypeError(f"{place} has no option {option}={hint}")


def guessing(init: Callable[Concatenate[D, P], None]) -> Callable[Concatenate[D, P], None]:
    """Around a definition's ``__init__``: an unknown keyword is answered with the one that may be meant."""
    known = signature(init).parameters.keys() - {"self"}

    @wraps(init)
    def checked(self: D, /, *args: P.args, **options: P.kwargs) -> None:
        if not options.keys() <= known:
            named = options.get("name", args[0] if args else None)
            kind = type(self).__name__
            check_options(f"{kind} {quote(named)}" if isinstance(named, str) else kind, options, known)
        init(self, *args, **options)

    return checked


def check_name(kind: str, value: object) -> str:
    """``value`` as a node's or workflow's name."""
    if not isinstance(value, str):
        raise fault(kind, f"the name must be a string, not {show(value)}")
    if not _NAME.fullmatch(value):
        raise fault(
            f"{kind} {quote(value)}",
            "a name is made of lowercase letters, digits, _ and -, and starts with a letter or a digit",
        )
    if len(value) > MAX_NAME:
        raise fault(
            f"{kind} {quote(value)}", f"a name has at most {MAX_NAME} characters, this has {len(value)}"
        )
    return value


def check_text(value: object, place: str, option: str) -> str:
    """``value`` as an event type or state key: a printable string that a PostgreSQL column can hold."""
    if not isinstance(value, str) or not value:
        raise fault(place, f"{option} must be a string that is not empty, not {show(value)}")
    if len(value) > MAX_EVENT:
        raise fault(place, f"{option} has at most {MAX_EVENT} characters, this has {len(value)}")
    if _UNPRINTABLE.search(value):
        raise fault(place, f"{option} holds a control character or a lone surrogate: {show(value)}")
    return value


def check_integer(value: object, place: str, option: str, maximum: int) -> int:
    """``value`` as a whole number from 1 to ``maximum``."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise fault(place, f"{option} must be a whole number from 1 to {maximum:,}, not {show(value)}")
    return value


def check_seconds(value: object, place: str, option: str, *, zero: bool = False) -> float:
    """``value``, seconds or a ``timedelta``, as seconds: above 0 (or 0 if ``zero``) and below a century."""
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise fault(place, f"{option} must be a number of seconds or a timedelta, not {show(value)}")
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except OverflowError:
        seconds = math.inf
    if math.isnan(seconds) or seconds < 0 or (seconds == 0 and not zero):
        bound = "0 or more" if zero else "more than 0"
        raise fault(place, f"{option} must be {bound} seconds, not {show(value)}")
    if seconds > MAX_SECONDS:
        raise fault(place, f"{option} must be below a hundred years, not {show(value)}")
    return seconds


def check_timeout(value: object, place: str, option: str = "timeout=") -> float | None:
    """``value`` as seconds; None, which stands for no limit, stays None."""
    return None if value is None else check_seconds(value, place, option)


def check_choice(value: object, choices: tuple[str, ...], place: str, option: str) -> str:
    """``value`` as one of a few words."""
    if not isinstance(value, str) or value not in choices:
        known = " or ".join(f'"{choice}"' for choice in choices)
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise fault(place, f"{option} must be {known}, not {show(value)}{hint}")
    return value


def check_via(value: object, place: str) -> Via:
    """``value`` as the placement of a stage or an action."""
    return cast(Via, check_choice(value, ("inline", "queue"), place, "via="))


def check_flag(value: object, place: str, option: str) -> bool:
    """``value`` as True or False; other truthy values are more likely slips than intentions."""
    if not isinstance(value, bool):
        raise fault(place, f"{option} must be True or False, not {show(value)}")
    return value


def check_schema(schema: Any, place: str, option: str) -> TypeAdapter[Any] | None:
    """The adapter of a pydantic model or of any other type, None for None.

    Names in it that cannot be resolved yet are allowed here: ``complete_schema`` settles them.
    """
    if schema is None:
        return None
    if isinstance(schema, TypeAdapter):
        return schema
    if isinstance(schema, str):
        raise fault(place, f"{option} takes a type, not its name {show(schema)}")
    if isinstance(schema, BaseModel):  # some releases of pydantic would take it for its class
        raise fault(place, f"{option} takes a model, not an instance of {type(schema).__name__}")
    if isinstance(schema, dict | list | tuple | set):
        raise fault(place, f"{option} takes a pydantic model or a type, not a {type(schema).__name__}")
    try:
        return TypeAdapter(schema)
    except (
        Exception
    ) as error:  # beside its own errors, pydantic raises KeyError and others on what is no type
        raise fault(
            place, f"pydantic can't build a schema from {option} {show(schema)}: {_line(error)}"
        ) from error


def complete_schema(adapter: TypeAdapter[Any] | None, place: str, option: str) -> None:
    """Resolve what was unknown when the adapter was made (a model that a later line defines)."""
    if adapter is None or adapter.pydantic_complete:
        return
    try:
        adapter.rebuild(raise_errors=True)
    except Exception as error:
        raise fault(place, f"pydantic can't build the schema of {option}: {_line(error)}") from error


def _line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
