"""An exception as the plain data that a run's or a node's ``error`` holds.

Recording a failure must never fail: whatever the exception does when it is looked at, ``describe`` returns a
dict that jsonb takes. NUL and lone surrogates are replaced, long texts are cut.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import ValidationError

from workflow.errors import validation_summary

MESSAGE_LIMIT = 10_000  # characters; the start is kept
TRACEBACK_LIMIT = 20_000  # characters; the end is kept, where the error is
TEXT_LIMIT = 10_000  # characters of a log line or a progress message
_FRAMES = 100  # a deep recursion repeats itself; formatting all of it takes long
_CHAIN = 100  # causes, contexts and group members that are looked at
_OURS = str(Path(__file__).parent) + os.sep
_CUT = "..."
_CLASSES = 20  # of an exception and what it derives from


def describe(error: BaseException, code: str, node: str | None) -> dict[str, str | None]:
    """``{"code", "message", "node", "type", "traceback"}``; ``node`` is a path, or None for the run itself.

    The values of a failed validation are left out of message and traceback: they may be secret.
    """
    return {
        "code": str(code),
        "message": _message(error),
        "node": node,
        "type": _type_name(error),
        "traceback": _traceback(error),
    }


class Recorded(Exception):
    """Stands for an exception of a step that was recorded, and whose class cannot be made again: it is not known here
    any more, was defined inside a function, or wants more than a message. Its text is that of the record."""


def described_step(error: BaseException, code: str, node: str | None) -> dict[str, Any]:
    """``describe``, and in ``classes`` what ``rebuilt`` needs: the exception's class, then those it derives from."""
    return {**describe(error, code, node), "classes": _classes(error)}


def rebuilt(described: dict[str, Any]) -> Exception:
    """An exception like the one that was described: of its class, else of the nearest one that it derives from and
    that can be found and made, else `Recorded`.

    Nothing is imported for it and no `__init__` is called: it has its text as its only argument, and no attributes of
    its own.
    """
    message = str(described.get("message") or described.get("type") or "")
    names = described.get("classes")
    for name in names if isinstance(names, list) else [f"builtins:{described.get('type')}"]:
        if (error := _made(_class(str(name)), message)) is not None:
            return error
    return Recorded(f"{described.get('type')}: {message}")


def _classes(error: BaseException) -> list[str]:
    try:
        mro = type(error).__mro__
        known = [cls for cls in mro if issubclass(cls, Exception) and cls is not Exception]
        return [clean_text(f"{cls.__module__}:{cls.__qualname__}", 500) for cls in known[:_CLASSES]]
    except BaseException:
        return []


def _made(found: type[Exception] | None, message: str) -> Exception | None:
    if found is None:
        return None
    try:
        error = found.__new__(found, message)
        error.args = (message,)
        str(error)
    except Exception:  # it wants arguments, or its text is made of attributes
        return None
    return error if isinstance(error, Exception) else None


def _class(name: str) -> type[Exception] | None:
    """The exception's class of this module and qualified name, if that module is loaded and has it."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def told(error: dict[str, Any]) -> str:
    """The message of a described error as a person is told it: that of a KeyError alone is but a key in quotes."""
    message = str(error.get("message") or "")
    return f"KeyError: {message}" if error.get("type") == "KeyError" and message != "KeyError" else message


def clean_text(value: object, limit: int = TEXT_LIMIT) -> str:
    """``value`` as text that PostgreSQL can hold, at most ``limit`` characters of it."""
    return _clean(_cut(_text(value), limit))


def _message(error: BaseException) -> str:
    try:
        text = validation_summary(error) if isinstance(error, ValidationError) else _text(error)
    except BaseException:
        text = ""
    return clean_text(text, MESSAGE_LIMIT) or _type_name(error)


def _type_name(value: object) -> str:
    try:
        return clean_text(type(value).__name__, 255)
    except BaseException:  # a metaclass can do anything
        return "?"


def _text(value: object) -> str:
    if type(value) is str:
        return value
    try:
        text = str(value)
        return text if type(text) is str else str.__str__(text)
    except BaseException as refusal:  # even SystemExit: it is the text of an error that is asked for, no more
        return f"<{_type_name(value)} whose text cannot be shown: {_type_name(refusal)}>"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(limit - len(_CUT), 0)] + _CUT[:limit]


def _clean(text: str) -> str:
    """Without what jsonb refuses; a pair of surrogates becomes the character that it stands for."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _traceback(error: BaseException) -> str:
    try:
        text = _format(error)
    except BaseException:  # the source cannot be read, a __cause__ is a property that raises, ...
        return ""
    text = text.rstrip("\n")
    if len(text) > TRACEBACK_LIMIT:
        text = _CUT + text[len(_CUT) - TRACEBACK_LIMIT :]
    return _clean(text)


def _format(error: BaseException) -> str:
    stack = _users(error.__traceback__)
    if any(isinstance(link, ValidationError) for link in _chain(error)):
        # pydantic's text, which Python would print, repeats the values; so only the stack, and our summary.
        frames = traceback.format_tb(stack, limit=-_FRAMES)
        return "".join([*frames, f"{_type_name(error)}: {_message(error)}"])
    return "".join(traceback.format_exception(type(error), error, stack, limit=-_FRAMES))


def _users(stack: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame outside this package on: how the engine got there says nothing."""
    frame = stack
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OURS):
        frame = frame.tb_next
    return frame or stack


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what led to it and what a group holds; bounded, for a chain may be a circle."""
    left: list[BaseException | None] = [error]
    for _ in range(_CHAIN):
        link = left.pop(0) if left else None
        if link is None:
            continue
        yield link
        left += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            left += link.exceptions
