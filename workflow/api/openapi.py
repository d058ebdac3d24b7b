"""The OpenAPI document, made of the models that check requests and write answers, and of nothing else."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Literal

from django.conf import settings
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from workflow.api import refusals
from workflow.api.operations import COMMON, OPERATIONS, Operation
from workflow.api.schemas import ErrorBody, NoBody

VERSION: Final = "1"
"""Of the API, not of the package: it counts what clients would have to follow."""
_TEMPLATE: Final = "#/components/schemas/{model}"
_MEANINGS: Final = {
    304: "Nothing has changed since the answer with that ETag.",
    400: "The request could not be read.",
    401: "It is not known who asks.",
    403: "Not allowed, or the CSRF check failed.",
    404: "There is no such thing.",
    405: "Another method; `Allow` tells which.",
    409: "The state of things does not allow it. Nothing was changed.",
    422: "The request is not what it should be.",
}

Mode = Literal["validation", "serialization"]
Key = tuple[type[BaseModel], Mode]


def text(base: str, *, by_session: bool = True) -> str:
    """The document as JSON; ``base`` is the path under which the addresses are. ``by_session``: Django's sessions tell
    who asks, and not a rule of the project's, of which the document says nothing.
    """
    return json.dumps(document(base, by_session=by_session), ensure_ascii=False)


def document(base: str, *, by_session: bool = True) -> dict[str, Any]:
    """The document as plain data."""
    made = _made()
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Workflows",
            "version": VERSION,
            "description": "Dispatch, look at and steer durable workflows.",
        },
        "servers": [{"url": base.rstrip("/")}],
        "paths": made["paths"],
        "components": {"schemas": made["schemas"]},
    }
    if by_session:
        found["security"] = [{"session": []}]
        found["components"]["securitySchemes"] = {
            "session": {
                "type": "apiKey",
                "in": "cookie",
                "name": settings.SESSION_COOKIE_NAME,
                "description": "A staff user's session. Writes carry the CSRF token in `X-CSRFToken`.",
            }
        }
    return found


@lru_cache(maxsize=1)
def _made() -> dict[str, Any]:
    """Paths and schemas; they depend on the code alone."""
    refs, definitions = models_json_schema(_models(), ref_template=_TEMPLATE)
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for operation in OPERATIONS:
        paths[_path(operation)][operation.method.lower()] = _operation(operation, refs)
    paths["/openapi.json"]["get"] = {
        "operationId": "openapi",
        "summary": "This document",
        "parameters": [],
        "responses": {
            "200": {
                "description": "The document.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            **_refusals(COMMON, refs),
        },
    }
    return {"paths": dict(paths), "schemas": definitions["$defs"]}


def _models() -> list[tuple[type[BaseModel], Mode]]:
    found: dict[Key, None] = {(ErrorBody, "serialization"): None}
    for operation in OPERATIONS:
        if operation.writes:
            found[operation.body, "validation"] = None
        for model in operation.answers.values():
            found[model, "serialization"] = None
    return list(found)


def _path(operation: Operation) -> str:
    return "/" + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", operation.route)


def _operation(operation: Operation, refs: dict[Any, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": operation.name.replace("-", "_"),
        "summary": operation.summary,
        "parameters": _parameters(operation),
        "responses": {**_answers(operation, refs), **_refusals(operation.codes, refs)},
    }
    if operation.writes:
        schema = refs[operation.body, "validation"]
        required = operation.body is not NoBody and any(
            field.is_required() for field in operation.body.model_fields.values()
        )
        made["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema}}}
    return made


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if "run_id" in operation.route:
        schema = {"type": "string", "format": "uuid"}
        found.append({"name": "run_id", "in": "path", "required": True, "schema": schema})
    for name, schema in operation.query.model_json_schema().get("properties", {}).items():
        parameter = {"name": name, "in": "query", "required": False, "schema": _plain(schema)}
        found.append({**parameter, "description": schema["description"]})
    if operation.tagged:
        parameter = {"name": "If-None-Match", "in": "header", "required": False, "schema": {"type": "string"}}
        found.append({**parameter, "description": "The ETag of an earlier answer."})
    return found


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter's schema. One that may be left out is no text that says null."""
    given = next((part for part in schema.get("anyOf", ()) if part != {"type": "null"}), schema)
    described = {key: value for key, value in given.items() if key not in {"title", "description"}}
    if schema.get("default") is not None:
        described["default"] = schema["default"]
    return described


def _answers(operation: Operation, refs: dict[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, model in operation.answers.items():
        schema = refs[model, "serialization"]
        meaning = (model.__doc__ or "").strip().split("\n")[0]
        found[str(status)] = {
            "description": meaning,
            "content": {"application/json": {"schema": schema}},
        }
        if operation.tagged:
            found[str(status)]["headers"] = {"ETag": {"schema": {"type": "string"}}}
    if operation.tagged:
        found["304"] = {"description": _MEANINGS[304]}
    return found


def _refusals(codes: Iterable[str], refs: dict[Any, Any]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = defaultdict(list)
    for code in codes:
        by_status[refusals.CODES[code]].append(code)
    schema = refs[ErrorBody, "serialization"]
    return {
        str(status): {
            "description": f"{_MEANINGS[status]} Codes: {', '.join(f'`{code}`' for code in sorted(found))}.",
            "content": {"application/json": {"schema": schema}},
        }
        for status, found in sorted(by_status.items())
    }
