"""How much memory this process uses."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")


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
