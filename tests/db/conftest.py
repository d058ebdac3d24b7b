"""What a test registers is forgotten after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workflow.registry import registry


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with registry.isolated():
        yield
