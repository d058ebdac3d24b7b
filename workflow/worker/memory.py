"""How much memory this process uses, and how often it is looked through for garbage."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_STATM = Path("/proc/self/statm")
THRESHOLDS: Final = (10_000, 20, 50)
"""How many more objects make Python look through the young ones, and how many such looks through the older ones."""


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Has Python look for cyclic garbage less often: a hundred units in hand make it look all the time, for nothing.

    That took a fifth of a worker's CPU. What was loaded before is not looked at any more. Thresholds that the project
    has set itself stand.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < THRESHOLDS[0] or not gc.isenabled():  # 0: never
        yield
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def resident() -> int:
    """Bytes of memory that are resident; where the system does not tell, the most that ever were; 0 if unknown."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
