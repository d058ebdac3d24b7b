"""What is pushed of a history entry is what its row holds, to the letter."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection

from workflow.store.settle import _as_jsonb_has_it


@pytest.mark.django_db
@pytest.mark.parametrize("microsecond", [0, 1, 10, 9_280, 123_000, 500_000, 999_999])
def test_a_moment_is_written_as_jsonb_writes_it(microsecond: int) -> None:
    moment = datetime(2026, 11, 29, 19, 52, 3, microsecond, tzinfo=UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT jsonb_build_object('at', %s::timestamptz)->>'at'", (moment,))
        assert cursor.fetchone()[0] == _as_jsonb_has_it(moment)
