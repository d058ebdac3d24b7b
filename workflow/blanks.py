"""Texts that must not be seen, and how they are found in others: in one pass over each, however many there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

FEW: Final = 16
"""So many are looked for one by one, which is quicker than looking at each place of a text."""
LONG: Final = 64
"""Characters: longer ones are looked for one by one as well. No data can hold many of them, and a place of a text
is compared once for each length that may begin there."""


class Blanks(frozenset[str]):
    """Such texts, none of them empty. What it takes to find them is made once, so hand the same object around."""

    def __new__(cls, texts: Iterable[str] = ()) -> Blanks:
        """``texts`` itself if it is one of these."""
        return texts if isinstance(texts, Blanks) else super().__new__(cls, texts)

    @cached_property
    def _one_by_one(self) -> tuple[str, ...]:
        return tuple(text for text in self if text and (len(self) <= FEW or len(text) > LONG))

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """The lengths of all others by their first characters, the longest first."""
        short = [] if len(self) <= FEW else [text for text in self if text and len(text) <= LONG]
        found: dict[str, set[int]] = {}
        for text in short:
            found.setdefault(text[: self._head], set()).add(len(text))
        return {head: sorted(lengths, reverse=True) for head, lengths in found.items()}

    @cached_property
    def _head(self) -> int:
        return min((len(text) for text in self if text), default=0)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where they stand in ``text``, from (start, end), in no order; what lies within another may be left out."""
        for blank in self._one_by_one:
            start = text.find(blank)
            while start >= 0:
                yield start, start + len(blank)
                start = text.find(blank, start + len(blank))
        if lengths := self._lengths:
            head = self._head
            for start in range(len(text) - head + 1):
                for length in lengths.get(text[start : start + head], ()):
                    if text[start : start + length] in self:
                        yield start, start + length
                        break


def blank(text: str, mask: str, *blanks: Blanks) -> str:
    """``text`` with a ``mask`` for each stretch of it that any of the ``blanks`` cover."""
    spans = sorted(span for each in blanks if each for span in each.spans(text))
    if not spans:
        return text
    parts: list[str] = []
    done = 0
    for start, end in spans:
        if start >= done:
            parts += [text[done:start], mask]
        done = max(done, end)
    return "".join((*parts, text[done:]))
