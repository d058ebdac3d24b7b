"""Jobs and results that must not count, counted by why.

`orphan`: the run no longer goes on, before user code (the job is dropped) or after it (what it returned is
discarded). `race`: the run cannot be seen yet, the job comes back with a backoff. `version`: this build does
not serve the run's version, the job comes back and its attempt with it. `lease-lost`: another worker has the
job, what was returned here is discarded.
"""

from __future__ import annotations

import logging
from collections import Counter

logger = logging.getLogger("workflow")

ghosts: Counter[str] = Counter()
"""How many this process has met."""


def met(reason: str, job_id: str, run_id: str | None, what: str) -> None:
    """Counts one, and says so in one line."""
    ghosts[reason] += 1
    logger.info("ghost job %s of run %s: %s, %s", job_id, run_id, reason, what)
