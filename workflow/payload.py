"""What inputs, outputs, step results and event payloads may be: anything that comes back from PostgreSQL as
it went.

A value is first *normalised*: pydantic models, dataclasses, dates, Decimals, UUIDs, enums, sets and tuples
become what JSON has for them, as pydantic does it, and the keys of a dict stand in the order in which jsonb
keeps them. The first execution and a replay thus see the same value, also where they iterate over it, and what
could not be stored is refused while it still has a name: ``PayloadInvalid`` says where it
is and why.

pydantic's secrets (``SecretStr`` and its like) are kept as what they hide, since handlers need it, but only
under keys of which it is known that people are shown a mask instead (see ``workflow.redact``). Elsewhere they
are refused: to keep them would give them away, and to keep their mask would lose them.

Pure, and called once per action, hence the fast paths: None and flat dicts take about a microsecond.
"""

from __future__ import annotations

import cmath
import dataclasses
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from decimal import Decimal
from enum import Enum
from inspect import isawaitable
from types import GeneratorType
from typing import Any, Final

from django.utils.functional import Promise
from pydantic import Secret, SecretBytes, SecretStr
from pydantic_core import to_json, to_jsonable_python

from workflow.errors import Fatal, PayloadInvalid, Retry

MAX_DEPTH = 200  # containers in one another
MAX_DIGITS = 4300  # Python parses no longer whole number back
_MAX_INT = 10**MAX_DIGITS
_SMALL_INT = 2**63
# From here on ``repr`` writes an exponent. jsonb would answer with a whole number, of another type and,
# beyond 2**53, of another value; written out with ".0" it stays the float that it was.
_LARGE_FLOAT = 1e16

Hidden = Collection[str] | None
"""Keys, in lower case, under which secrets may be kept; "*" is any. None: keep the mask, only people will read it."""

_SECRETS: Final = (SecretStr, SecretBytes, Secret)
_MASKED: Final = b"**"  # what pydantic shows of a secret begins so


def normalise(value: object, where: str = "payload", hidden: Hidden = ()) -> Any:
    """``value`` as PostgreSQL gives it back: always a copy, of None, bool, int, float, str, list and dict, in the
    order of jsonb.
    """
    if value is None:
        return None
    return _Walk(hidden).start(value, where)


def dumps(
    value: object, where: str = "payload", limit: int | None = None, hidden: Hidden = (), key: str = ""
) -> str:
    """``value`` as compact JSON text; see ``encode``."""
    return encode(value, where, limit, hidden, key)[1]


def encode(
    value: object, where: str = "payload", limit: int | None = None, hidden: Hidden = (), key: str = ""
) -> tuple[Any, str]:
    """``value`` normalised, and as compact JSON text.

    ``where`` opens the message of ``PayloadInvalid``; ``limit`` is the text's most bytes in UTF-8, None for
    any. ``key`` is where the value will stand if it is no dict.
    """
    if value is None:
        return None, "null"
    if type(value) is dict and _is_flat(value):
        try:
            flat = in_order(value) if len(value) > 1 else value.copy()
            raw = to_json(flat)
        except ValueError:
            pass  # a lone surrogate: the walk names its key
        else:
            _check_size(len(raw), where, limit)
            return flat, raw.decode()
    walk = _Walk(hidden, key)
    normal = walk.start(value, where)
    raw = _write(normal).encode() if walk.large_float else to_json(normal)
    _check_size(len(raw), where, limit)
    return normal, raw.decode()


def copy_json(value: Any) -> Any:
    """A deep copy of plain JSON: user code may do with its state what it likes."""
    if isinstance(value, dict):
        return {
            key: copy_json(item) if isinstance(item, dict | list) else item for key, item in value.items()
        }
    if isinstance(value, list):
        return [copy_json(item) if isinstance(item, dict | list) else item for item in value]
    return value


def in_order(value: dict[str, Any]) -> dict[str, Any]:
    """A copy of a dict with its keys in the order of jsonb: the shorter first, of the same length by their bytes. What
    stands under them is left as it is.
    """
    keys = sorted(value)  # by code points, which is the order of UTF-8's bytes
    keys.sort(key=len if "".join(keys).isascii() else _byte_length)
    return {key: value[key] for key in keys}


def _byte_length(key: str) -> int:
    return len(key.encode())


def _is_flat(value: dict[Any, Any]) -> bool:
    """Whether a dict holds nothing but plain strings, numbers, booleans and None that need no second look."""
    for key, item in value.items():
        if type(key) is not str or "\0" in key:
            return False
        kind = type(item)
        if kind is str:
            if "\0" in item:
                return False
        elif kind is int:
            if not -_SMALL_INT < item < _SMALL_INT:
                return False
        elif kind is float:
            if (
                not item or not -_LARGE_FLOAT < item < _LARGE_FLOAT
            ):  # NaN fails this too; zero may have a sign
                return False
        elif item is not None and kind is not bool:
            return False
    return True


def _check_size(size: int, where: str, limit: int | None) -> None:
    if limit is not None and size > limit:
        allowed = f'WORKFLOW["MAX_PAYLOAD_BYTES"] allows {limit}'
        raise PayloadInvalid(f"{where}: {size} bytes of JSON; {allowed}")


class _Fault(Exception):
    """A broken rule on its way up; every container that it passes adds the key that led to it."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule
        self.keys: list[str | int] = []  # from the inside out

    def passed(self, container: object, key: str | int) -> _Fault:
        self.keys.append(key)
        return self


class _TooDeep(_Fault):
    """Nested too deep; a cycle if the way out meets a container twice, and then one round of it is shown."""

    def __init__(self) -> None:
        super().__init__(f"nested deeper than {MAX_DEPTH} levels")
        self.met: dict[int, int] = {}  # id of a container: how many keys are further in

    def passed(self, container: object, key: str | int) -> _Fault:
        inner = self.met.get(id(container))
        if inner is not None:
            self.rule = "it contains itself"
            del self.keys[: inner + 1]
            self.met = {known: at - inner - 1 for known, at in self.met.items() if at > inner}
        self.met[id(container)] = len(self.keys)
        return super().passed(container, key)


class _Walk:
    """One pass over a value. ``large_float`` afterwards tells that the text needs ``_write``."""

    __slots__ = ("hidden", "keys", "large_float", "under")

    def __init__(self, hidden: Hidden, key: str = "") -> None:
        self.hidden = hidden
        self.keys = hidden or ()
        self.under = self.hides(key)
        self.large_float = False

    def hides(self, key: str) -> bool:
        """Whether what stands under this key is masked for people."""
        return "*" in self.keys or key.lower() in self.keys

    def start(self, value: object, where: str) -> Any:
        try:
            return self.any(value, 1)
        except _Fault as fault:
            raise PayloadInvalid(f"{where}{_path(fault.keys)}: {fault.rule}") from None
        except RecursionError:
            raise PayloadInvalid(f"{where}: nested too deeply") from None
        except Exception as error:
            # A property, an iterator or a serialiser of the user's own, or a dict that a thread changes.
            reason = f"{type(error).__name__} while it was read: {_line(error)}"
            raise PayloadInvalid(f"{where}: {reason}") from error

    def any(self, value: object, depth: int) -> Any:
        """``value`` normalised; ``depth`` is the level that it has if it is a container."""
        kind = type(value)
        if kind is str:
            return self.text(value)  # type: ignore[arg-type]
        if value is None or kind is bool:
            return value
        if kind is int:
            return self.whole(value)  # type: ignore[arg-type]
        if kind is float:
            return self.real(value)  # type: ignore[arg-type]
        if kind is dict:
            return self.mapping(value, value, depth)  # type: ignore[arg-type]
        if kind is list or kind is tuple:
            return self.sequence(value, depth)  # type: ignore[arg-type]
        return self.other(value, depth)

    def text(self, value: str) -> str:
        if "\0" in value:
            raise _Fault("a NUL character cannot be stored")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise _Fault("half a surrogate pair cannot be stored") from None
        return value

    def whole(self, value: int) -> int:
        if not -_SMALL_INT < value < _SMALL_INT and not -_MAX_INT < value < _MAX_INT:
            raise _Fault(f"a whole number of more than {MAX_DIGITS} digits cannot be stored")
        return value

    def real(self, value: float) -> float:
        if not -_LARGE_FLOAT < value < _LARGE_FLOAT:
            if not math.isfinite(value):
                raise _Fault(f"{value} cannot be stored: JSON has no such number")
            self.large_float = True
        return value + 0.0  # jsonb has no negative zero

    def number(self, value: Decimal | complex) -> str:
        """A number that JSON writes as text, like ``"1.10"``; one that is none is refused as a float's is."""
        if not (value.is_finite() if isinstance(value, Decimal) else cmath.isfinite(value)):
            raise _Fault(f"{value} cannot be stored: it is no finite number")
        (text,) = _by_pydantic(lambda: [to_jsonable_python(value)], value)
        return self.text(text)

    def secret(self, value: SecretStr | SecretBytes | Secret[Any], depth: int) -> Any:
        if self.hidden is None:
            return self.text(str(value))
        if not self.under:
            raise _Fault(
                f"a {type(value).__name__} is kept only under a key that some input= or output= of the workflow "
                "declares to be one, so that it is masked wherever people look; what they may see is its "
                "get_secret_value()"
            )
        inside = value.get_secret_value()
        if not isinstance(inside, bytes):
            return self.any(inside, depth)
        try:
            return self.text(inside.decode())
        except UnicodeDecodeError:
            raise _Fault("bytes that are no UTF-8 cannot be stored as JSON") from None

    def mapping(self, container: object, items: dict[Any, Any], depth: int) -> dict[str, Any]:
        if depth > MAX_DEPTH:
            raise _TooDeep
        under = self.under = self.under and depth > 1
        result: dict[str, Any] = {}
        count = 0
        for key, item in items.items():
            plain = type(key) is str and key.isascii() and "\0" not in key
            name = key if plain else self.key(key)
            count += 1
            kind = type(item)
            if item is None or kind is bool or (kind is str and item.isascii() and "\0" not in item):
                result[name] = item
                continue
            if self.keys:
                self.under = under or self.hides(name)
            try:
                result[name] = self.any(item, depth + 1)
            except _Fault as fault:
                raise fault.passed(container, name) from None
        self.under = under
        if len(result) != count:
            raise _Fault("two keys of a dict are the same text in JSON")
        return in_order(result) if count > 1 else result

    def sequence(self, items: Iterable[Any], depth: int) -> list[Any]:
        if depth > MAX_DEPTH:
            raise _TooDeep
        result: list[Any] = []
        for item in items:
            try:
                result.append(self.any(item, depth + 1))
            except _Fault as fault:
                raise fault.passed(items, len(result)) from None
        return result

    def key(self, key: object) -> str:
        """A dict's key as JSON text: itself, or what pydantic makes of a number, a date, an enum, ..."""
        if type(key) is not str:
            if isinstance(key, Enum):
                return self.key(key.value)
            if isinstance(key, bytes | bytearray | tuple | frozenset) or dataclasses.is_dataclass(key):
                raise _Fault(f"a {type(key).__name__} cannot be the key of a dict in JSON")
            if isinstance(key, float):
                self.real(key)
            if isinstance(key, str):
                key = str.__str__(key)
            else:
                (key,) = _by_pydantic(lambda: to_jsonable_python({key: None}), key)
        name: str = key  # type: ignore[assignment]
        if "\0" in name or not name.isascii():
            try:
                self.text(name)
            except _Fault as fault:
                raise _Fault(f"{fault.rule} (in the key {name[:40]!a})") from None
        return name

    def other(self, value: Any, depth: int) -> Any:
        """What is not of a plain type itself: by family, then as pydantic sees it."""
        if isinstance(value, Enum):
            return self.any(value.value, depth)
        if isinstance(value, str):
            return self.text(str.__str__(value))
        if isinstance(value, int):
            return self.whole(int.__int__(value))
        if isinstance(value, float):
            return self.real(float.__float__(value))
        if isinstance(value, Decimal | complex):
            return self.number(value)
        if isinstance(value, dict):
            return self.mapping(value, value, depth)
        if isinstance(value, list | tuple | set | frozenset | deque | GeneratorType):
            return self.sequence(value, depth)
        if isinstance(value, bytes | bytearray | memoryview):
            raise _Fault(f"{type(value).__name__} cannot be stored as JSON; encode it as text first")
        if isinstance(value, Promise):
            return self.text(str(value))
        if isinstance(value, _SECRETS):
            return self.secret(value, depth)
        serializer = getattr(type(value), "__pydantic_serializer__", None)
        if serializer is None and (advice := _advice(value)):
            raise _Fault(f"{_a(value)} cannot be stored as JSON: {advice}")
        if serializer is not None:
            dump = _by_pydantic(lambda: serializer.to_python(value, mode="json", warnings=False), value)
            if self.hidden is not None and _is_masked(dump):
                dump = with_secrets(dump, serializer.to_python(value, mode="python", warnings=False))
            return self.any(dump, depth)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return self.mapping(value, fields, depth)
        return self.any(_by_pydantic(lambda: to_jsonable_python(value), value), depth)


def with_secrets(dumped: Any, plain: Any) -> Any:
    """``dumped``, of mode "json", with the secrets that pydantic masked there put back from ``plain``, of mode
    "python". Where a serialiser of the user's own made another shape of it, its work stands.
    """
    if isinstance(plain, _SECRETS):
        return plain
    if isinstance(plain, dict) and isinstance(dumped, dict) and len(plain) == len(dumped):
        pairs = zip(dumped.items(), plain.values(), strict=True)
        return {key: with_secrets(item, other) for (key, item), other in pairs}
    if isinstance(plain, list | tuple | deque) and isinstance(dumped, list) and len(plain) == len(dumped):
        return [with_secrets(item, other) for item, other in zip(dumped, plain, strict=True)]
    if isinstance(plain, set | frozenset) and any(isinstance(item, _SECRETS) for item in plain):
        return list(plain)
    return dumped


def _is_masked(dump: Any) -> bool:
    """Whether something in it looks like a secret that pydantic has masked."""
    try:
        return _MASKED in to_json(dump)
    except ValueError:
        return True


def _by_pydantic(serialise: Callable[[], Any], value: object) -> Any:
    try:
        return serialise()
    except RecursionError:
        raise _Fault("nested too deeply") from None
    except Exception as error:
        reason = _line(error)
        if "Circular reference" in reason:
            raise _Fault("it contains itself") from None
        if "unknown type" in reason:
            # Of another value within it, it says which.
            within = "" if str(type(value)) in reason else f" ({reason})"
            raise _Fault(f"{_a(value)} cannot be stored as JSON{within}") from None
        raise _Fault(f"{_a(value)} cannot be stored as JSON ({type(error).__name__}: {reason})") from error


def _a(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def _advice(value: object) -> str | None:
    """What was probably meant, where what is to be stored is a mistake of a known kind."""
    if isawaitable(value) and not dataclasses.is_dataclass(value):
        return 'is an "await" missing?'
    if isinstance(value, Fatal | Retry):
        return "raise it instead of returning it"
    advice = getattr(type(value), "instead_of_storing_it", None)
    return advice if isinstance(advice, str) else None


def _write(value: Any) -> str:
    """Compact JSON of a normalised value, with large floats written out; slower than pydantic, and rare."""
    if type(value) is dict:
        return "{" + ",".join(f"{to_json(key).decode()}:{_write(item)}" for key, item in value.items()) + "}"
    if type(value) is list:
        return "[" + ",".join(map(_write, value)) + "]"
    if type(value) is float and not -_LARGE_FLOAT < value < _LARGE_FLOAT:
        return f"{value:.1f}"
    return to_json(value).decode()


def _path(keys: list[str | int]) -> str:
    """The way to the culprit, from the outside in: ``.lines[3].price``; a long one loses its middle."""
    shown = []
    for key in reversed(keys):
        if isinstance(key, int):
            shown.append(f"[{key}]")
        elif key.isidentifier() and key.isascii() and len(key) <= 80:
            shown.append(f".{key}")
        else:
            shown.append(f"[{key[:40]!a}]")
    if len(shown) > 12:
        shown[6:-4] = ["..."]
    return "".join(shown)


def _line(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())[:200]
    except Exception:
        return "its text cannot be shown"
