"""What goes into user code and what comes out of it: copied, validated, normalised."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from workflow import payload
from workflow.conf import conf
from workflow.errors import FailureCode
from workflow.plan import compact


class Invalid(Exception):
    """User data that fails an action for good; `code` says which kind."""

    def __init__(self, code: FailureCode, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.code = code
        self.cause = cause


def encode_output(
    value: Any, adapter: TypeAdapter[Any] | None, where: str, secret_keys: frozenset[str], key: str
) -> tuple[Any, str | None]:
    """A result checked, normalised, and as JSON text; None is no output. Raises `Invalid` or `PayloadInvalid`.

    Secrets are kept under `secret_keys`; one that is no dict will stand under `key`.
    """
    if adapter is not None:
        try:
            value = adapter.dump_python(adapter.validate_python(value), mode="python")
        except ValidationError as error:
            raise Invalid(FailureCode.OUTPUT_INVALID, error) from error
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
