"""Draws the diagrams in docs/state-machine.md from the tables in `workflow.states`.

    python docs/make_state_machine.py          writes them into the page
    python docs/make_state_machine.py --check  exits 1 if the page has others

The edges are numbered in the order of the tables: R1, R2, ... for runs, N1, N2, ... for nodes. What the page
says of each edge, who takes it and under which guard, is written by hand under the same number.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "state-machine.md"

Edges = Mapping[str, tuple[str, ...]]
Edge = tuple[str, str, str]
"""(number, status before, status after)"""


def numbered(letter: str, edges: Edges) -> list[Edge]:
    """All edges of one table, with their numbers."""
    pairs = [(source, target) for source, targets in edges.items() for target in targets]
    return [(f"{letter}{index}", *pair) for index, pair in enumerate(pairs, 1)]


def diagram(letter: str, edges: Edges, first: str) -> str:
    """A Mermaid state diagram. A status that nothing leaves points to the end."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {source} --> {target}: {number}" for number, source, target in numbered(letter, edges)]
    lines += [f"    {status} --> [*]" for status, targets in edges.items() if not targets]
    return "\n".join([*lines, "```"])


def diagrams() -> Iterator[tuple[str, str]]:
    """(name of the diagram, its text)"""
    from workflow import states

    yield "runs", diagram("R", states.RUN_EDGES, states.PENDING)
    yield "nodes", diagram("N", states.NODE_EDGES, states.PENDING)


def redrawn(page: str) -> str:
    """The page with its diagrams made anew. Each stands between two comments that bear its name."""
    for name, text in diagrams():
        begin, end = f"<!-- diagram: {name} -->\n", f"\n<!-- end: {name} -->"
        page, found = re.subn(
            re.escape(begin) + ".*?" + re.escape(end),
            lambda _, new=begin + text + end: new,
            page,
            flags=re.DOTALL,
        )
        if found != 1:
            raise SystemExit(f"{PAGE}: {found} places for the diagram {name!r}, there must be one")
    return page


def main(arguments: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    new = redrawn(page)
    if "--check" in arguments:
        return int(page != new)
    PAGE.write_text(new, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
