"""What ``encode`` lets pass comes back from PostgreSQL as it went; the rest is refused by name."""

import dataclasses
import enum
import json
import math
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.utils.functional import lazystr
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, Secret, SecretBytes, SecretStr, field_serializer

from workflow import Fatal, Retry, RunHandle, workflows
from workflow.errors import PayloadInvalid
from workflow.payload import MAX_DEPTH, dumps, encode, normalise

Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)
    BROKEN = math.nan


class Level(enum.IntEnum):
    HIGH = 3


class Word(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not the text"


class Line(BaseModel):
    sku: str
    price: Decimal = Decimal("1.50")
    at: datetime = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    weight: float = 1.0


@dataclasses.dataclass
class Box:
    lines: list[Any]
    label: Any = None


class Anything(BaseModel):
    thing: Any


@dataclasses.dataclass
class Ticket:
    """A value that is also awaitable."""

    id: int

    def __await__(self) -> Any:
        yield


def test_a_value_that_may_be_awaited_is_stored_as_what_it_is() -> None:
    assert json.loads(dumps({"ticket": Ticket(1)}, "output")) == {"ticket": {"id": 1}}


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


def has(value: Any, predicate: Any) -> bool:
    if isinstance(value, dict):
        return any(has(item, predicate) for pair in value.items() for item in pair)
    if isinstance(value, list):
        return any(has(item, predicate) for item in value)
    return bool(predicate(value))


def types(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: types(item) for key, item in value.items()}
    return [types(item) for item in value] if isinstance(value, list) else type(value)


@given(plain)
def test_plain_values_round_trip_and_only_unstorable_text_is_refused(value: Any) -> None:
    unstorable = has(
        value,
        lambda item: isinstance(item, str) and ("\0" in item or any("\ud800" <= c <= "\udfff" for c in item)),
    )
    if unstorable:
        with pytest.raises(PayloadInvalid, match=r"NUL|surrogate"):
            encode(value)
        return
    normal, text = encode(value)
    assert normal == value
    assert json.loads(text) == value
    assert types(normal) == types(value) == types(json.loads(text))
    assert dumps(value) == text
    assert normalise(value) == normal


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_stays_that_float_without_an_exponent_that_jsonb_would_make_whole(value: float) -> None:
    # jsonb keeps numbers as decimals: "1e+23" comes back as 100000000000000000000000, not the same to Python.
    normal, text = encode([value])
    assert json.loads(text) == normal == [value]
    jsonb = f"{Decimal(text[1:-1]):f}"  # its digits and scale are kept, the exponent is not
    assert "." in jsonb
    assert float(jsonb) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        ("ä\u20ac\U0001f600", "ä\u20ac\U0001f600"),
        (2**70, 2**70),
        (10**4299, 10**4299),
        ((1, (2, 3)), [1, [2, 3]]),
        ({1}, [1]),
        (frozenset({"a"}), ["a"]),
        (deque([1, 2]), [1, 2]),
        ((n for n in range(3)), [0, 1, 2]),
        (Point(1, 2), [1, 2]),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(int, a=1), {"a": 1}),
        (Decimal("12.30"), "12.30"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4), "03:04:00"),
        (datetime(2026, 1, 2, 3, 4), "2026-01-02T03:04:00"),  # noqa: DTZ001
        (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02T03:04:00Z"),
        (timedelta(seconds=90), "PT1M30S"),
        (Path("/srv"), "/srv"),
        (Colour.RED, "red"),
        (Colour.PAIR, [1, 2]),
        (Level.HIGH, 3),
        (Word("text"), "text"),
        (lazystr("text"), "text"),
        (Box([Colour.RED, (1,)], Decimal(1)), {"lines": ["red", [1]], "label": "1"}),
        (
            Line(sku="a"),
            {"sku": "a", "price": "1.50", "at": "2026-01-02T03:04:05Z", "weight": 1.0},
        ),
        (RootModel[list[int]]([1]), [1]),
        ({"lines": [Line(sku="a").price]}, {"lines": ["1.50"]}),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_values_become_what_pydantic_makes_of_them(value: Any, expected: Any) -> None:
    normal, text = encode({"a": [value]})
    assert normal == {"a": [expected]} == json.loads(text)
    assert types(normal) == types(json.loads(text))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (1, "1"),
        (1.5, "1.5"),
        (True, "true"),
        (None, "None"),
        (date(2026, 1, 2), "2026-01-02"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Colour.RED, "red"),
        (Level.HIGH, "3"),
        (Word("text"), "text"),
    ],
    ids=repr,
)
def test_keys_become_the_text_that_json_has_for_them(key: Any, text: str) -> None:
    assert encode({key: 1}) == ({text: 1}, f'{{"{text}":1}}')


def test_field_names_are_kept_whatever_their_aliases() -> None:
    class Order(BaseModel):
        order_id: str = Field(alias="orderId")

    assert normalise(Order(orderId="5")) == {"order_id": "5"}


def test_the_result_is_a_copy() -> None:
    for value in ({"a": 1}, {"a": [1, {"b": 2}]}):
        normal = normalise(value)
        assert normal == value
        assert normal is not value
    inner: list[int] = []
    assert normalise({"a": inner})["a"] is not inner


def cyclic_list() -> Any:
    value: list[Any] = [1]
    value.append({"again": value})
    return value


def cyclic_box() -> Any:
    box = Box([])
    box.label = {"box": box}
    return box


class Tree(BaseModel):
    child: "Tree | None" = None


def cyclic_model() -> Any:
    tree = Tree()
    tree.child = tree
    return tree


def nested(levels: int, leaf: Any = 1) -> Any:
    for _ in range(levels):
        leaf = [leaf]
    return leaf


class Sour(BaseModel):
    name: str = "x"

    @field_serializer("name")
    def refuse(self, name: str) -> str:
        raise RuntimeError("no name today")


def broken() -> Iterator[int]:
    yield 1
    raise RuntimeError("ran dry")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"score": math.nan}, ".score: nan cannot be stored: JSON has no such number"),
        ({"a": {"b": [1, {"score": math.inf}]}}, ".a.b[1].score: inf cannot be stored"),
        ([-math.inf], "[0]: -inf cannot be stored"),
        ({"d": Decimal("NaN")}, ".d: NaN cannot be stored"),
        ([Decimal("-Infinity")], "[0]: -Infinity cannot be stored"),
        (Decimal("sNaN"), ": sNaN cannot be stored"),
        (complex(1, math.inf), ": (1+infj) cannot be stored"),
        (Line(sku="a", weight=math.nan), ".weight: nan cannot be stored"),
        (Colour.BROKEN, ": nan cannot be stored"),
        ({math.nan: 1}, ": nan cannot be stored"),
        ("a\0b", ": a NUL character cannot be stored"),
        ({"name": "a\0b"}, ".name: a NUL character cannot be stored"),
        ({"a\0b": 1}, r": a NUL character cannot be stored (in the key 'a\x00b')"),
        (Line(sku="a\0"), ".sku: a NUL character cannot be stored"),
        ({"name": "\ud83d"}, ".name: half a surrogate pair cannot be stored"),
        ({"\udc00": 1}, r": half a surrogate pair cannot be stored (in the key '\udc00')"),
        ({"x": [{"\udc00y": 1}]}, r".x[0]: half a surrogate pair cannot be stored (in the key '\udc00y')"),
        ({"raw": b"abc"}, ".raw: bytes cannot be stored as JSON"),
        ({"raw": bytearray(b"abc")}, ".raw: bytearray cannot be stored as JSON"),
        ({"raw": memoryview(b"abc")}, ".raw: memoryview cannot be stored as JSON"),
        (Box([b"abc"]), ".lines[0]: bytes cannot be stored as JSON"),
        ({b"abc": 1}, ": a bytes cannot be the key of a dict in JSON"),
        ({(1, 2): 1}, ": a tuple cannot be the key of a dict in JSON"),
        ({1: "a", "1": "b"}, ": two keys of a dict are the same text in JSON"),
        ({"ids": {None: 1, "None": 2}}, ".ids: two keys of a dict are the same text in JSON"),
        ({"thing": object()}, ".thing: an object cannot be stored as JSON"),
        (
            Anything(thing=object()),
            ": an Anything cannot be stored as JSON (Unable to serialize unknown type: <class 'object'>)",
        ),
        ({"thing": object}, ".thing: a type cannot be stored as JSON"),
        ({"thing": ValueError("x")}, ".thing: a ValueError cannot be stored as JSON"),
        ({"thing": lambda: 1}, ".thing: a function cannot be stored as JSON"),
        ({"thing": range(3)}, ".thing: a range cannot be stored as JSON"),
        ({"count": 10**4300}, ".count: a whole number of more than 4300 digits cannot be stored"),
        ({"count": -(10**5000)}, ".count: a whole number of more than 4300 digits cannot be stored"),
        ({"odd key": [math.nan]}, "['odd key'][0]: nan cannot be stored"),
        (cyclic_list(), "[1].again: it contains itself"),
        ({"deep": {"down": cyclic_list()}}, ".deep.down[1].again: it contains itself"),
        ({"x": cyclic_box()}, ".x.label.box: it contains itself"),
        ({"tree": cyclic_model()}, ".tree: it contains itself"),
        (nested(201), "[0][0][0][0][0][0]...[0][0][0][0]: nested deeper than 200 levels"),
        (nested(50_000), "[0][0][0][0][0][0]...[0][0][0][0]: nested deeper than 200 levels"),
        (
            {"answer": Fatal("x")},
            ".answer: a Fatal cannot be stored as JSON: raise it instead of returning it",
        ),
        (Retry(delay=5), ": a Retry cannot be stored as JSON: raise it instead of returning it"),
        (
            RunHandle(UUID(int=1), created=True, _commands=workflows),
            ": a RunHandle cannot be stored as JSON: take str(handle.run_id)",
        ),
        ({"sour": Sour()}, ".sour: a Sour cannot be stored as JSON (PydanticSerializationError: "),
        ({"items": broken()}, ": RuntimeError while it was read: ran dry"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
@pytest.mark.parametrize("call", [normalise, dumps, encode])
def test_what_cannot_be_stored_is_refused_with_its_place_and_rule(
    call: Any, value: Any, message: str
) -> None:
    if hasattr(value, "get") and isinstance(value.get("items"), Iterator):
        value = {"items": broken()}  # an iterator is used up by the first call
    with pytest.raises(PayloadInvalid) as caught:
        call(value, where="output")
    assert str(caught.value).startswith(f"output{message}")
    str(caught.value).encode()


def test_two_hundred_levels_are_allowed() -> None:
    value = nested(MAX_DEPTH)
    normal, text = encode(value)
    assert normal == value
    assert text == "[" * 200 + "1" + "]" * 200


def test_the_limit_counts_bytes_of_the_text_not_characters() -> None:
    value = {"name": "\u20ac" * 10}
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    assert size == 41
    assert encode(value, "input", size)[0] == value
    with pytest.raises(
        PayloadInvalid, match=r'^input: 41 bytes of JSON; WORKFLOW\["MAX_PAYLOAD_BYTES"\] allows 40$'
    ):
        encode(value, "input", size - 1)
    with pytest.raises(PayloadInvalid, match=r"^input: 43 bytes of JSON"):
        encode([value], "input", size - 1)


def test_a_model_changed_behind_its_back_is_stored_without_a_warning() -> None:
    line = Line.model_construct(sku=5)  # type: ignore[arg-type]
    assert normalise(line)["sku"] == 5


def test_a_dict_that_is_changed_while_it_is_read_is_refused() -> None:
    value: dict[str, Any] = {}

    def restless() -> Iterator[int]:
        value["later"] = 1
        yield 1

    value["items"] = restless()
    with pytest.raises(PayloadInvalid, match="RuntimeError while it was read: dictionary changed size"):
        normalise(value)


def test_nothing_in_the_message_is_unprintable_or_endless() -> None:
    with pytest.raises(PayloadInvalid) as caught:
        normalise({"\udc00" * 10_000: {"k" * 10_000: math.nan}})
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isascii()


# --- secrets ------------------------------------------------------------------------------------


class Account(BaseModel):
    user: str
    token: SecretStr
    pins: set[SecretStr] = set()
    more: Any = None


ACCOUNT = Account(user="u", token="t0ken", pins={SecretStr("1234")})  # type: ignore[arg-type]
HIDDEN = frozenset({"token", "pins", "born", "bare"})


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"token": SecretStr("t0ken")}, {"token": "t0ken"}),
        ({"Token": SecretStr("t0ken")}, {"Token": "t0ken"}),
        ({"token": [{"deep": (SecretStr("t0ken"), 1)}]}, {"token": [{"deep": ["t0ken", 1]}]}),
        ({"token": SecretBytes("t\u00f6ken".encode())}, {"token": "t\u00f6ken"}),
        ({"born": Secret(date(2026, 1, 2))}, {"born": "2026-01-02"}),
        ({"token": SecretStr("")}, {"token": ""}),
        (ACCOUNT, {"user": "u", "token": "t0ken", "pins": ["1234"], "more": None}),
        (
            [Box([ACCOUNT])],
            [{"lines": [ACCOUNT.model_dump() | {"token": "t0ken", "pins": ["1234"]}], "label": None}],
        ),
        (Account(user="**", token="*", more=[1]), {"user": "**", "token": "*", "pins": [], "more": [1]}),  # type: ignore[arg-type]
        (SecretStr("t0ken"), "t0ken"),
        ([SecretStr("t0ken")], ["t0ken"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_secret_is_kept_under_a_key_that_people_do_not_see(value: Any, kept: Any) -> None:
    normal, text = encode(value, hidden=HIDDEN, key="bare")
    assert normal == kept == json.loads(text)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"note": SecretStr("t0ken")}, "payload.note: a SecretStr"),
        ({"token": 1, "note": [SecretBytes(b"t0ken")]}, "payload.note[0]: a SecretBytes"),
        ({"a": {"token": "x"}, "note": Secret(1)}, "payload.note: a Secret"),
        (SecretStr("t0ken"), "payload: a SecretStr"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_secret_is_kept_nowhere_else(value: Any, place: str) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        encode(value, hidden=HIDDEN)
    assert str(caught.value).startswith(f"{place} is kept only under a key that ")
    assert "t0ken" not in str(caught.value)


def test_a_secret_is_not_lost_either_where_a_schema_takes_anything() -> None:
    account = Account(user="u", token="t", more={"b": SecretStr("t0ken")})  # type: ignore[arg-type]
    with pytest.raises(PayloadInvalid, match="SecretStr"):
        encode(account, hidden=HIDDEN)


def test_a_key_counts_for_what_has_no_keys_of_its_own() -> None:
    with pytest.raises(PayloadInvalid, match=r"^payload\.a: a SecretStr"):
        encode({"a": SecretStr("t0ken")}, hidden=HIDDEN, key="bare")
    assert encode({"a": SecretStr("t0ken")}, hidden={"*"})[0] == {"a": "t0ken"}


@pytest.mark.parametrize("value", [{"a": SecretStr("t0ken")}, {"a": ACCOUNT.token}])
def test_what_only_people_read_keeps_the_mask(value: Any) -> None:
    assert normalise(value, hidden=None) == {"a": "**********"}
    assert "t0ken" not in str(normalise({"a": ACCOUNT}, hidden=None))


def test_bytes_that_are_no_text_are_refused_also_as_a_secret() -> None:
    with pytest.raises(PayloadInvalid, match="bytes that are no UTF-8 cannot be stored"):
        encode({"token": SecretBytes(b"\xff")}, hidden=HIDDEN)


class Loud(BaseModel):
    token: SecretStr

    @field_serializer("token")
    def _shout(self, token: SecretStr) -> str:
        return token.get_secret_value().upper() + "**"


def test_a_serialiser_of_ones_own_has_the_last_word() -> None:
    assert encode(Loud(token="t0ken"), hidden=HIDDEN)[0] == {"token": "T0KEN**"}  # type: ignore[arg-type]


def test_a_coroutine_that_was_never_awaited_is_told_as_such() -> None:
    async def answer() -> int:
        return 42

    coroutine = answer()
    with pytest.raises(PayloadInvalid) as caught:
        dumps({"answer": coroutine})
    coroutine.close()
    assert str(caught.value) == 'payload.answer: a coroutine cannot be stored as JSON: is an "await" missing?'


def test_what_cannot_be_stored_is_named_once() -> None:
    with pytest.raises(PayloadInvalid) as caught:
        dumps({"thing": object()})
    assert str(caught.value) == "payload.thing: an object cannot be stored as JSON"
