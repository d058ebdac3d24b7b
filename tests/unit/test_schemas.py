"""Whether a schema may call functions of the user's."""

from __future__ import annotations

import datetime
import uuid
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    computed_field,
    field_serializer,
    model_validator,
)
from typing_extensions import TypedDict

from workflow.definitions.schemas import runs_code


class Colour(Enum):
    RED = "red"


class Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", title="Plain")

    n: int = Field(ge=0, le=10)
    at: datetime.datetime | None = None
    key: uuid.UUID | None = None
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    names: list[str] = []
    amount: Decimal = Decimal(0)
    more: dict[str, Plain] = {}


class Typed(TypedDict):
    n: int


@dataclass
class Data:
    n: int


class Validated(BaseModel):
    n: int

    @model_validator(mode="after")
    def check(self) -> Validated:
        return self


class Outer(BaseModel):
    inner: list[Validated]


class Serialised(BaseModel):
    n: int

    @field_serializer("n")
    def text(self, n: int) -> str:
        return str(n)


class Computed(BaseModel):
    n: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2 * self.n


class Made(BaseModel):
    names: list[str] = Field(default_factory=list)
    n: int = Field(default_factory=lambda: 1)


class Built(BaseModel):
    n: int

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)


class Opened(BaseModel):
    n: int

    def model_post_init(self, context: Any) -> None:
        pass


@dataclass
class Posted:
    n: int

    def __post_init__(self) -> None:
        pass


class Named(BaseModel):
    config: Validated


class Late(BaseModel):
    later: Unknown  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("schema", [Plain, Typed, Data, dict[str, int], list[Plain], int | None, Any])
def test_a_schema_of_plain_types_calls_nothing(schema: Any) -> None:
    assert not runs_code(TypeAdapter(schema))


@pytest.mark.parametrize(
    "schema",
    [
        Validated,
        Outer,
        Serialised,
        Computed,
        Made,
        Built,
        Opened,
        Posted,
        Named,
        Annotated[int, AfterValidator(abs)],
        Annotated[int, PlainSerializer(str)],
        dict[str, Validated] | None,
    ],
)
def test_one_with_functions_may_call_them(schema: Any) -> None:
    assert runs_code(TypeAdapter(schema))


def test_one_that_is_not_complete_may_do_anything() -> None:
    assert runs_code(TypeAdapter(Late))
    assert not runs_code(None)
