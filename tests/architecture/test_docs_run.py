"""What the docs show, runs; where they point to, there is something."""

from __future__ import annotations

import inspect
import io
import re
import shutil
import subprocess
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import SimpleTestCase

from tests.support.shown import ROOT, blocks, execute
from workflow import Pipeline, Workflow, workflows
from workflow.registry import registry

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
ANNOUNCED = (DOCS / "guarantees.md", DOCS / "performance")
"""What the pages may point to before it is there."""
SHOWN = ("README.md", "docs/quickstart.md", "docs/how-to/test-your-workflows.md")


@pytest.fixture
def _registry() -> Iterator[None]:
    with registry.isolated():
        yield


def run_tests(kind: type[unittest.TestCase]) -> None:
    """All tests of a TestCase that a page defines."""
    log = io.StringIO()
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(kind)
    result = unittest.TextTestRunner(log, verbosity=2).run(suite)
    assert result.wasSuccessful(), log.getvalue()
    assert result.testsRun > 0


def use(names: dict[str, Any], known: set[str]) -> None:
    """Does with what a block has defined what Django and the test runners do: registers it, runs it."""
    new = {name: value for name, value in names.items() if name not in known}
    for value in new.values():
        if isinstance(value, Workflow | Pipeline):
            workflows.register(value)
    for name, value in new.items():
        if inspect.isclass(value) and issubclass(value, SimpleTestCase) and value.__module__ == "shown":
            run_tests(value)
        elif name.startswith("test_") and inspect.isfunction(value):
            value()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_registry")
@pytest.mark.filterwarnings("ignore:XDG_RUNTIME_DIR")  # of a library that the embedded server brings along
@pytest.mark.parametrize("name", SHOWN)
def test_the_blocks_of_a_page_run_one_after_another(name: str, tmp_path: Path) -> None:
    settings = {"INSTALLED_APPS": ["django.contrib.auth"], "BASE_DIR": tmp_path}
    names: dict[str, Any] = {"__name__": "shown", **settings}
    found = blocks(ROOT / name)
    assert found
    for line, code in found:
        known = set(names)
        execute(ROOT / name, line, code, names)
        use(names, known)
    if "embedded" in names:  # the server that a page has started
        names["embedded"].cleanup()


@pytest.mark.parametrize("name", SHOWN)
def test_no_block_of_python_is_marked_in_another_way(name: str) -> None:
    """Else a block could drop out of the test above without a word."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert set(re.findall(r"^```(\w*)$", text, re.MULTILINE)) <= {"python", ""}
    assert text.count("```python") == len(blocks(ROOT / name))


def sql(path: Path) -> list[str]:
    return re.findall(r"^```sql\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "statement",
    [pytest.param(one, id=f"{page.stem}-{n}") for page in PAGES for n, one in enumerate(sql(page))],
)
def test_the_statements_of_the_docs_fit_the_tables(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        cursor.fetchall()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_blocks_of_python_in_any_page_can_be_compiled(path: Path) -> None:
    for line, code in blocks(path):
        compile("\n" * (line - 1) + code, str(path), "exec")


READ_THROUGH = ("README.md", "docs/quickstart.md")
"""Pages whose blocks go on from one to the next. Elsewhere one goes on from those beneath its heading alone."""
ANNOUNCED_NAMES = {
    "docs/quickstart.md": ("INSTALLED_APPS", "BASE_DIR"),
    "docs/how-to/deploy.md": ("INSTALLED_APPS",),
    "docs/how-to/test-your-workflows.md": ("SHELF", "book_carrier"),
    "docs/how-to/handle-payments-idempotently.md": ("charge",),
}
"""What the text of a page says is there."""


def parts(path: Path) -> Iterator[tuple[int, str]]:
    """(line, code) of what belongs together, padded so that a line is the page's own."""
    text = path.read_text(encoding="utf-8")
    code: dict[int, str] = {}
    for line, block in blocks(path):
        above = [n for n, head in enumerate(text.splitlines()[: line - 2], 1) if re.match(r"##+ ", head)]
        start = above[-1] if above and str(path.relative_to(ROOT)) not in READ_THROUGH else 0
        before = code.get(start, "")
        code[start] = before + "\n" * (line - 1 - before.count("\n")) + block
    yield from code.items()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_blocks_of_python_use_they_import(path: Path) -> None:
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or "ruff"
    known = ANNOUNCED_NAMES.get(str(path.relative_to(ROOT)), ())
    options = ["--isolated", "--select=F821", "--output-format=concise", f"--stdin-filename={path}.py"]
    if known:
        options += ["--config", f"builtins = {list(known)}"]
    for _, code in parts(path):
        found = subprocess.run(
            [ruff, "check", *options, "-"], input=code, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stdout + found.stderr


def test_migrations_that_pages_name_are_the_newest() -> None:
    newest = max(path.stem for path in (ROOT / "workflow" / "migrations").glob("[0-9]*.py"))
    named = {
        (path.name, migration)
        for path in PAGES
        for migration in re.findall(r'\("workflow", "(\d{4}_\w+)"\)', path.read_text(encoding="utf-8"))
    }
    assert named == {("tenants.md", newest)}


# --- all pages ------------------------------------------------------------------------------------


def anchors(target: Path) -> set[str]:
    """The anchors that a heading gets where Markdown is shown."""
    headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "\r" not in text
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if target in ANNOUNCED and not target.exists():
            continue
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150
