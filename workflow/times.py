"""Times with their zones, also where ``USE_TZ`` is False and Django gives them without."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import connections
from django.utils import timezone
from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)

FOR_EVER: Final = 10 * 365.25 * 86_400
"""Seconds: the longest that anything waits. What has no end is looked at again after that."""

Seconds = float | timedelta


def checked_seconds(name: str, value: Seconds, *, zero: bool) -> float:
    """As a number; `zero`: whether it may be 0. Raises `TypeError` or `ValueError`, which call it by its `name`."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a number of seconds or a timedelta, not {value!r}")
    if not 0 <= value <= FOR_EVER or (value == 0 and not zero):  # NaN is not
        bounds = f"from 0 to {FOR_EVER:,.0f}" if zero else f"above 0, up to {FOR_EVER:,.0f}"
        raise ValueError(f"{name} is a number of seconds {bounds}, not {value!r}")
    return float(value)


def checked_wait(key: object, interval: Seconds, timeout: Seconds | None) -> tuple[float, float | None]:
    """The same for both of the wait of a step."""
    seconds = checked_seconds(f"step {key!r}: interval", interval, zero=False)
    return seconds, None if timeout is None else checked_seconds(
        f"step {key!r}: timeout", timeout, zero=False
    )


def aware(at: datetime, using: str) -> datetime:
    """A time as it was read on that connection. A naive one is in the connection's zone."""
    if timezone.is_naive(at):  # USE_TZ=False
        return timezone.make_aware(at, ZoneInfo(connections[using].timezone_name))
    return at


def zoned(model: Model, using: str) -> Model:
    """The model with all its times in UTC, for whoever reads it elsewhere and knows nothing of our settings."""
    if settings.USE_TZ and connections[using].timezone_name == "UTC":
        return model  # as it is already
    zoned_model: Model = _zoned(model, using)
    return zoned_model


def _zoned(value: Any, using: str) -> Any:
    if isinstance(value, datetime):
        return aware(value, using).astimezone(UTC)
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _zoned(part, using) for name, part in value})
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return [_zoned(part, using) for part in value]
    return value
