"""Masking: keys at any depth, texts as well as texts can be masked, and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import override_settings
from pydantic import BaseModel, Field, SecretStr, ValidationError, create_model
from pydantic_core import PydanticKnownError

from workflow import Stage, Workflow
from workflow.redact import (
    MASK,
    masks,
    patterns_of,
    redact,
    redact_error,
    redact_run,
    redact_status,
    redact_text,
    secrets_of,
)
from workflow.registry import registry


class SomeRun(BaseModel):
    id: str = "0199"
    workflow: str = "order"
    status: str = "failed"
    state: Any = {}
    input: Any = None
    error: Any = None
    correlation_id: str | None = None
    created_at: datetime = datetime(2026, 1, 2, tzinfo=UTC)


class SomeNode(BaseModel):
    path: str = "order.pay"
    output: Any = None
    error: Any = None


class SomeStatus(BaseModel):
    run: SomeRun
    nodes: list[SomeNode]


def test_without_patterns_the_value_itself_comes_back():
    value = {"password": "S3CR3T"}
    assert redact(value, []) is value
    assert redact_text("password=S3CR3T", []) == "password=S3CR3T"


def test_a_matching_key_is_masked_at_any_depth_and_in_lists():
    value = {"user": {"api_token": "S3CR3T", "name": "Ann"}, "items": [{"password": "S3CR3T"}, 7]}
    assert redact(value, ["password", "*token*"]) == {
        "user": {"api_token": MASK, "name": "Ann"},
        "items": [{"password": MASK}, 7],
    }
    assert value["user"]["api_token"] == "S3CR3T", "what was given is left alone"


def test_keys_are_compared_without_regard_to_case_and_whole():
    value = {"PassWord": "a", "password_hint": "b", "Passwd": "c"}
    assert redact(value, ["PASSWORD"]) == {"PassWord": MASK, "password_hint": "b", "Passwd": "c"}
    assert redact(value, ["pass*"]) == dict.fromkeys(value, MASK)
    assert redact({"pin1": 1, "pin12": 2}, ["pin?"]) == {"pin1": MASK, "pin12": 2}


@pytest.mark.parametrize("secret", ["text", 12345, 1.5, True, ["a", "b"], {"deep": {"er": 1}}, ""])
def test_whatever_stands_under_the_key_is_masked_whole(secret):
    assert redact({"token": secret}, ["token"]) == {"token": MASK}


def test_an_absent_value_is_shown_as_absent():
    assert redact({"token": None}, ["token"]) == {"token": None}


def test_the_setting_is_the_default_and_is_read_at_each_call():
    with override_settings(WORKFLOW={"REDACT": ["iban"]}):
        assert redact({"iban": "DE1"}) == {"iban": MASK}
    with override_settings(WORKFLOW={"REDACT": []}):
        assert redact({"iban": "DE1"}) == {"iban": "DE1"}
    with override_settings(WORKFLOW={"REDACT": "iban"}):
        assert redact({"iban": "DE1", "i": 1}) == {"iban": MASK, "i": 1}, "one string is one pattern"


def test_a_secret_is_masked_where_it_turns_up_under_another_key():
    value = {"password": "hunter22", "log": "logged in with hunter22!", "short": "x"}
    assert redact(value, ["password"])["log"] == f"logged in with {MASK}!"


def test_short_values_and_truth_values_do_not_blank_other_texts():
    value = {"pin": "12", "secret": True, "other_secret": "null", "note": "12 True true null"}
    assert redact(value, ["pin", "*secret"])["note"] == "12 True true null"


def test_pydantics_secret_types_are_masked():
    assert redact({"a": SecretStr("S3CR3T")}, ["x"]) == {"a": MASK}


@pytest.mark.parametrize(
    "text",
    [
        "password=S3CR3T",
        "PASSWORD = S3CR3T",
        "password: S3CR3T",
        "password := S3CR3T",
        "'password' => 'S3CR3T'",
        '{"password": "S3CR3T"}',
        "{'password': 'S3CR3T'}",
        r'"{\"password\": \"S3CR3T\"}"',
        r'{"password": "a\"S3CR3T"}',
        "Login(name='ann', password='S3CR3T', age=3)",
        "Login(password=b'S3CR3T')",
        "https://example.org/?user=ann&password=S3CR3T&x=1",
        "user[password]=S3CR3T",
        "user.password=S3CR3T",
        '{"password": {"old": "S3CR3T", "new": ["S3CR3T)", "S3CR3T"]}}',
        '{"password": ["S3CR3T", "S3CR3T"]}',
        "{'password': 'S3CR3T that was cut o",
        '{"password": {"old": "S3CR3T", "ne',
        "password: Bearer S3CR3T",
        "error=password=S3CR3T",
        "'a': 'x, password=S3CR3T'",
        "if password == 'S3CR3T':",
        "line one\n    password = 'S3CR3T'\nline three",
        "password\n  Input should be a valid integer [type=int_type, input_value='S3CR3T', input_type=str]",
        "user.0.password\n  Wrong [type=int_type, input_value=['S3CR3T'], input_type=list]",
    ],
)
def test_values_are_masked_within_text(text):
    masked = redact_text(text, ["password"])
    assert "S3CR3T" not in masked
    assert MASK in masked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("charge(password='x', order='o-1')", f"charge(password={MASK}, order='o-1')"),
        ("?password=x&order=o-1", f"?password={MASK}&order=o-1"),
        ('{"password": {"a": "}"}, "order": "o-1"}', f'{{"password": {MASK}, "order": "o-1"}}'),
        ("no such order: o-1", "no such order: o-1"),
        ("the password was wrong", "the password was wrong"),
        ("passwords=2 my_password_x=1", "passwords=2 my_password_x=1"),
    ],
)
def test_what_stands_around_a_masked_value_stays(text, expected):
    assert redact_text(text, ["password"]) == expected


CONTEXT = {
    "error": "too short", "expected": "1", "class": "X", "gt": 1, "ge": 1, "lt": 1, "le": 1, "multiple_of": 2,
    "field_type": "List", "min_length": 1, "max_length": 2, "actual_length": 3, "pattern": "p", "encoding": "utf8",
    "encoding_error": "e", "tz_expected": 1, "tz_actual": 2, "expected_version": 4, "max_digits": 1,
    "decimal_places": 1, "whole_digits": 1, "expected_schemes": "https",
}  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        "missing", "extra_forbidden", "frozen_field", "greater_than", "multiple_of", "too_short", "string_type",
        "string_too_long", "string_pattern_mismatch", "enum", "literal_error", "dict_type", "bool_parsing",
        "int_parsing", "int_parsing_size", "int_from_float", "float_parsing", "bytes_too_short", "value_error",
        "assertion_error", "date_parsing", "date_past", "datetime_parsing", "datetime_object_invalid",
        "timezone_aware", "timezone_naive", "timezone_offset", "time_delta_parsing", "is_instance_of", "url_type",
        "url_parsing", "url_scheme", "url_syntax_violation", "uuid_type", "uuid_parsing", "uuid_version",
        "decimal_type", "decimal_max_digits", "fraction_parsing", "none_required", "finite_number", "json_type",
    ],
)  # fmt: skip
def test_what_pydantic_says_of_a_masked_field_stays(kind):
    text = (
        f"input of workflow: email: {PydanticKnownError(kind, CONTEXT).message()}; order_id: Field required"
    )
    assert redact_text(text, ["*email*"]) == text


@pytest.mark.parametrize(
    "text",
    [
        "password: Field",
        "password: Fieldrequired",
        "password=Field required",
        "password: 'Field required S3CR3T'",
        "password: Input",
        "password: Input should",
        "password: Input tag 'x' found using 'kind'",
        "password: S3CR3T, Field required",
        "password: Valued error",
    ],
)
def test_what_only_looks_like_it_is_masked(text):
    masked = redact_text(text, ["password"])
    assert masked.startswith(("password: " + MASK, "password=" + MASK))
    assert "S3CR3T" not in masked


def test_a_known_value_that_pydantics_message_repeats_is_masked():
    text = "password: Value error, S3CR3T is too short"
    assert redact_text(text, ["password"], ["S3CR3T"]) == f"password: Value error, {MASK} is too short"


def test_keys_with_spaces_are_found_in_quotes():
    assert (
        redact_text('{"credit card": "4111", "x": 1}', ["credit card"])
        == f'{{"credit card": {MASK}, "x": 1}}'
    )


def test_a_real_pydantic_error_shows_no_secret():
    class Login(BaseModel):
        name: str
        password: int

    with pytest.raises(ValidationError) as caught:
        Login.model_validate({"name": 5, "password": "S3CR3T-and-long" * 10})
    assert "S3CR3T" in str(caught.value)
    text = redact_text(str(caught.value), ["password"])
    assert "S3CR3T" not in text
    assert "input_value=5" in text, "the other field's value is not masked"
    details = redact(json.loads(caught.value.json()), ["password"])
    assert "S3CR3T" not in json.dumps(details)
    assert [entry["input"] for entry in details] == [5, MASK]


def test_an_error_keeps_its_code_node_and_type():
    error = {
        "code": "ACTION_FAILED",
        "node": "order.token.pay",
        "type": "TokenError",
        "message": "token=S3CR3T",
        "traceback": "...\n  token = 'S3CR3T'\nTokenError: token=S3CR3T",
        "compensation_failures": [
            {"code": "COMPENSATION_FAILED", "node": "order.token", "message": "said S3CR3T"}
        ],
    }
    shown = redact_error(error, ["*code*", "*node*", "type", "token"], secrets=["S3CR3T"])
    assert "S3CR3T" not in json.dumps(shown)
    assert (shown["code"], shown["node"], shown["type"]) == ("ACTION_FAILED", "order.token.pay", "TokenError")
    assert shown["compensation_failures"][0]["code"] == "COMPENSATION_FAILED"


def test_secrets_of_finds_nested_values_and_their_escaped_forms():
    found = secrets_of({"token": {"list": ['a"b\u00e9c', 123456]}, "x": "open"}, patterns=["token"])
    assert {'a"b\u00e9c', 'a\\"b\\u00e9c', "123456"} <= found
    assert "open" not in found


def test_a_status_shows_no_secret_anywhere_and_loses_nothing_else():
    order = {"order": "o-1", "user": {"api_token": "S3CR3T"}, "items": [{"password": "S3CR3T"}]}
    status = SomeStatus(
        run=SomeRun(
            state=order, input=order, error={"code": "ACTION_FAILED", "message": "tried S3CR3T", "node": "n"}
        ),
        nodes=[
            SomeNode(output={"session_token": "0THER-S3CRET", "order": "o-1"}),
            SomeNode(path="order.key", error={"code": "ACTION_FAILED", "traceback": "0THER-S3CRET S3CR3T"}),
        ],
    )
    shown = redact_status(status, ["*token*", "password", "id", "workflow", "status", "path"])
    text = shown.model_dump_json()
    assert "S3CR3T" not in text
    assert "0THER" not in text
    assert (shown.run.id, shown.run.workflow, shown.run.status) == ("0199", "order", "failed")
    assert [node.path for node in shown.nodes] == ["order.pay", "order.key"]
    assert shown.run.state["order"] == shown.nodes[0].output["order"] == "o-1"
    assert status.run.input["user"]["api_token"] == "S3CR3T", "what was given is left alone"


def test_a_run_of_a_list_shows_no_secret():
    run = SomeRun(input={"pin_code": "998877"}, error={"code": "X", "message": "pin 998877"})
    assert "998877" not in redact_run(run, ["pin*"]).model_dump_json()
    assert redact_run(run, []) is run


@pytest.mark.parametrize(
    "text",
    [
        "a" * 200_000,
        "a." * 100_000,
        "'" * 100_000,
        "a=" * 100_000,
        "password={" * 20_000,
        "password='" * 20_000,
        "x\n  input_value=" + "input_value=" * 20_000,
        "\\" * 100_000 + "'",
        "{'password': '" + "\\" * 100_000,
    ],
    ids=str.__len__,
)
def test_hostile_text_takes_no_unreasonable_time(text):
    started = time.perf_counter()
    redact_text(text, ["password"])
    assert time.perf_counter() - started < 5


# What schemas declare


class Login(BaseModel):
    user: str
    pass_word: SecretStr


@pytest.fixture
def login() -> Iterator[str]:
    with registry.isolated():
        registry.clear()
        registry.register(
            Workflow("login", input=Login, stages=[Stage("sign", run=len, output=list[SecretStr])])
        )
        registry.register(Workflow("other", stages=[Stage("sign", run=len)]))
        yield "login"


def test_what_a_workflows_schemas_declare_secret_is_masked_in_its_runs_alone(login):
    data = {"pass_word": "hunter22", "user": "Ann"}
    shown = redact_run(SomeRun(workflow="login", input=data, state=data))
    assert shown.input == shown.state == {"pass_word": MASK, "user": "Ann"}
    other = SomeRun(workflow="other", input=data, state=data)
    assert redact_run(other) is other
    assert patterns_of("login") == ("pass_word", "sign")
    assert patterns_of("other") == ()
    assert (masks("login"), masks("other")) == (True, False)


def test_where_nobody_knows_whose_data_it_is_all_workflows_count(login):
    assert (
        redact({"pass_word": "hunter22"})
        == redact({"pass_word": "hunter22"}, workflow="gone")
        == {"pass_word": MASK}
    )
    assert redact({"pass_word": "hunter22"}, workflow="other") == {"pass_word": "hunter22"}
    assert redact_text("pass_word=hunter22") == f"pass_word={MASK}"
    assert redact_error({"message": "pass_word=hunter22"}) == {"message": f"pass_word={MASK}"}
    assert "hunter22" in secrets_of({"pass_word": "hunter22"})
    assert masks() is masks("gone") is True


def test_the_setting_adds_to_what_schemas_say(login):
    with override_settings(WORKFLOW={"REDACT": ["user"]}):
        assert patterns_of("login") == ("user", "pass_word", "sign")
        assert redact({"pass_word": "a", "user": "b", "c": 1}, workflow="login") == {
            "pass_word": MASK, "user": MASK, "c": 1,
        }  # fmt: skip
        assert patterns_of("other") == ("user",)


def test_a_fields_name_is_no_pattern_but_all_is_all():
    with registry.isolated():
        registry.clear()
        odd = create_model("Odd", x=(SecretStr, Field(alias="pin[*]?")))
        registry.register(Workflow("odd", input=odd, stages=[Stage("s", run=len)]))
        assert redact({"pin[*]?": "1234", "pin*": "a", "pin1": "b"}) == {
            "pin[*]?": MASK,
            "pin*": "a",
            "pin1": "b",
        }
        registry.register(Workflow("all", input=dict[str, SecretStr], stages=[Stage("s", run=len)]))
        assert redact({"a": "1", "b": {"c": 2}}, workflow="all") == {"a": MASK, "b": MASK}


def test_what_is_no_dict_stands_under_its_nodes_key(login):
    status = SomeStatus(
        run=SomeRun(
            workflow="login",
            input="plain",
            state={"sign": ["s3cret", "s3cret2"]},
            error={"message": "no s3cret!"},
        ),
        nodes=[
            SomeNode(path="login.sign.sign#run", output=["s3cret", "s3cret2"]),
            SomeNode(path="login.sign.other", output="see s3cret2"),
            SomeNode(path="login.sign.nothing"),
        ],
    )
    shown = redact_status(status)
    assert shown.run.state == {"sign": MASK}
    assert shown.run.input == "plain"
    assert [node.output for node in shown.nodes] == [MASK, f"see {MASK}", None]
    assert shown.run.error == {"message": f"no {MASK}!"}
    with override_settings(WORKFLOW={"REDACT": ["input"]}):
        assert redact_run(status.run).input == MASK
