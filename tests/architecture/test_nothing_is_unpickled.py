"""What the database holds is data: nothing in it is ever unpickled, evaluated or imported."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "workflow"
DANGEROUS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__", "literal_eval"}
IMPORTERS = {
    "workflow/__init__.py": "its own modules, when they are first asked for",
    "workflow/consumers/access.py": "the session engine, which a setting names",
    "workflow/management/finder.py": "the commands, whose file names have no colon",
    "workflow/registry.py": "each app's workflows.py",
    "workflow/checks.py": "the transport, which a setting names",
    "workflow/transports/postgres.py": "the transport, which a setting names",
    "workflow/viewing.py": "the hook that decides who may see a run, which a setting names",
}
"""Who may import by name, and what: never a name that a row gave."""


@pytest.mark.parametrize(
    "file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE))
)
def test_nothing_that_was_stored_becomes_code(file: Path) -> None:
    place = str(file.relative_to(PACKAGE.parent))
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name.split(".")[0] for alias in node.names}
            if isinstance(node, ast.ImportFrom) and node.module:
                names = {node.module.split(".")[0]}
            assert not names & DANGEROUS, ast.unparse(node)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            of_re = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "re"
            assert called not in CALLS or of_re, ast.unparse(node)
            assert called not in ("import_module", "import_string") or place in IMPORTERS, ast.unparse(node)
