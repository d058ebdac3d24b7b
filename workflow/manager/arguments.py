"""Checks of the commands' arguments: what PostgreSQL would refuse is refused here, as a plain Python error.

Each returns the value in the form that the store takes. A wrong type is ``TypeError``, a wrong value
``ValueError``; a run id that is none is ``RunNotFound``, since no run can have it, and a handle ``TypeError``.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from workflow import states
from workflow.errors import RunNotFound
from workflow.results import RunHandle
from workflow.times import FOR_EVER

MAX_TEXT: Final = 255
MAX_QUEUE: Final = 100
MAX_REASON: Final = 10_000
MAX_PATH: Final = 1_000
"""Above what three names and two dots can make."""
MAX_PRIORITY: Final = 2**31 - 1
MAX_DELAY: Final = FOR_EVER
MAX_DAYS: Final = 36_525
MAX_YEAR: Final = 9_000
"""Python's end with 9999, in any time zone; what the database can hold beyond could not be read."""
MAX_LIMIT: Final = 1_000
MAX_BATCH: Final = 100_000


def run_id(value: object) -> uuid.UUID:
    """A run's id, given as a UUID or as its text. A handle is refused by its name: it is the likeliest mistake."""
    if type(value) is uuid.UUID:
        return value
    try:
        if isinstance(value, uuid.UUID | str):
            return uuid.UUID(str(value))
    except ValueError:
        pass
    if isinstance(value, RunHandle):
        raise TypeError("run_id must be a UUID or its text, not a RunHandle; take handle.run_id")
    raise RunNotFound(f"no run has the id {_show(value)}")


def text(value: object, name: str, limit: int = MAX_TEXT, *, empty: bool = False) -> str:
    """A string that a text column can hold."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {_show(value)}")
    if not value and not empty:
        raise ValueError(f"{name} must not be empty")
    if len(value) > limit:
        raise ValueError(f"{name} has at most {limit:,} characters, this has {len(value):,}")
    if "\0" in value:
        raise ValueError(f"{name} must not hold a NUL character")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name} must not hold half a surrogate pair") from None
    return str(value)


def optional_text(value: object, name: str, limit: int = MAX_TEXT, *, empty: bool = False) -> str | None:
    """``text``, with None for None."""
    return None if value is None else text(value, name, limit, empty=empty)


def texts(values: object, name: str, count: int) -> list[str | None]:
    """One optional text for each of ``count`` runs; None stands for none at all."""
    if values is None:
        return [None] * count
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list with one entry for each input, not {_show(values)}")
    checked = [optional_text(value, f"{name}[{index}]") for index, value in enumerate(values)]
    if len(checked) != count:
        raise ValueError(f"{name} has {len(checked)} entries for {count} inputs")
    return checked


def whole(value: object, name: str, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {_show(value)}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low:,} to {high:,}, not {_show(value)}")
    return value


def priority(value: object) -> int:
    """A job's priority: higher goes first."""
    return whole(value, "priority", -MAX_PRIORITY - 1, MAX_PRIORITY)


def ordinary_queue(value: object) -> str:
    """A queue's name, but not that of the engine's own."""
    name = text(value, "queue", MAX_QUEUE)
    if name == states.EVENTS_QUEUE:
        rule = "delivers events to all runs, can't be paused and takes no run"
        raise ValueError(f"queue must not be the engine's own queue {name}, which {rule}")
    return name


def flag(value: object, name: str) -> bool:
    """True or False, and nothing that is merely true or false enough."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {_show(value)}")
    return value


def seconds(value: object, name: str, most: float = MAX_DELAY) -> float:
    """Seconds, given as a number or a ``timedelta``: finite, 0 or more."""
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or a timedelta, not {_show(value)}")
    else:
        number = _to_float(value)
    return _within(number, name, "seconds", most)


def moment_or_seconds(value: object, name: str) -> tuple[datetime | None, float | None]:
    """(a moment in UTC, None), or (None, seconds from now); two times None for None."""
    if value is None:
        return None, None
    if not isinstance(value, datetime):
        if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
            kinds = "an aware datetime, a timedelta or a number of seconds"
            raise TypeError(f"{name} must be {kinds}, not {_show(value)}")
        return None, seconds(value, name)
    if value.utcoffset() is None:
        raise ValueError(f"{name} must be an aware datetime, not {_show(value)}")
    try:
        moment = value.astimezone(UTC)  # PostgreSQL takes no offset of 16 hours or more
    except OverflowError:  # there it is of the year 0 or 10,000
        first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
        moment = first if value.year == 1 else last
    if moment.year > MAX_YEAR:
        raise ValueError(f"{name} must not be after the year {MAX_YEAR}")
    return moment, None


def days(value: object) -> float:
    """An age in days: finite, 0 or more, fractions allowed."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"days must be a number, not {_show(value)}")
    return _within(_to_float(value), "days", "days", MAX_DAYS)


def status(value: object) -> str | None:
    """A run's status, or None for any."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"status must be a string, not {_show(value)}")
    if value not in states.RUN_STATUSES:
        raise ValueError(f"status must be one of {', '.join(states.RUN_STATUSES)}, not {_show(value)}")
    return value


def cursor(value: object) -> uuid.UUID | None:
    """Where a page ended: the ``next`` of the page before, which is the id of its last run."""
    if value is None or isinstance(value, uuid.UUID):
        return value
    if not isinstance(value, str):
        raise TypeError(f"after must be the next of another page, not {_show(value)}")
    try:
        return uuid.UUID(value)
    except ValueError:
        raise ValueError(f"after must be the next of another page, not {_show(value)}") from None


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond the floats
        return math.inf if value > 0 else -math.inf


def _within(number: float, name: str, unit: str, most: float) -> float:
    if not 0 <= number <= most:  # NaN is not
        raise ValueError(f"{name} must be from 0 to {most:,.0f} {unit}, not {number:g}")
    return number


def _show(value: object) -> str:
    """A short ``repr`` that survives values whose own raises; in ASCII, so that a message can be printed."""
    try:
        shown = ascii(value)
    except Exception:
        return f"a {type(value).__name__}"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
