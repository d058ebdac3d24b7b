"""Which keys of a run's data are secret, by the schemas of its workflow.

A field is secret that pydantic hides (``SecretStr``, ``SecretBytes``, ``Secret[...]``), alone or in a list, a dict or a
union, and one whose JSON schema says ``writeOnly``. The JSON schema is what tells: it has the names that fields go by
outside, and pydantic makes it of every type that it knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from workflow.definitions.actions import Action
from workflow.definitions.stages import Stage

if TYPE_CHECKING:
    from workflow.definitions.pipelines import Workflow

ANY: Final = "*"
"""Stands for all keys: a dict of secrets whose keys nobody can know becomes part of the state."""

_MODULE: Final = "pydantic.types"
_WORD: Final = "secret"
"""In the name of the function there that writes a secret's mask, in every release of pydantic so far."""
_SHOWN: Final = re.compile(r"<(class 'pydantic\.types\.|function )_?(serialize_)?secret", re.IGNORECASE)
"""How such a type shows up in the repr of a core schema."""


def secret_keys(workflow: Workflow) -> frozenset[str]:
    """The keys, in lower case, of the state, inputs and outputs of a workflow's runs whose values are secret."""
    keys: set[str] = set()
    known: dict[int, _Keys] = {}
    for adapter, key in _schemas(workflow):
        found = known.get(id(adapter)) or known.setdefault(id(adapter), _Keys(adapter))
        keys |= found.names
        if found.bare and key:
            keys.add(key)
    return frozenset(key.lower() for key in keys)


def _schemas(workflow: Workflow) -> Iterator[tuple[TypeAdapter[Any], str]]:
    """Each schema, and the key under which a value nests that is no dict; "" for one that is only read."""
    if workflow.input_adapter is not None:
        yield workflow.input_adapter, "input"
    for node in workflow.tree.nodes[1:]:
        definition = node.definition
        if isinstance(definition, Action) and definition.input_adapter is not None:
            yield definition.input_adapter, ""
        if isinstance(definition, Action | Stage) and definition.output_adapter is not None:
            yield definition.output_adapter, node.key


class _Keys:
    """``names`` are the secret fields of a schema; ``bare`` says that a secret stands in it outside of any field."""

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self.names: set[str] = set()
        self.bare = False
        try:
            self._collect(adapter, "validation", by_alias=False)
            self._collect(adapter, "serialization", by_alias=True)
            if self.names:
                self._collect(adapter, "validation", by_alias=True)
                self._collect(adapter, "serialization", by_alias=False)
        except Exception:
            # A type's own hook has raised. What it has no words for may still hold a secret.
            if _SHOWN.search(repr(adapter.core_schema)):
                self.names.add(ANY)

    def _collect(
        self, adapter: TypeAdapter[Any], mode: Literal["validation", "serialization"], *, by_alias: bool
    ) -> None:
        schema = adapter.json_schema(mode=mode, by_alias=by_alias, schema_generator=_Lenient)
        self._definitions: dict[str, Any] = schema.get("$defs", {})
        self._seen: dict[tuple[str, bool], bool] = {}
        self.bare = self._walk(schema, inside=False) or self.bare

    def _walk(self, schema: Any, *, inside: bool) -> bool:
        """Whether a secret stands here outside of any field; ``inside`` tells that a field is around it.

        Walks all of it, wherever the first secret is: the names are what matters.
        """
        if not isinstance(schema, dict):
            return False
        found = schema.get("writeOnly") is True
        if isinstance(reference := schema.get("$ref"), str):
            found |= self._referred(reference.removeprefix("#/$defs/"), inside=inside)
        for name, field in schema.get("properties", {}).items():
            if self._walk(field, inside=True):
                self.names.add(name)
        for value in (schema.get("additionalProperties"), *schema.get("patternProperties", {}).values()):
            if self._walk(value, inside=inside):
                found |= inside
                self.names |= set() if inside else {ANY}
        for keyword in ("items", "prefixItems", "anyOf", "oneOf", "allOf"):
            parts = schema.get(keyword)
            for part in parts if isinstance(parts, list) else [parts]:
                found |= self._walk(part, inside=inside)
        return found

    def _referred(self, name: str, *, inside: bool) -> bool:
        if (name, inside) not in self._seen:
            self._seen[name, inside] = False  # what refers to itself adds nothing
            self._seen[name, inside] = self._walk(self._definitions.get(name), inside=inside)
        return self._seen[name, inside]


class _Lenient(GenerateJsonSchema):
    """Says of everything what it can, and marks all secrets alike."""

    def json_or_python_schema(self, schema: core_schema.JsonOrPythonSchema) -> JsonSchemaValue:
        made = super().json_or_python_schema(schema)
        function: Any = schema.get("serialization", {}).get("function")
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
        secret = module == _MODULE and _WORD in name.lower()
        return {**made, "writeOnly": True} if secret else made

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}

    def emit_warning(self, kind: Any, detail: str) -> None:
        pass
