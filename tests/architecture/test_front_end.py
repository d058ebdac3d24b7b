"""What browsers get from this package: written by hand, from this site alone, and never made of texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workflow import terminal

PACKAGE = Path(__file__).resolve().parents[2] / "workflow"
STATIC = PACKAGE / "static" / "workflow"
SCRIPTS = sorted(STATIC.rglob("*.js"))
FILES = sorted(file for file in STATIC.rglob("*") if file.is_file())
TEMPLATES = sorted((PACKAGE / "templates").rglob("*.html"))
NAMESPACE = "http://www.w3.org/2000/svg"
"""The name of a language, fetched from nowhere."""


def test_there_is_nothing_but_scripts_styles_and_an_icon_as_they_were_written() -> None:
    assert {file.suffix for file in FILES} == {".js", ".css", ".svg"}
    assert not [file.name for file in FILES if ".min." in file.name or ".bundle." in file.name]
    for file in FILES:
        if file.suffix != ".svg":
            text = file.read_text()
            assert max(map(len, text.splitlines())) <= 160, file.name
            assert "sourceMappingURL" not in text, file.name
            assert not re.search(r"@license|\(c\) \d{4}|copyright", text, re.IGNORECASE), file.name


@pytest.mark.parametrize("file", [*FILES, *TEMPLATES], ids=lambda file: file.name)
def test_nothing_comes_from_another_site(file: Path) -> None:
    text = file.read_text().replace(NAMESPACE, "")
    assert not re.search(r"https?://", text)
    assert not re.search(r"""(src|href|url\(|from)\s*=?\s*["']?//""", text)
    if file.suffix == ".js":
        for module in re.findall(
            r"""^(?:import|export)\b.*?["']([^"']+)["'];$|import\("([^"]+)""", text, re.MULTILINE
        ):
            module = module[0] or module[1]
            assert (file.parent / module).is_file(), module


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_no_script_makes_markup_or_code_of_a_text(file: Path) -> None:
    text = file.read_text()
    if file.name == "live.js":  # parts of pages of ours, which the templates have escaped
        text, count = re.subn(r"\btemplate\.innerHTML = html;", "", text)
        assert count == 1
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert name not in text, name


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.name)
def test_every_page_escapes_what_it_shows(file: Path) -> None:
    text = file.read_text()
    assert not re.search(r"\|\s*(safe|safeseq)\b|\{%\s*autoescape\s+off", text)


def test_a_live_page_draws_the_symbols_that_the_server_draws() -> None:
    script = (STATIC / "dashboard" / "run.js").read_text()
    [table] = re.findall(r"const SYMBOLS = \{(.*?)\};", script, re.DOTALL)
    assert dict(re.findall(r'(\w+): "(.)"', table)) == terminal.SYMBOLS


def test_the_readme_shows_the_pages() -> None:
    root = PACKAGE.parent
    shown = re.findall(r'<img alt="[^"]+" src="(docs/images/[^"]+)"', (root / "README.md").read_text())
    assert len(shown) >= 3
    for image in shown:
        assert (root / image).is_file(), image
