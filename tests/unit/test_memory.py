"""A worker looks for cyclic garbage seldom, still finds it, and leaves the process as it was."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from workflow.worker.memory import THRESHOLDS, collected_seldom


class Knot:
    """Refers to itself: only the collector gets rid of it."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    yield
    gc.set_threshold(*before)
    if not frozen:
        gc.unfreeze()


def test_the_process_is_left_as_it_was() -> None:
    gc.set_threshold(700, 10, 10)
    frozen = gc.get_freeze_count()
    with collected_seldom():
        assert gc.get_threshold()[0] == THRESHOLDS[0]
        assert gc.get_freeze_count() > frozen
    assert gc.get_threshold()[:2] == (700, 10)
    assert gc.get_freeze_count() == 0


def test_garbage_is_collected_all_the_same() -> None:
    gc.set_threshold(700, 10, 10)
    with collected_seldom():
        gone = weakref.ref(Knot())
        kept = [[number] for number in range(5 * THRESHOLDS[0])]
        assert gone() is None
        assert kept


@pytest.mark.parametrize("own", [(50_000, 20, 20), (0, 10, 10)])
def test_what_the_project_has_set_itself_stands(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with collected_seldom():
        assert gc.get_threshold()[:2] == own[:2]
