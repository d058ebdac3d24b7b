"""The blocks of Python that the pages of the docs show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def blocks(path: Path) -> list[tuple[int, str]]:
    """(line, code) of each block marked as Python."""
    text = path.read_text(encoding="utf-8")
    return [
        (text[: found.start(1)].count("\n") + 1, found[1])
        for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def execute(path: Path, line: int, code: str, names: dict[str, Any]) -> None:
    """Runs a block. Padded, so that a traceback names the page's own line."""
    exec(compile("\n" * (line - 1) + code, str(path), "exec"), names)


def shown(name: str, *headings: str, **given: Any) -> dict[str, Any]:
    """What the blocks of a page define, or those directly beneath these headings. `given` is there before."""
    path = ROOT / name
    names: dict[str, Any] = {"__name__": "shown", **given}
    chosen = [(line, code) for line, code in blocks(path) if not headings or _heading(path, line) in headings]
    assert chosen, f"{name} shows no Python under {headings}"
    for line, code in chosen:
        execute(path, line, code, names)
    return names


def _heading(path: Path, line: int) -> str:
    """The heading above a line that begins a block."""
    before = "\n".join(path.read_text(encoding="utf-8").splitlines()[: line - 2])
    prose = re.sub(r"^```\w+\n.*?^```$", "", before, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.*)$", prose, re.MULTILINE)[-1]
