"""Texts within other texts: all of them are found, and their number costs no more than it has to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_redact import SomeNode, SomeRun, SomeStatus
from workflow.blanks import FEW, LONG, Blanks, blank
from workflow.redact import MASK, redact_entry, redact_status, redact_text, secrets_of

FILLERS = [f"\u2020filler{number}" for number in range(FEW)]
"""They stand in no text of these tests. With them there are too many to be looked for one by one."""


def both_ways(text: str, *texts: str) -> set[str]:
    return {blank(text, "#", Blanks(texts)), blank(text, "#", Blanks([*texts, *FILLERS]))}


@pytest.mark.parametrize(
    ("text", "texts", "expected"),
    [
        ("a secret word", ["secret"], "a # word"),
        ("secretsecret", ["secret"], "##"),
        ("secret", ["secret", "sec"], "#"),
        ("a secretary", ["secret", "secretary"], "a #"),
        ("abcdefgh", ["abcd", "cdefgh"], "#"),
        ("abcdefgh.abcd", ["abcd", "efgh"], "##.#"),
        ("tail: secre", ["secret"], "tail: secre"),
        ("", ["secret"], ""),
        ("secret", [], "secret"),
        ("secret", [""], "secret"),
        ("xy and x", ["x", "xy"], "# and #"),
        ("long " + "x" * (LONG + 1), ["x" * (LONG + 1)], "long #"),
        ("grüße, 👩\u200d🚀!", ["👩\u200d🚀", "grüße"], "#, #!"),
    ],
)
def test_each_text_is_covered_whole(text, texts, expected):
    assert both_ways(text, *texts) == {expected}


def test_several_collections_are_taken_together():
    assert blank("abcdef and ab", "#", Blanks(["abcd"]), Blanks(["cdef", "ab"])) == "# and #"


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=6),
    st.text("abc", max_size=60),
)
def test_nothing_is_left_standing_and_all_else_is(texts, text):
    for shown in both_ways(text, *texts):
        assert not any(each in rest for each in texts for rest in shown.split("#"))
    covered = [
        any(text.startswith(each, start) and start + len(each) > place for each in texts for start in range(place + 1))
        for place in range(len(text))
    ]  # fmt: skip
    (shown,) = {blank(text, "#", Blanks([*texts, *FILLERS]))}
    assert shown.replace("#", "") == "".join(
        one for one, hidden in zip(text, covered, strict=True) if not hidden
    )


def calls(work: Callable[[], Any]) -> int:
    """How many functions were called, Python's own included."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def a_status(number: int) -> SomeStatus:
    """So many nodes, each with a secret of its own that its error repeats."""
    secrets = [f"s3cr3t-{one:06}" for one in range(number)]
    return SomeStatus(
        run=SomeRun(state={"tokens": [{"token": secret} for secret in secrets]}),
        nodes=[
            SomeNode(
                path=f"p.s.a{one}",
                output={"token": secret, "note": f"used {secret}"},
                error={"code": "ACTION_FAILED", "message": f"{secret} was refused"},
            )
            for one, secret in enumerate(secrets)
        ],
    )


def test_a_status_of_twice_the_secrets_takes_twice_the_work():
    shown = redact_status(a_status(1_000), ["token"])
    assert "s3cr3t" not in shown.model_dump_json()
    assert shown.nodes[999].output == {"token": MASK, "note": f"used {MASK}"}
    small, large = (calls(lambda n=n: redact_status(a_status(n), ["token"])) for n in (200, 400))
    assert large < 2.2 * small


def test_one_more_text_costs_the_same_however_many_secrets_there_are():
    work = []
    for number in (FEW + 1, 5_000):
        secrets = secrets_of([{"token": f"s3cr3t-{one:06}"} for one in range(number)], patterns=["token"])
        assert "s3cr3t" not in redact_text("the first is s3cr3t-000000", ["token"], secrets)
        work.append(calls(lambda known=secrets: redact_text("nothing of it here", ["token"], known)))
    few, many = work
    assert few == many


def test_an_entry_of_a_history_is_masked_with_the_runs_secrets_and_its_own(settings):
    settings.WORKFLOW = {"REDACT": ["token"]}
    entry = {
        "message": "0ther and s3cr3t",
        "fields": {"token": "0ther", "error": "s3cr3t"},
        "error": {"code": "s3cr3t", "message": "0ther, s3cr3t"},
    }
    assert redact_entry(entry, secrets_of({"token": "s3cr3t"})) == {
        "message": f"{MASK} and {MASK}",
        "fields": {"token": MASK, "error": MASK},
        "error": {"code": "s3cr3t", "message": f"{MASK}, {MASK}"},
    }
    settings.WORKFLOW = {"REDACT": ["error"]}
    assert redact_entry(entry)["error"] == MASK
