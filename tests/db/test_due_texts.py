"""What is pushed of a history entry is what its row holds, to the letter."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection

from workflow.store.settle import _as_jsonb_has_it, data_of


def test_what_an_entry_says_of_the_next_attempt_is_written_so() -> None:
    at = datetime(2026, 11, 29, 19, 52, 3, 500_000, tzinfo=UTC)
    assert data_of('{"attempt":1}', at, 60.25) == {"attempt": 1, "due_at": "2026-11-29T19:53:03.75+00:00"}
    assert data_of(None, at, 0.5) == {"due_at": "2026-11-29T19:52:04+00:00"}
    assert data_of(None, at, None) is None


@pytest.mark.django_db
@pytest.mark.parametrize("microsecond", [0, 1, 10, 9_280, 123_000, 500_000, 999_999])
def test_a_moment_is_written_as_jsonb_writes_it(microsecond: int) -> None:
    moment = datetime(2026, 11, 29, 19, 52, 3, microsecond, tzinfo=UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT jsonb_build_object('at', %s::timestamptz)->>'at'", (moment,))
        assert cursor.fetchone()[0] == _as_jsonb_has_it(moment)
