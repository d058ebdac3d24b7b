"""Workflows of one action whose handler has durable steps, and what their bodies note down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.runs import staged
from workflow import Action, Workflow

calls: list[Any] = []
"""What was noted, in its order."""


@pytest.fixture(autouse=True)
def clear() -> None:
    calls.clear()


def note(value: Any) -> Any:
    calls.append(value)
    return value


def stepping(handler: Callable[..., Any], **options: Any) -> Workflow:
    return staged(Action("act", handler, **options))
