"""What the figures were measured on: enough to judge them by, no names and no paths."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psycopg

SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
)


def facts(dsn: str) -> dict[str, Any]:
    """The machine, this Python, and the settings of the PostgreSQL server that matter here."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = {name: connection.execute(f"SHOW {name}").fetchone() for name in SETTINGS}  # type: ignore[call-overload]
    return {
        "cpus": os.cpu_count(),
        "cpu": _cpu(),
        "memory_gb": _memory(),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
        "psycopg": psycopg.__version__,
        "postgresql": {name: row[0] if row else None for name, row in found.items()},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _memory() -> int | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)
    except (ValueError, OSError):
        return None
