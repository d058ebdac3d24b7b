"""The OpenAPI document: whole, consistent, and no different from what the addresses really do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, override_settings
from django.urls import include, path

from tests.support import web
from tests.support.web import post
from workflow import workflows
from workflow.api import openapi, workflow_routes
from workflow.api.refusals import CODES
from workflow.registry import registry

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "api.md"


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {route}": operation
        for route, methods in document["paths"].items()
        for method, operation in methods.items()
    }


@pytest.fixture
def client(db: None) -> Client:
    return web.client_of(web.person("olga", "view_run", "manage_run"))


def fetched(client: Client) -> dict[str, Any]:
    response = client.get("/workflow/openapi.json")
    assert response["Content-Type"] == "application/json"
    document: dict[str, Any] = response.json()
    return document


def test_the_document_tells_where_it_stands(client):
    document = fetched(client)
    assert document["openapi"] == "3.1.0"
    assert document["servers"] == [{"url": "/workflow"}]
    with override_settings(ROOT_URLCONF=web.addresses(path("", include(workflow_routes())))):
        assert client.get("/openapi.json").json()["servers"] == [{"url": ""}]


def test_every_reference_leads_somewhere_and_every_schema_is_used(client):
    document = fetched(client)
    wanted = {node["$ref"] for node in walk(document) if "$ref" in node}
    there = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert wanted == there


def test_every_address_is_described_with_its_method_and_every_path_parameter(client):
    document = fetched(client)
    described = set(operations(document))
    mounted = {
        re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(pattern.pattern)): pattern for pattern in workflow_routes()
    }
    assert {f"/{route}" for route in mounted} == set(document["paths"])
    for entry in described:
        method, _, route = entry.partition(" ")
        operation = operations(document)[entry]
        in_path = [p["name"] for p in operation["parameters"] if p["in"] == "path"]
        assert in_path == re.findall(r"\{(\w+)\}", route)
        assert ("requestBody" in operation) == (method == "POST")
    ids = [operation["operationId"] for operation in operations(document).values()]
    assert len(set(ids)) == len(ids)


def test_the_parameters_are_the_contracts(client):
    document = fetched(client)

    def query(route: str) -> dict[str, Any]:
        parameters = document["paths"][route]["get"]["parameters"]
        return {p["name"]: p["schema"] for p in parameters if p["in"] == "query"}

    assert set(query("/")) == {"workflow", "status", "correlation", "limit", "after"}
    assert query("/")["limit"] == {"type": "integer", "default": 50, "minimum": 1, "maximum": 1000}
    assert query("/")["after"] == {"type": "string", "format": "uuid"}
    assert set(query("/{run_id}/history/")) == {"after", "limit"}
    assert query("/{run_id}/") == {}


def test_unknown_fields_are_ruled_out_in_every_request_and_in_no_answer(client):
    document = fetched(client)
    schemas = document["components"]["schemas"]
    for name, schema in schemas.items():
        strict = (name.endswith("Body") and name != "ErrorBody") or name == "Filter"
        assert (schema.get("additionalProperties") is False) == strict, name


def test_every_refusal_has_the_one_shape_and_names_its_codes(client):
    named: set[str] = set()
    for entry, operation in operations(fetched(client)).items():
        refusals = {s: r for s, r in operation["responses"].items() if int(s) >= 400}
        assert {"401", "403", "405", "422"} <= set(refusals), entry
        for status, refusal in refusals.items():
            content = refusal["content"]["application/json"]["schema"]
            assert content == {"$ref": "#/components/schemas/ErrorBody"}
            codes = re.findall(r"`([A-Z_]+)`", refusal["description"])
            assert codes
            assert {CODES[code] for code in codes} == {int(status)}
            named |= set(codes)
    assert named == set(CODES)


def test_what_really_comes_back_is_described(client):
    """Each address is asked in good and in bad ways; every status must be one that the document has."""
    web.FAULTY.clear()
    described = operations(openapi.document("/workflow/"))
    with registry.isolated():
        workflows.register(web.ORDER)
        workflows.register(web.FREE)
        run_id = web.waiting()
        filters = {"filter": {"status": "failed"}}
        bodies: dict[str, list[Any]] = {
            "/dispatch/": [{"workflow": "web-free"}, {"workflow": "no-such"}, {"workflow": "web-order"}, "{"],
            "/retry/": [filters, {}, "{"],
            "/cancel/": [filters, {}, "{"],
        }
        for entry, operation in described.items():
            method, _, route = entry.partition(" ")
            seen = set()
            for target in (run_id, "no-uuid"):
                address = "/workflow" + route.format(run_id=target)
                if method == "GET":
                    answers = [client.get(address), client.get(address, {"x": 1}), post(client, address)]
                else:
                    tried = bodies.get(route, [{"x": 1}, "{", {}, {}])
                    answers = [post(client, address, body) for body in tried] + [client.get(address)]
                for answer in [*answers, Client().get(address)]:
                    assert str(answer.status_code) in operation["responses"], (entry, answer.content)
                    seen.add(answer.status_code)
            assert len(seen) >= 4, entry


def test_the_document_needs_the_read_rule(db):
    assert Client().get("/workflow/openapi.json").status_code == 401
    writer = web.client_of(web.person("wim", "manage_run"))
    assert writer.get("/workflow/openapi.json").status_code == 403


def test_the_document_is_plain_json():
    assert json.loads(openapi.text("/x/")) == openapi.document("/x/")


def test_the_reference_lists_every_address_and_every_code():
    text = REFERENCE.read_text()
    for entry in operations(openapi.document("/workflow/")):
        method, _, route = entry.partition(" ")
        shown = route.removeprefix("/").replace("{run_id}", "<uuid>")
        assert f"`{method} {shown or chr(39) * 2}`" in text, entry
    assert {code: CODES[code] for code in CODES} == {
        code: int(status) for status, code in re.findall(r"^\| (\d{3}) \| `([A-Z_]+)` \|", text, re.MULTILINE)
    }
