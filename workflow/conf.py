"""The ``WORKFLOW`` setting: what each key means, its default and its bounds.

Values are read at each access, so ``override_settings(WORKFLOW={...})`` works at any time. An access does not
judge: ``validate()`` does, on behalf of ``manage.py check``.
"""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

# A century: far beyond use, and safe to add to any timestamptz.
MAX_SECONDS = 100 * 365.25 * 86_400
# What PostgreSQL can hold in one jsonb value.
MAX_JSONB_BYTES = 2**28 - 1


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of ``WORKFLOW``.

    ``unit`` decides the type: "seconds" (a number or a ``timedelta``), "days" (a number), "bytes" (a whole
    number) or "function" (a dotted path, a callable or None); with "" the default tells: a number, a whole number, a
    string, or a list of strings. ``default`` is a value, or a function of ``Conf`` for one that follows from other
    settings; ``longest`` is one, too, up to which what is given counts.
    """

    name: str
    default: Any
    unit: str
    minimum: float | None
    doc: str
    maximum: float | None = None
    longest: Callable[[Conf], float] | None = None

    def fault(self, value: object) -> str | None:
        """What is wrong with ``value``, or None."""
        if self.unit == "function":
            return None if value is None or callable(value) else _path_fault(value)
        if self.unit in {"seconds", "days"} or isinstance(self.default, float):
            return self._number_fault(value)
        if isinstance(self.default, int):
            if isinstance(value, bool) or not isinstance(value, int):
                return f"must be a whole number, not {_show(value)}"
            return self._bounds_fault(value)
        if isinstance(self.default, str):
            return None if isinstance(value, str) and value else f"must be a string, not {_show(value)}"
        if isinstance(value, list | tuple | set | frozenset) and all(isinstance(key, str) for key in value):
            return None
        return f"must be a list of strings, not {_show(value)}"

    def _number_fault(self, value: object) -> str | None:
        if isinstance(value, timedelta) and self.unit == "seconds":
            return self._bounds_fault(value.total_seconds())
        if isinstance(value, bool) or not isinstance(value, int | float):
            kinds = {"seconds": "a number of seconds or a timedelta", "days": "a number of days"}
            return f"must be {kinds.get(self.unit, 'a number')}, not {_show(value)}"
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            return "must be a finite number"
        return self._bounds_fault(number)

    def _bounds_fault(self, value: float) -> str | None:
        unit = f" {self.unit}" if self.unit else ""
        if self.minimum is not None and value < self.minimum:
            return f"must be at least {self.minimum:g}{unit}, not {_number(value)}"
        if self.maximum is not None and value > self.maximum:
            return f"must be at most {self.maximum:.0f}{unit}, not {_number(value)}"
        return None


def _seconds(
    name: str,
    default: float | Callable[[Conf], float],
    minimum: float,
    doc: str,
    longest: Callable[[Conf], float] | None = None,
) -> Setting:
    return Setting(name, default, "seconds", minimum, doc, MAX_SECONDS, longest)


def _longest_heartbeat(conf: Conf) -> float:
    # Two renewals in a row may come late or be lost before a lease counts as stale.
    return conf.STALE_LEASE_THRESHOLD / 3


def _heartbeat_interval(conf: Conf) -> float:
    return min(60, _longest_heartbeat(conf))


def _stuck_threshold(conf: Conf) -> float:
    return max(3 * conf.STALE_LEASE_THRESHOLD, 300)


SETTINGS: tuple[Setting, ...] = (
    Setting("DATABASE", "default", "", None, "Alias of the database that holds runs, jobs and events."),
    Setting("CONCURRENCY", 100, "", 1, "Units that one worker process has in hand at once.", 100_000),
    Setting("THREADS", 16, "", 1, "Plain (not async) handlers that one worker process runs at once.", 10_000),
    _seconds("POLL_INTERVAL", 1.0, 0.01, "How often an idle worker looks for due jobs, woken or not."),
    _seconds(
        "HEARTBEAT_INTERVAL",
        _heartbeat_interval,
        0.01,
        "How often a worker renews its leases: three times in STALE_LEASE_THRESHOLD at least; 60 by default.",
        _longest_heartbeat,
    ),
    _seconds(
        "STALE_LEASE_THRESHOLD",
        300,
        0.03,
        "A lease that was not renewed for this long is given to another worker.",
    ),
    _seconds(
        "JOB_ABSOLUTE_TIMEOUT",
        3600,
        0,
        "A job held for this long fails, heartbeats or not; 0 disables the cap.",
    ),
    _seconds(
        "UNIT_TIMEOUT", 1800, 0.01, "How long one claimed unit may run before the action in hand is expired."
    ),
    _seconds(
        "STUCK_THRESHOLD",
        _stuck_threshold,
        0.01,
        "A live run in which nothing happens, or can happen, for this long is failed; by default three times "
        "STALE_LEASE_THRESHOLD, and 300 at least.",
    ),
    _seconds(
        "SWEEP_INTERVAL", 15, 0.01, "How often a worker looks for stale leases, expired waits and stuck runs."
    ),
    _seconds("SHUTDOWN_GRACE", 30, 0, "How long a stopping worker waits for the handlers that it runs."),
    _seconds(
        "MAX_BACKOFF",
        3600,
        0.01,
        "The longest wait between two attempts that the default backoff comes to; what is named is kept.",
    ),
    Setting(
        "BACKOFF_JITTER",
        0.0,
        "",
        0,
        "The part of each backoff by which it is lengthened or shortened at random.",
        1,
    ),
    Setting("RETENTION_DAYS", 7, "days", 0, "Age at which workflow:prune drops finished runs.", 36_525),
    Setting(
        "MAX_PAYLOAD_BYTES",
        1_048_576,
        "bytes",
        1,
        "Largest input, context, output, event payload, step result or fields of a log line, as JSON in UTF-8.",
        MAX_JSONB_BYTES,
    ),
    Setting("REDACT", [], "", None, "Keys whose values are masked wherever a person looks."),
    Setting(
        "CAN_VIEW_RUN",
        None,
        "function",
        None,
        "(user, run) -> bool: which runs a user with the permission may see.",
    ),
    Setting("TRANSPORT", "workflow.transports.postgres", "", None, "Module that tells workers of due jobs."),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


class Conf:
    """The settings as attributes; durations are numbers of seconds, also where a ``timedelta`` was given."""

    DATABASE: str
    CONCURRENCY: int
    THREADS: int
    POLL_INTERVAL: float
    HEARTBEAT_INTERVAL: float
    STALE_LEASE_THRESHOLD: float
    JOB_ABSOLUTE_TIMEOUT: float
    UNIT_TIMEOUT: float
    STUCK_THRESHOLD: float
    SWEEP_INTERVAL: float
    SHUTDOWN_GRACE: float
    MAX_BACKOFF: float
    BACKOFF_JITTER: float
    RETENTION_DAYS: float
    MAX_PAYLOAD_BYTES: int
    REDACT: list[str]
    CAN_VIEW_RUN: str | Callable[[Any, Any], bool] | None
    TRANSPORT: str

    def __getattr__(self, name: str) -> Any:
        setting = _BY_NAME.get(name)
        if setting is None:
            raise AttributeError(f"WORKFLOW has no setting {name!r}{did_you_mean(name)}")
        given = _given()
        if name in given:
            value = _plain(given[name])
            return value if setting.longest is None else min(value, setting.longest(self))
        default = setting.default
        if callable(default):
            return default(self)
        return list(default) if isinstance(default, list) else default


conf = Conf()


def validate() -> list[tuple[str, str]]:
    """All that is wrong with ``settings.WORKFLOW``, as (key, message); "WORKFLOW" stands for the whole."""
    given = getattr(settings, "WORKFLOW", {})
    if not isinstance(given, Mapping):
        return [("WORKFLOW", f"must be a dict, not {_show(given)}")]
    found = []
    for key, value in given.items():
        setting = _BY_NAME.get(key)
        if setting is None:
            found.append((str(key), f"is no setting of WORKFLOW{did_you_mean(key)}"))
        elif fault := setting.fault(value):
            found.append((key, fault))
    asked = given.get("HEARTBEAT_INTERVAL")
    if asked is not None and not {"HEARTBEAT_INTERVAL", "STALE_LEASE_THRESHOLD"} & {key for key, _ in found}:
        # A little too rare is put right at each access; this rare is a mistake about what a lease is.
        heartbeat, half = _plain(asked), conf.STALE_LEASE_THRESHOLD / 2
        if heartbeat >= half:
            rule = f"must be below half of STALE_LEASE_THRESHOLD, {half:g} seconds"
            found.append(("HEARTBEAT_INTERVAL", f"{rule}, not {heartbeat:g}"))
    return found


def did_you_mean(name: object) -> str:
    """``; did you mean X?`` for the setting whose name is closest, or nothing."""
    close = difflib.get_close_matches(str(name).upper(), _BY_NAME, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _given() -> Mapping[str, Any]:
    given = getattr(settings, "WORKFLOW", {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"WORKFLOW must be a dict, not {_show(given)}")
    return given


def _plain(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _path_fault(value: object) -> str | None:
    if isinstance(value, str) and all(part.isidentifier() for part in value.split(".")) and "." in value:
        return None
    return f"must be a dotted path, a function or None, not {_show(value)}"


def _number(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e15 else "one so large"


def _show(value: object) -> str:
    if value is None:
        return "None"
    try:
        return f"the {type(value).__name__} {reprlib.repr(value)}"
    except Exception:  # a number too long to print, an object whose repr raises
        return f"a {type(value).__name__}"
