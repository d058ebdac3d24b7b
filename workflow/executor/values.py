"""What goes into user code and what comes out of it: copied, validated, normalised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import TypeAdapter, ValidationError

from workflow import payload
from workflow.conf import conf
from workflow.errors import FailureCode, PayloadInvalid
from workflow.executor.interrupt import TimedOut
from workflow.plan import compact

NEVER_RETRIED = frozenset(
    {
        FailureCode.INPUT_INVALID,
        FailureCode.OUTPUT_INVALID,
        FailureCode.PAYLOAD_INVALID,
        FailureCode.PRECHECK_FAILED,
    }
)
"""Codes of what another attempt would be refused for as well."""


class Invalid(Exception):
    """User data that fails an action for good; `code` says which kind, `cause` is what a schema has raised."""

    def __init__(self, code: FailureCode, cause: BaseException) -> None:
        super().__init__(code)
        self.code = code
        self.cause = cause


@contextmanager
def refusals(code: FailureCode, kinds: type[BaseException] = BaseException) -> Iterator[None]:
    """Around a schema at work: whatever it raises, of these kinds, refuses the value, as a stage's `output=` does.

    pydantic makes an error of its own of a `ValueError` alone. Only what cannot be kept has a code of its own, and an
    attempt that is over ends as such.
    """
    try:
        yield
    except (PayloadInvalid, TimedOut):
        raise
    except kinds as error:
        raise Invalid(code, error) from error


def encode_output(
    value: Any, adapter: TypeAdapter[Any] | None, where: str, secret_keys: frozenset[str], key: str
) -> tuple[Any, str | None]:
    """A result checked, normalised, and as JSON text; None is no output. Raises `Invalid` or `PayloadInvalid`.

    Secrets are kept under `secret_keys`; one that is no dict will stand under `key`.
    """
    if adapter is not None:
        with refusals(FailureCode.OUTPUT_INVALID):
            value = adapter.dump_python(adapter.validate_python(value), mode="python")
    if value is None:
        return None, None
    return payload.encode(value, where, conf.MAX_PAYLOAD_BYTES, secret_keys, key)


def validated(adapter: TypeAdapter[Any], state: Any) -> Any:
    """The slice of the state that a schema describes. What only JSON mode accepts is tried as JSON.

    pydantic passes on by reference what a schema leaves open (`Any`, what is inside a bare `dict`), and a validator
    may change what it is shown: so they get a copy, as a handler without a schema does.
    """
    try:
        return adapter.validate_python(payload.copy_json(state))
    except ValidationError as error:
        try:
            return adapter.validate_json(compact(state))
        except ValidationError:
            raise error from None
