"""docs/performance/results.json: one file for all that was measured, each command writes its own part of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "docs" / "performance" / "results.json"


def read(path: Path = FILE) -> dict[str, Any]:
    """What was measured so far; nothing when the file is not there."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(part: str, measured: dict[str, Any], machine: dict[str, Any], path: Path = FILE) -> None:
    """Puts one command's figures into the file, with the day and the machine that they are of."""
    everything = read(path)
    everything[part] = {
        "measured_on": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine,
        **rounded(measured),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n")


def rounded(value: Any) -> Any:
    """Floats to four digits that mean something."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
