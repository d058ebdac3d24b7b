"""How long an action waits for its next attempt."""

from __future__ import annotations

import logging
import random
from typing import Any

from workflow import retry
from workflow.conf import conf
from workflow.definitions import Action

logger = logging.getLogger("workflow")


def backoff(action: Action, attempt: int, error: dict[str, Any], path: str) -> tuple[float, dict[str, Any]]:
    """The seconds after this attempt has failed, and its error, which says so if the backoff function is at fault."""
    longest = conf.MAX_BACKOFF
    bound = retry.bound(action.backoff, longest)
    try:
        seconds = retry.delay(action.backoff, attempt, action.via, longest)
    except retry.BackoffInvalid as invalid:
        seconds, bound = invalid.default_delay, longest
        logger.warning("%s: %s; waiting %.1f s", path, invalid, seconds)
        error = {**error, "message": f"{error['message']} [{invalid}]"}
    return retry.jittered(seconds, conf.BACKOFF_JITTER, random.random(), bound), error
