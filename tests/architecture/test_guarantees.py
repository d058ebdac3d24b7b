"""docs/guarantees.md: each sentence names the tests that hold it, and those tests are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
TOPICS = (
    "Dispatch and transactions",
    "Idempotency keys",
    "Exactly once, and at least once",
    "Boundaries and group commit",
    "Leases and heartbeats",
    "Limits",
    "Durable steps",
    "Compensation",
    "Cancel",
    "Paused queues",
    "Ghosts and versions",
    "Waits and events",
    "Stuck runs and sweeps",
    "Stopping",
    "Celery workers",
    "When the database is away",
    "History",
    "Not promised",
)


def sentences() -> list[tuple[str, list[str]]]:
    """Each sentence of the tables, with the tests that it names."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    rows = [line.strip("|").rpartition(" | ") for line in lines]
    return [
        (text.strip(), re.findall(r"`([^`]+)`", named))
        for text, _, named in rows
        if text.strip() and "held by" not in named
    ]


@cache
def known_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(each.name for each in functions if each.name.startswith("test_"))


def test_every_topic_is_there_and_nothing_is_said_outside_of_the_tables() -> None:
    intro, *sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert intro.startswith("# Guarantees\n")
    assert tuple(section.partition("\n")[0] for section in sections) == TOPICS
    for section in sections:
        title, _, body = section.partition("\n")
        assert all(line.startswith("|") for line in body.splitlines() if line), title


def test_the_page_is_not_empty() -> None:
    assert len(sentences()) > 100


@pytest.mark.parametrize(("sentence", "tests"), sentences(), ids=[text[:60] for text, _ in sentences()])
def test_each_sentence_names_tests_that_are_there(sentence: str, tests: list[str]) -> None:
    assert sentence.endswith("."), "one sentence a row"
    assert tests, "no test holds it"
    for named in tests:
        path, _, name = named.partition("::")
        assert (ROOT / path).is_file(), named
        assert name in known_in(path), named
