import itertools
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.retry import MAX_BACKOFF, BackoffInvalid, delay

HUGE = [46, 47, 1023, 1025, 10**6, 10**30]


def test_inline_actions_wait_a_second_times_the_attempt() -> None:
    assert [delay(None, attempt, "inline") for attempt in (1, 2, 3, 3600, 3601)] == [1, 2, 3, 3600, 3600]


def test_queued_actions_wait_half_a_second_and_double_it() -> None:
    waits = [delay(None, attempt, "queue") for attempt in range(1, 16)]
    assert waits[:5] == [0.5, 1, 2, 4, 8]
    assert waits[12:] == [2048, 3600, 3600]


@pytest.mark.parametrize("via", ["inline", "queue"])
@pytest.mark.parametrize(
    "backoff", [None, 0.001, 2, 5.0, 10**400, 1e300, timedelta(seconds=100), timedelta.max]
)
def test_huge_attempts_and_bases_wait_the_longest_time_and_nothing_overflows(backoff: Any, via: str) -> None:
    waits = [delay(backoff, attempt, via) for attempt in HUGE]
    assert waits == sorted(waits)
    assert waits[-1] == MAX_BACKOFF
    assert all(0 <= wait <= MAX_BACKOFF for wait in waits)


@pytest.mark.parametrize("base", [1.5, timedelta(seconds=1.5)])
@pytest.mark.parametrize("via", ["inline", "queue"])
def test_a_number_or_timedelta_is_multiplied_by_the_attempt(base: Any, via: str) -> None:
    assert [delay(base, attempt, via) for attempt in (1, 2, 4)] == [1.5, 3, 6]


@pytest.mark.parametrize("base", [0, 0.0, timedelta(0)])
def test_no_backoff_at_all_is_possible(base: Any) -> None:
    assert delay(base, 10**30, "inline") == 0


def test_a_callable_gets_the_attempt_that_failed() -> None:
    asked = []

    def backoff(attempt: int) -> float:
        asked.append(attempt)
        return attempt * 7

    assert delay(backoff, 3, "queue") == 21
    assert asked == [3]


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [(0, 0), (2.5, 2.5), (timedelta(minutes=1), 60), (4000, 3600), (10**400, 3600), (1e308, 3600)],
)
def test_the_answer_of_a_callable_is_capped(answer: Any, seconds: float) -> None:
    assert delay(lambda attempt: answer, 1, "inline") == seconds


@pytest.mark.parametrize(
    "answer", [None, "5", True, [], math.nan, math.inf, -math.inf, -1, timedelta(seconds=-1)]
)
@pytest.mark.parametrize(("via", "default"), [("inline", 4.0), ("queue", 4.0)])
def test_a_useless_answer_names_the_default_to_wait_instead(answer: Any, via: str, default: float) -> None:
    with pytest.raises(BackoffInvalid, match="backoff function must return") as caught:
        delay(lambda attempt: answer, 4, via)
    assert caught.value.default_delay == delay(None, 4, via) == default


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), OverflowError(), SystemExit(3)], ids=repr)
def test_a_callable_that_raises_names_the_default_to_wait_instead(error: BaseException) -> None:
    def backoff(attempt: int) -> float:
        raise error

    with pytest.raises(BackoffInvalid, match=f"raised {type(error).__name__}") as caught:
        delay(backoff, 2, "queue")
    assert caught.value.default_delay == 1.0
    assert caught.value.__cause__ is error


def test_an_async_callable_is_refused_without_a_warning() -> None:
    async def backoff(attempt: int) -> float:
        return 1

    with pytest.raises(BackoffInvalid, match="not a coroutine"):
        delay(backoff, 1, "inline")  # type: ignore[arg-type]


@given(
    base=st.one_of(
        st.none(),
        st.floats(0, allow_nan=False, allow_infinity=False),
        st.integers(0),
        st.timedeltas(min_value=timedelta(0)),
    ),
    attempts=st.lists(st.integers(1, 10**40), min_size=2, max_size=8),
    via=st.sampled_from(["inline", "queue"]),
)
def test_delays_grow_with_the_attempt_and_stay_within_bounds(
    base: Any, attempts: list[int], via: str
) -> None:
    waits = [delay(base, attempt, via) for attempt in sorted(attempts)]
    assert all(isinstance(wait, float) and 0 <= wait <= MAX_BACKOFF for wait in waits)
    assert all(earlier <= later for earlier, later in itertools.pairwise(waits))
