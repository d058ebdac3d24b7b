"""What is kept in memory iterates as what PostgreSQL gives back does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workflow.payload import encode, in_order, normalise

storable = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
keys = storable | st.text("ab\u00e9\u4e16\U0001f600", max_size=4)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | storable,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=8),
    max_leaves=30,
)


def read_back(*texts: str) -> str:
    """The objects of these texts, merged from left to right as a run's state is, as PostgreSQL writes them."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT ({' || '.join(['%s::jsonb'] * len(texts))})::text", texts)
        (text,) = cursor.fetchone()
    return str(text)


def written(value: Any) -> str:
    return json.dumps(value, sort_keys=False)


@pytest.mark.django_db
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values)
def test_a_value_in_memory_is_what_is_read_back_to_the_order_of_its_keys(value: Any) -> None:
    normal, text = encode(value)
    stored = written(json.loads(read_back(text)))
    assert written(normal) == written(normalise(value)) == written(json.loads(text)) == stored


@pytest.mark.django_db
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.dictionaries(keys, values, max_size=4), min_size=1, max_size=3))
def test_a_merge_of_patches_is_in_the_order_in_which_the_database_has_it(patches: list[Any]) -> None:
    encoded = [encode(patch) for patch in patches]
    merged: dict[str, Any] = {}
    for normal, _ in encoded:
        merged.update(normal)
    assert written(in_order(merged)) == written(json.loads(read_back(*(text for _, text in encoded))))
