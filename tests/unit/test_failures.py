import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from workflow.errors import FailureCode, InputInvalid
from workflow.failures import MESSAGE_LIMIT, TRACEBACK_LIMIT, clean_text, describe
from workflow.payload import encode, in_order, normalise


class Card(BaseModel):
    number: int


def raised(thrower: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        thrower()
    return caught.value


def thrown(error: BaseException) -> BaseException:
    def thrower() -> None:
        raise error

    return raised(thrower)


def described(error: BaseException) -> dict[str, str | None]:
    found = describe(error, FailureCode.ACTION_FAILED, "order.pay.charge")
    assert list(found) == ["code", "message", "node", "type", "traceback"]
    assert encode(found) == (found, json.dumps(in_order(found), ensure_ascii=False, separators=(",", ":")))
    assert len(found["message"] or "") <= MESSAGE_LIMIT
    assert len(found["traceback"] or "") <= TRACEBACK_LIMIT
    return found


def test_an_exception_becomes_plain_data() -> None:
    found = described(thrown(ValueError("the card was refused")))
    assert found["code"] == "ACTION_FAILED"
    assert type(found["code"]) is str
    assert found["message"] == "the card was refused"
    assert found["node"] == "order.pay.charge"
    assert found["type"] == "ValueError"
    assert (found["traceback"] or "").startswith("Traceback (most recent call last):\n")
    assert (found["traceback"] or "").endswith("\nValueError: the card was refused")
    assert "in thrower" in (found["traceback"] or "")


def test_an_error_of_the_run_itself_has_no_node() -> None:
    assert describe(ValueError("x"), "STUCK_RUN_REAPED", None)["node"] is None


def test_an_exception_that_was_never_raised_has_no_stack() -> None:
    assert described(ValueError("x"))["traceback"] == "ValueError: x"


@pytest.mark.parametrize("error", [TimeoutError(), KeyError(), SystemExit()], ids=repr)
def test_an_exception_without_a_text_is_named(error: BaseException) -> None:
    assert described(error)["message"] == type(error).__name__


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no comment")


class Deadly(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Numb(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class Shifty(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError


class Odd(Exception):
    def __str__(self) -> str:
        return Shifty("the real text")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Mute(), "RuntimeError"),
        (Deadly(), "SystemExit"),
        (Numb(), "TypeError"),
        (Endless(), "RecursionError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_whose_text_cannot_be_shown_is_still_described(error: Exception, why: str) -> None:
    name = type(error).__name__
    found = described(thrown(error))
    assert found["message"] == f"<{name} whose text cannot be shown: {why}>"
    assert found["type"] == name
    assert "in thrower" in (found["traceback"] or "")


def test_a_text_of_a_hostile_str_class_is_read_as_it_is() -> None:
    assert described(thrown(Odd()))["message"] == "the real text"


def test_what_jsonb_refuses_is_replaced_in_message_and_traceback() -> None:
    found = described(thrown(ValueError("bad\0byte \ud800 and \ud83d\ude00")))
    assert found["message"] == "bad\ufffdbyte \ufffd and \U0001f600"
    assert (found["traceback"] or "").endswith("bad\ufffdbyte \ufffd and \U0001f600")


def test_a_message_of_ten_megabytes_is_cut() -> None:
    found = described(thrown(ValueError("x" * 10_000_000 + "the end")))
    assert found["message"] == "x" * (MESSAGE_LIMIT - 3) + "..."
    assert (found["traceback"] or "").startswith("...")
    assert (found["traceback"] or "").endswith("xthe end")


def test_a_deep_recursion_keeps_the_frames_nearest_to_the_error() -> None:
    def first(depth: int) -> None:
        second(depth + 1)

    def second(depth: int) -> None:
        if depth > 600:
            raise ValueError("the bottom")
        first(depth + 1)

    found = described(raised(lambda: first(0)))
    assert (found["traceback"] or "").endswith('raise ValueError("the bottom")\nValueError: the bottom')


def test_frames_of_the_engine_before_the_users_are_left_out() -> None:
    def generator() -> Any:
        yield 1
        raise ZeroDivisionError("mine")

    error = raised(lambda: normalise({"items": generator()})).__cause__
    assert isinstance(error, ZeroDivisionError)
    found = described(error)
    assert "in generator" in (found["traceback"] or "")
    assert "payload.py" not in (found["traceback"] or "")


def test_causes_and_contexts_are_shown() -> None:
    def thrower() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    found = described(raised(thrower))
    assert "KeyError: 'first'" in (found["traceback"] or "")
    assert "direct cause" in (found["traceback"] or "")


def test_a_circle_of_causes_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert "ValueError: one" in (described(one)["traceback"] or "")


def secret_in_validation() -> None:
    Card.model_validate({"number": "hunter2"})


def secret_in_cause() -> None:
    try:
        secret_in_validation()
    except ValidationError as error:
        raise InputInvalid.of("order", error) from error


def secret_in_context() -> None:
    try:
        secret_in_validation()
    except ValidationError:
        raise RuntimeError("later") from None


def secret_in_group() -> None:
    raise BaseExceptionGroup("both", [raised(secret_in_validation), ValueError("x")])


@pytest.mark.parametrize(
    "thrower",
    [secret_in_validation, secret_in_cause, secret_in_context, secret_in_group],
    ids=lambda f: f.__name__,
)
def test_values_that_failed_a_validation_are_not_repeated(thrower: Callable[[], None]) -> None:
    found = described(raised(thrower))
    assert "hunter2" not in (found["message"] or "")
    assert f"in {thrower.__name__}" in (found["traceback"] or "")
    assert "input_value" not in (found["traceback"] or "")


def test_a_failed_validation_reads_as_a_list_of_places() -> None:
    found = described(raised(secret_in_validation))
    assert (found["message"] or "").startswith("number: Input should be a valid integer")
    assert (found["traceback"] or "").endswith(f"ValidationError: {found['message']}")


class Meta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError


class Nameless(Exception, metaclass=Meta):
    pass


def test_even_a_class_that_hides_its_name_is_described() -> None:
    found = described(thrown(Nameless("x")))
    assert (found["message"], found["type"]) == ("x", "?")


@given(st.text(), st.integers(0, 20))
def test_clean_text_always_fits_and_is_always_storable(text: str, limit: int) -> None:
    cleaned = clean_text(text, limit)
    assert len(cleaned) <= limit
    assert normalise(cleaned) == cleaned
    if text.isascii() and "\0" not in text and len(text) <= limit:
        assert cleaned == text


def test_clean_text_takes_anything() -> None:
    assert clean_text(None) == "None"
    assert clean_text(b"\x00") == "b'\\x00'"
    assert clean_text(10 ** (sys.get_int_max_str_digits() + 1)).startswith("<int whose text cannot be shown")
