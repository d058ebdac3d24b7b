import itertools
import math
import random
from asyncio import CancelledError
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.conf import MAX_SECONDS, conf
from workflow.errors import Retry
from workflow.retry import MAX_BACKOFF, BackoffInvalid, bound, delay, jittered, named_delay
from workflow.times import FOR_EVER

HUGE = [46, 47, 1023, 1025, 10**6, 10**30]


class Stop(BaseException):
    """Not an Exception, as a project may have some."""


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
    assert waits[-1] == bound(backoff)
    assert all(0 <= wait <= bound(backoff) for wait in waits)


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
    [
        (0, 0),
        (2.5, 2.5),
        (timedelta(minutes=1), 60),
        (86_400, 86_400),
        (10**400, FOR_EVER),
        (1e308, FOR_EVER),
    ],
)
def test_the_answer_of_a_callable_is_kept_up_to_the_longest_that_anything_waits(
    answer: Any, seconds: float
) -> None:
    assert delay(lambda attempt: answer, 1, "inline") == seconds


@pytest.mark.parametrize(
    "answer", [None, "5", True, [], math.nan, math.inf, -math.inf, -1, timedelta(seconds=-1)]
)
@pytest.mark.parametrize(("via", "default"), [("inline", 4.0), ("queue", 4.0)])
def test_a_useless_answer_names_the_default_to_wait_instead(answer: Any, via: str, default: float) -> None:
    with pytest.raises(BackoffInvalid, match="backoff function must return") as caught:
        delay(lambda attempt: answer, 4, via)
    assert caught.value.default_delay == delay(None, 4, via) == default


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("x"), OverflowError(), SystemExit(3), CancelledError(), Stop()], ids=repr
)
def test_a_callable_that_raises_names_the_default_to_wait_instead(error: BaseException) -> None:
    def backoff(attempt: int) -> float:
        raise error

    with pytest.raises(BackoffInvalid, match=f"raised {type(error).__name__}") as caught:
        delay(backoff, 2, "queue")
    assert caught.value.default_delay == 1.0
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        (None, None),
        (0, 0),
        (2.5, 2.5),
        (timedelta(minutes=1), 60),
        (86_400, 86_400),
        (10**400, FOR_EVER),
        (float("inf"), FOR_EVER),
        (-1, None),
        (float("nan"), None),
        (True, None),
        ("5", None),
    ],
)
def test_a_retry_names_its_delay_and_what_is_none_is_left_to_the_backoff(asked: Any, seconds: Any) -> None:
    class Again(Retry):
        def __init__(self) -> None:
            self.delay = asked

    assert named_delay(Again()) == seconds


def test_a_retry_of_a_subclass_that_says_nothing_of_itself_names_no_delay() -> None:
    class Again(Retry):
        def __init__(self) -> None:
            """Without `super().__init__()`."""

    assert (named_delay(Again()), str(Again())) == (None, "asked for a retry")


def test_an_async_callable_is_refused_without_a_warning() -> None:
    async def backoff(attempt: int) -> float:
        return 1

    with pytest.raises(BackoffInvalid, match="not a coroutine"):
        delay(backoff, 1, "inline")  # type: ignore[arg-type]


def test_the_default_cap_is_the_settings_default() -> None:
    assert conf.MAX_BACKOFF == MAX_BACKOFF == 3600


@pytest.mark.parametrize("via", ["inline", "queue"])
@pytest.mark.parametrize("longest", [0.01, 30, 3600, MAX_SECONDS])
def test_another_cap_holds_for_the_default(via: str, longest: float) -> None:
    waits = [delay(None, attempt, via, longest) for attempt in [1, *HUGE]]
    assert all(0 < wait <= longest for wait in waits)
    assert waits[-1] == longest == bound(None, longest)


@pytest.mark.parametrize(
    ("backoff", "seconds"),
    [
        (7200, 14_400),
        (timedelta(hours=1), 7200),
        (lambda attempt: 86_400, 86_400),
        (lambda attempt: timedelta(days=attempt), 172_800),
    ],
    ids=["seconds", "timedelta", "callable", "callable-timedelta"],
)
@pytest.mark.parametrize("via", ["inline", "queue"])
@pytest.mark.parametrize("longest", [0.01, 3600])
def test_what_a_project_names_is_kept_whatever_the_cap(
    backoff: Any, seconds: float, via: str, longest: float
) -> None:
    assert delay(backoff, 2, via, longest) == seconds
    assert bound(backoff, longest) == FOR_EVER


def test_the_default_after_a_useless_answer_is_capped_too() -> None:
    with pytest.raises(BackoffInvalid) as caught:
        delay(lambda attempt: math.nan, 10**6, "queue", 90)
    assert caught.value.default_delay == 90


def test_jitter_lengthens_or_shortens_by_its_part_at_most() -> None:
    dice = random.Random(4)
    waits = [jittered(100, 0.2, dice.random()) for _ in range(1000)]
    assert all(80 <= wait <= 120 for wait in waits)
    assert min(waits) < 82
    assert max(waits) > 118
    assert [jittered(100, 0.2, chance) for chance in (0, 0.5, 1)] == [80, 100, 120]


def test_without_jitter_a_delay_stays_as_it_is() -> None:
    assert [jittered(7.5, 0, chance) for chance in (0, 0.3, 1)] == [7.5, 7.5, 7.5]


def test_jitter_never_makes_a_delay_negative_or_longer_than_the_cap() -> None:
    assert jittered(10, 1, 0) == 0
    assert jittered(0, 1, 1) == 0
    assert jittered(3600, 1, 1) == MAX_BACKOFF
    assert jittered(50, 0.5, 1, longest=60) == 60
    assert jittered(FOR_EVER, 1, 1, longest=FOR_EVER) == FOR_EVER


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
    assert all(isinstance(wait, float) and 0 <= wait <= bound(base) for wait in waits)
    assert all(earlier <= later for earlier, later in itertools.pairwise(waits))
