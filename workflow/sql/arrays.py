"""PostgreSQL array literals, built by joining strings: what a driver does for each element in Python
costs more than the statement itself when a batch has a few hundred rows."""

from __future__ import annotations

from collections.abc import Iterable


def words(values: Iterable[str]) -> str:
    """UUIDs and names of the engine's own: no NULL among them, and nothing that needs quoting."""
    return "{" + ",".join(values) + "}"


def plain(values: Iterable[object]) -> str:
    """Numbers, booleans, UUIDs and identifiers: nothing that needs quoting. None is NULL."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def texts(values: Iterable[str | None]) -> str:
    """Any text. None is NULL."""
    return (
        "{"
        + ",".join(
            [
                "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
                for value in values
            ]
        )
        + "}"
    )
