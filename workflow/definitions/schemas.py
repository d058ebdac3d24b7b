"""Whether a schema calls anything but pydantic's own compiled code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter

_UNCALLED: Final = frozenset({"metadata", "config", "ref", "schema_ref"})
"""Keys of a core schema under which no validation and no serialisation looks for anything to call."""
_CALLING: Final = ("function", "computed_fields", "post_init", "custom_init")
"""Keys whose mere presence says that something is called."""
_NAMED: Final = ("fields", "choices")
"""What stands under these goes by names of the user's."""


def runs_code(adapter: TypeAdapter[Any] | None) -> bool:
    """Whether validating or dumping may call Python functions: validators, serialisers, default factories, computed
    fields, a model's own `__init__`. They may do whatever user code does: take their time, ask the database.

    Some of pydantic's own types do so too; for those, and where it cannot be told, the answer is yes.
    """
    if adapter is None:
        return False
    return not adapter.pydantic_complete or _calls(adapter.core_schema)


def _calls(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        if any(schema.get(key) for key in _CALLING):
            return True
        return any(
            any(map(_calls, value.values()))
            if key in _NAMED and isinstance(value, Mapping)
            else _calls(value)
            for key, value in schema.items()
            if key not in _UNCALLED
        )
    if isinstance(schema, list | tuple):
        return any(map(_calls, schema))
    return callable(schema) and not isinstance(schema, type)
