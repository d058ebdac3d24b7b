"""Named places around commits where a test can make a process stop, raise or die. Off: one look-up in an empty dict.

`WORKFLOW_FAILPOINTS` in the environment of a worker process arms them: `name=action[@n]`, separated by
commas. `action` is `kill` (SIGKILL to oneself), `stop` (SIGSTOP to oneself), `raise`, `sleep:<seconds>` or
`lose` (as if the connection had died right there); `@n` acts on the n-th hit only, counted from 1, else on each.
Names may end in `*`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from fnmatch import fnmatchcase

import psycopg
from django.db import OperationalError

NAMES = (
    "claim.before",
    "claim.after",
    "claim.opened",
    "settle.before",
    "settle.answer",
    "settle.after",
    "attempt.before",
    "attempt.after",
    "atomic.before-commit",
    "atomic.after-commit",
    "deliver.before",
    "deliver.resolved",
    "release.before",
    "cancel.before-commit",
    "cancel.after-commit",
    "heartbeat.before",
    "sweep.before",
    "sweep.after",
    "relay.rung",
)
"""Where they stand. For `settle.*` the kinds of boundary in the batch follow, as in `settle.before:pending-running`
or `settle.before:job-delete`."""


class Failpoint(Exception):
    """Raised by an armed failpoint."""


class Lost(psycopg.OperationalError, OperationalError):
    """What the driver raises when a connection dies, and what Django makes of it."""


def _parse(text: str) -> dict[str, tuple[str, int | None]]:
    armed: dict[str, tuple[str, int | None]] = {}
    for item in filter(None, text.split(",")):
        name, _, action = item.strip().partition("=")
        action, _, nth = action.partition("@")
        armed[name] = (action, int(nth) if nth else None)
    return armed


armed: dict[str, tuple[str, int | None]] = _parse(os.environ.get("WORKFLOW_FAILPOINTS", ""))
_hits: Counter[str] = Counter()


def arm(text: str) -> None:
    """Arms these instead of whatever was armed before, and counts anew; the empty text disarms all."""
    armed.clear()
    armed.update(_parse(text))
    _hits.clear()


def hit(name: str) -> None:
    """Does what is armed for this place, if anything."""
    if not armed:
        return
    for pattern, (action, nth) in armed.items():
        if fnmatchcase(name, pattern):
            _hits[pattern] += 1
            if nth is None or _hits[pattern] == nth:
                _act(name, action)


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # all threads stop, this one right here
    elif action.startswith("sleep:"):
        time.sleep(float(action.removeprefix("sleep:")))
    elif action == "lose":
        raise Lost(f"failpoint {name}")
    else:
        raise Failpoint(name)
