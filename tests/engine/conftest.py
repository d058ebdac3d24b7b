"""What the engine's behaviour tests share. They run inside one transaction, on `workflow.testing.drain`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workflow.registry import registry


@pytest.fixture(autouse=True)
def _fresh(db: None) -> Iterator[None]:
    with registry.isolated():
        yield
