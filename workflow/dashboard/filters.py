"""What the list of runs can be asked for. Only these names are known; whatever else is asked is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from django.http import QueryDict

from workflow import ids, states

PARAMETERS: Final = ("workflow", "status", "correlation", "age", "q", "older", "newer", "fragment")
LIVE: Final = "live"
AGES: Final[Mapping[str, tuple[str, timedelta, bool]]] = {
    "1h": ("started in the last hour", timedelta(hours=1), True),
    "1d": ("started in the last day", timedelta(days=1), True),
    "7d": ("started in the last week", timedelta(days=7), True),
    "older-1h": ("older than an hour", timedelta(hours=1), False),
    "older-1d": ("older than a day", timedelta(days=1), False),
}
"""By key: what it says, how long ago, and whether later runs are meant or earlier ones."""
MOST: Final = 255
"""Characters of any value."""

_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)
_PREFIX: Final = re.compile(r"[0-9a-f-]{4,36}", re.IGNORECASE)


class BadFilter(Exception):
    """A name that is not known, or a value that can't be right; the text says which."""


@dataclass(slots=True)
class Filters:
    """What was asked. `given` are the values as they came, without the place in the list."""

    given: dict[str, str] = field(default_factory=dict)
    older: UUID | None = None
    newer: UUID | None = None

    @property
    def narrow(self) -> bool:
        """Whether anything but a place was asked for."""
        return bool(self.given)

    def query(self, **place: object) -> str:
        """The query string of the same list at another place."""
        return urlencode({**self.given, **{k: v for k, v in place.items() if v is not None}})

    def conditions(self, now: datetime) -> tuple[list[str], dict[str, Any]]:
        """The names of the conditions that apply, and their parameters."""
        names: list[str] = []
        parameters: dict[str, Any] = {}
        for key, value in self.given.items():
            if key == "age":
                _, ago, later = AGES[value]
                names.append("since" if later else "until")
                parameters[names[-1]] = lowest_id(now - ago)
            elif key == "q":
                names.append(_add_text(value, parameters))
            elif key == "status" and value == LIVE:
                names.append("live")
            else:
                names.append(key)
                parameters[key] = value
        for name, place in (("older", self.older), ("newer", self.newer)):
            if place is not None:
                names.append(name)
                parameters[name] = place
        return names, parameters


def parse(query: QueryDict) -> Filters:
    """Reads a query string. Raises `BadFilter`."""
    unknown = set(query) - set(PARAMETERS)
    if unknown:
        raise BadFilter(f"unknown filter: {', '.join(sorted(unknown))}")
    filters = Filters()
    for name in PARAMETERS:
        value = _single(query, name)
        if not value or name == "fragment":
            continue
        if name in ("older", "newer"):
            setattr(filters, name, _place(value, name))
        else:
            _check(name, value)
            filters.given[name] = value
    if filters.older and filters.newer:
        raise BadFilter("older and newer can't be asked together")
    return filters


def _single(query: QueryDict, name: str) -> str:
    values = query.getlist(name)
    if len(values) > 1:
        raise BadFilter(f"{name} is given {len(values)} times")
    value = values[0].strip() if values else ""
    if len(value) > MOST or "\0" in value:
        raise BadFilter(f"{name} is too long, or holds a NUL character")
    return value


def _check(name: str, value: str) -> None:
    choices: Iterable[str] | None = None
    if name == "status":
        choices = (LIVE, *states.RUN_STATUSES)
    elif name == "age":
        choices = AGES
    if choices is not None and value not in choices:
        raise BadFilter(f"{name} must be one of {', '.join(choices)}")


def _place(value: str, name: str) -> UUID:
    try:
        return UUID(value)
    except ValueError:
        raise BadFilter(f"{name} must be the id of a run") from None


def _add_text(value: str, parameters: dict[str, Any]) -> str:
    """Text is a correlation id or an idempotency key, or a run's or node's id, whole, within other words, or its
    beginning.
    """
    parameters["text"] = value
    if whole := _UUID.search(value):
        run_id = ids.run_of(UUID(whole[0]))
        parameters.update(low=run_id, high=run_id)
        return "id"
    digits = value.replace("-", "")
    if _PREFIX.fullmatch(value) and 0 < len(digits) <= 32:
        parameters.update(low=UUID(digits.ljust(32, "0")), high=UUID(digits.ljust(32, "f")))
        return "id"
    return "words"


def lowest_id(moment: datetime) -> UUID:
    """No run that was made at that moment or later has a lower id; nearly all that were made before have one."""
    return UUID(int=max(int(moment.astimezone(UTC).timestamp() * 1000), 0) << 80)
