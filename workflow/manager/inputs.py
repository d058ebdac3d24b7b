"""From what a caller hands to ``dispatch`` to the JSON that the run keeps, checked on the way.

What is kept is made to be read again: actions validate the state with models of their own, often the
very one that the workflow's ``input=`` names.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from pydantic import SecretBytes, SecretStr, TypeAdapter, ValidationError

from workflow import payload
from workflow.conf import conf
from workflow.definitions import Workflow
from workflow.errors import InputInvalid, PayloadInvalid


class InputCodec:
    """The input of one workflow: what is needed of its schema is found out once."""

    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow.name
        self._adapter: TypeAdapter[Any] | None = workflow.input_adapter
        self._aliases = self._secrets = False
        if self._adapter is not None:
            self._aliases, self._secrets = _peculiarities(self._adapter)

    def encode(self, value: object, where: str = "input") -> str | None:
        """The validated input as JSON text; None for no input. ``where`` is for the messages.

        Raises ``InputInvalid`` for what the workflow's ``input=`` does not accept, and ``PayloadInvalid``
        for what can't be stored or is over the limit.
        """
        if self._adapter is not None:
            try:
                value = self._adapter.validate_python(value)
            except ValidationError as error:
                place = f'{where} of workflow "{self._workflow}"'
                raise InputInvalid.of(place, error) from None  # the cause would show the values
            value = self._dump(self._adapter, value, where)
        return None if value is None else payload.dumps(value, where, conf.MAX_PAYLOAD_BYTES)

    def _dump(self, adapter: TypeAdapter[Any], value: Any, where: str) -> Any:
        try:
            by_alias = self._aliases and not _reads_back(adapter, value)
            dumped = adapter.dump_python(value, mode="json", by_alias=by_alias, warnings=False)
            if self._secrets:
                plain = adapter.dump_python(value, mode="python", by_alias=by_alias, warnings=False)
                dumped = _reveal(plain, dumped)
        except Exception as error:  # serialisers may be the user's own
            rule = f"{type(error).__name__} while it was serialised: {error}"
            raise PayloadInvalid(f"{where}: {rule}") from error
        return dumped


_codecs: WeakKeyDictionary[Workflow, InputCodec] = WeakKeyDictionary()


def codec(workflow: Workflow) -> InputCodec:
    """The codec of a registered definition."""
    found = _codecs.get(workflow)
    if found is None:
        found = _codecs[workflow] = InputCodec(workflow)
    return found


def _peculiarities(adapter: TypeAdapter[Any]) -> tuple[bool, bool]:
    """Whether some field goes by another name outside, and whether one is a secret; (True, True) is safe."""
    try:
        outside, inside = adapter.json_schema(by_alias=True), adapter.json_schema(by_alias=False)
    except Exception:  # a type that has no JSON schema
        return True, True
    return outside != inside, "'writeOnly': True" in repr(outside)


def _reads_back(adapter: TypeAdapter[Any], value: Any) -> bool:
    """Whether the input under its fields' own names, as handlers like it best, validates to itself again."""
    try:
        dumped = adapter.dump_python(value, mode="json", by_alias=False, warnings=False)
        return bool(adapter.validate_python(dumped) == value)
    except ValidationError:
        return False


def _reveal(plain: Any, dumped: Any) -> Any:
    """``dumped`` with the secrets that pydantic masked put back from ``plain``: a handler needs them.

    They are masked where people look (see ``workflow.redact``). Where a serialiser of the user's own made
    another shape of it, its work stands.
    """
    if isinstance(plain, SecretStr):
        return plain.get_secret_value()
    if isinstance(plain, SecretBytes):
        return plain.get_secret_value().decode()
    if isinstance(plain, dict) and isinstance(dumped, dict) and len(plain) == len(dumped):
        return {key: _reveal(item, dumped[key]) for item, key in zip(plain.values(), dumped, strict=True)}
    if isinstance(plain, list | tuple) and isinstance(dumped, list) and len(plain) == len(dumped):
        return [_reveal(one, other) for one, other in zip(plain, dumped, strict=True)]
    return dumped
