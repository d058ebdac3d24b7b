"""Which keys of a workflow's data are secret: what its schemas say, under every name a field goes by."""

from __future__ import annotations

import dataclasses
from datetime import date, datetime
from typing import Any

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    computed_field,
)
from typing_extensions import TypedDict

from workflow import Action, Stage, Workflow


def nothing(state: Any) -> None: ...


def keys(schema: Any = None, stage: Stage | None = None) -> set[str]:
    """The secret keys of a workflow with this input and this stage."""
    return set(Workflow("shop", input=schema, stages=[stage or Stage("pay", run=nothing)]).secret_keys)


class Plain(BaseModel):
    name: str
    tags: dict[str, list[int]] = {}


class Card(BaseModel):
    number: SecretStr
    holder: str


class Branch(BaseModel):
    pin: SecretStr | None = None
    children: list[Branch] = []


@dataclasses.dataclass
class Login:
    token: SecretBytes
    name: str


class Keys(TypedDict):
    private: SecretStr
    public: str


class Anything:
    """Of no type that JSON schema knows."""


class Everything(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    born: Secret[date]
    many: list[SecretStr] = []
    by_name: dict[str, tuple[SecretStr, int]] = {}
    either: int | SecretStr = 1
    note: str = Field("", json_schema_extra={"writeOnly": True})
    other: Anything | None = None
    at: datetime = Field(default_factory=datetime.now)
    text: str = ""


class Computed(BaseModel):
    user: str

    @computed_field
    def signature(self) -> SecretStr:
        return SecretStr(self.user)


class Aliased(BaseModel):
    one: SecretStr = Field(alias="eins")
    two: SecretStr = Field(validation_alias="zwei", serialization_alias="Deux")


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (None, set()),
        (Plain, set()),
        (list[int], set()),
        (Card, {"number"}),
        (TypeAdapter(Card), {"number"}),
        (list[Card], {"number"}),
        (Card | Plain | None, {"number"}),
        (Branch, {"pin"}),
        (Login, {"token"}),
        (Keys, {"private"}),
        (Everything, {"born", "many", "by_name", "either", "note"}),
        (Computed, {"signature"}),
        (Aliased, {"one", "eins", "two", "zwei", "deux"}),
        (SecretStr, {"input"}),
        (list[SecretStr], {"input"}),
        (RootModel[list[SecretStr]], {"input"}),
        (dict[str, SecretStr], {"*"}),
        (dict[str, list[SecretStr] | int], {"*"}),
    ],
    ids=lambda value: None if isinstance(value, set) else str(value),  # sets are written in any order
)
def test_secret_fields_are_found_by_the_names_they_go_by(schema: Any, expected: set[str]) -> None:
    assert keys(schema) == expected


def test_every_schema_of_the_workflow_counts() -> None:
    action = Action("charge", nothing, input=Card, output=Login)
    stage = Stage("pay", actions=[action], output=Branch)
    assert keys(Keys, stage) == {"private", "number", "token", "pin"}


def test_an_output_without_fields_is_secret_under_its_nodes_key() -> None:
    assert keys(stage=Stage("pay", actions=[Action("charge", nothing, output=SecretStr)])) == {"charge"}
    assert keys(stage=Stage("pay", run=nothing, output=list[SecretStr])) == {"pay"}


def test_an_input_that_an_action_only_reads_stands_nowhere() -> None:
    assert keys(stage=Stage("pay", actions=[Action("charge", nothing, input=SecretStr)])) == set()


class Mute(BaseModel):
    token: SecretStr

    @classmethod
    def __get_pydantic_json_schema__(cls, *arguments: Any) -> Any:
        raise RuntimeError("no words")


class MutePlain(Plain):
    @classmethod
    def __get_pydantic_json_schema__(cls, *arguments: Any) -> Any:
        raise RuntimeError("no words")


def test_a_schema_that_cannot_be_read_hides_everything_if_there_is_something_to_hide() -> None:
    assert keys(Mute) == {"*"}
    assert keys(MutePlain) == set()


def test_they_are_found_out_once() -> None:
    workflow = Workflow("shop", input=Card, stages=[Stage("pay", run=nothing)])
    assert workflow.secret_keys is workflow.secret_keys
