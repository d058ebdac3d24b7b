"""What people look through and steer by calls the manager: no page, socket, command or API writes a row itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "workflow"
ROOMS = ("admin", "api", "consumers", "dashboard", "management")
FLOOR = ("bulk", "history", "overview", "routing", "terminal", "viewing")
FILES = sorted(
    [file for room in ROOMS for file in (PACKAGE / room).rglob("*.py")]
    + [PACKAGE / f"{name}.py" for name in FLOOR]
)
READING = ("arrays", "dashboard", "lists", "live", "overview")
"""Modules of `sql` that the edges may have statements from."""
NOT_WRITING = ("pipeline", "poolers", "ports", "workers")
"""Modules of `store` that they may use: connections, and who is alive."""
WRITES = re.compile(r"^a?(save|delete|(bulk_|get_or_|update_or_)?create|bulk_update)$")
WRITING_SQL = re.compile(
    r"\b(insert\s+into|update\s+\w+\s+set|delete\s+from|for\s+(no\s+key\s+)?update)\b", re.IGNORECASE
)


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def part_of(imported: str, room: str) -> str | None:
    """The module of that room which is imported, if it is one."""
    found = re.match(rf"workflow\.{room}\.(\w+)", imported)
    return found[1] if found else None


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_an_edge_writes_no_row_itself(file: Path) -> None:
    tree = ast.parse(file.read_text())
    for imported in imports(tree):
        assert part_of(imported, "store") in (None, *NOT_WRITING), imported
        assert part_of(imported, "sql") in (None, *READING), imported
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert not WRITES.match(node.func.attr), ast.unparse(node)
            # A queryset's update names columns; a dict's or a picture's names none of ours.
            named = {keyword.arg for keyword in node.keywords} if node.func.attr == "update" else set()
            assert "status" not in named, ast.unparse(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not WRITING_SQL.search(node.value), node.value


@pytest.mark.parametrize("name", READING)
def test_the_statements_that_edges_have_only_read(name: str) -> None:
    module = import_module(f"workflow.sql.{name}")
    texts = [
        value for key, value in vars(module).items() if isinstance(value, str) and not key.startswith("__")
    ]
    assert texts or name == "arrays"
    for text in texts:
        assert not WRITING_SQL.search(text), text


def test_no_edge_is_forgotten() -> None:
    """The rooms and modules above the manager that are none of the engine's."""
    others = {"tasks", "celery", "worker", "transports", "sweeps", "testing", "apps", "checks"}
    text = (PACKAGE.parent / "setup.cfg").read_text()
    layers = text[text.index("layers =") : text.index("    executor\n")]
    named = set(re.findall(r"\b[a-z_]+\b", layers)) - {"layers"}
    assert named - others == {*ROOMS, *FLOOR}
