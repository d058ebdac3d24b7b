"""From what a caller hands to ``dispatch`` to the JSON that the run keeps, checked on the way.

What is kept is made to be read again: actions validate the state with models of their own, often the
very one that the workflow's ``input=`` names.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter, ValidationError

from workflow import payload
from workflow.conf import conf
from workflow.definitions import Workflow
from workflow.errors import InputInvalid, PayloadInvalid


class InputCodec:
    """The input of one workflow: what is needed of its schema is found out once."""

    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow.name
        self._adapter: TypeAdapter[Any] | None = workflow.input_adapter
        self._aliases = self._adapter is not None and _has_aliases(self._adapter)
        self._secrets = workflow.secret_keys

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
        if value is None:
            return None
        return payload.dumps(value, where, conf.MAX_PAYLOAD_BYTES, self._secrets, "input")

    def _dump(self, adapter: TypeAdapter[Any], value: Any, where: str) -> Any:
        try:
            by_alias = self._aliases and not _reads_back(adapter, value)
            dumped = adapter.dump_python(value, mode="json", by_alias=by_alias, warnings=False)
            if self._secrets:
                plain = adapter.dump_python(value, mode="python", by_alias=by_alias, warnings=False)
                dumped = payload.with_secrets(dumped, plain)
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


def _has_aliases(adapter: TypeAdapter[Any]) -> bool:
    """Whether some field goes by another name outside; True is safe."""
    try:
        return adapter.json_schema(by_alias=True) != adapter.json_schema(by_alias=False)
    except Exception:  # a type that has no JSON schema
        return True


def _reads_back(adapter: TypeAdapter[Any], value: Any) -> bool:
    """Whether the input under its fields' own names, as handlers like it best, validates to itself again."""
    try:
        dumped = adapter.dump_python(value, mode="json", by_alias=False, warnings=False)
        return bool(adapter.validate_python(dumped) == value)
    except ValidationError:
        return False
