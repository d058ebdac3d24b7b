"""What docs/how-to/queues-and-priorities.md shows of work that another system does, with a thread as that system."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from django.db import connections

from tests.support.shown import shown
from workflow import Fatal, RunHandle, Stage, Workflow, action, workflows
from workflow.models import Event, Step
from workflow.registry import registry
from workflow.testing import advance, drain

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = "docs/how-to/queues-and-priorities.md"


class Renderer:
    """The other system: what it is given waits until `work()` does it in a thread, with the page's own task."""

    def __init__(self) -> None:
        films = ModuleType("shop.films")
        films.__dict__["render_to_file"] = lambda film: self.render_to_file(film)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "shop", ModuleType("shop"))
            patch.setitem(sys.modules, "shop.films", films)
            page = shown(PAGE, "Hand work to another system")
        self.film, self.action, self.task = page["film"], page["render_film"], page["render"]
        page["enqueue"] = lambda film: self.enqueue(film)  # the page's own needs a broker
        self.given: list[tuple[str, str]] = []
        self.broken = self.prompt = False

    def enqueue(self, film: str) -> str:
        task_id = str(uuid.uuid4())
        self.given.append((task_id, film))
        if self.prompt:
            self.work()
        return task_id

    def render_to_file(self, film: str) -> str:
        if self.broken:
            raise OSError("no graphics card")
        return f"{film}.mp4"

    def work(self, index: int = -1) -> None:
        task_id, film = self.given[index]

        def run() -> None:
            try:
                self.task.apply(args=(film,), task_id=task_id)
            finally:
                connections.close_all()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(30)


@pytest.fixture(scope="module")
def other_system() -> Renderer:
    """One for all: Celery takes a task of each name once."""
    return Renderer()


@pytest.fixture
def renderer(other_system: Renderer) -> Iterator[Renderer]:
    other_system.given.clear()
    other_system.broken = other_system.prompt = False
    with registry.isolated():
        workflows.register(other_system.film)
        yield other_system


def begun() -> RunHandle:
    handle = workflows.dispatch("film", {"film": "f"})
    drain()
    return handle


def test_the_answer_ends_the_wait_and_the_work_is_given_away_once(renderer: Renderer) -> None:
    handle = begun()
    assert handle.status().run.status == "running"
    renderer.work()
    renderer.work()  # as a broker may deliver it twice
    drain()
    assert handle.status().run.status == "completed"
    assert handle.status().run.state == {"film": "f", "file": "f.mp4"}
    assert (len(renderer.given), Event.objects.count()) == (1, 1)


def test_an_answer_that_is_there_before_the_wait_counts(renderer: Renderer) -> None:
    renderer.prompt = True
    assert begun().status().run.state["file"] == "f.mp4"
    assert len(renderer.given) == 1


def test_after_an_error_and_after_silence_the_next_attempt_gives_it_away_anew(renderer: Renderer) -> None:
    handle = begun()
    renderer.broken = True
    renderer.work()
    drain()
    renderer.broken = False
    advance(61)
    drain()
    assert len(renderer.given) == 2
    advance(6 * 3600 + 1)
    drain()
    advance(121)
    drain()
    assert len(renderer.given) == 3
    renderer.work(1)  # too late: the answer to a task that nobody waits for any more
    drain()
    assert handle.status().run.status == "running"
    renderer.work()
    drain()
    status = handle.status()
    assert (status.run.status, status.nodes[-1].attempt) == ("completed", 3)


def test_an_answer_to_a_run_that_was_cancelled_changes_nothing(renderer: Renderer) -> None:
    handle = begun()
    handle.cancel()
    renderer.work()
    drain()
    assert handle.status().run.status == "cancelled"
    assert Step.objects.get(kind="event").status == "failed"


def test_an_action_that_is_done_again_is_not_given_the_answer_to_its_first_task(renderer: Renderer) -> None:
    """What it would be given, were the answer about the run."""

    @action(attempts=1)
    def cut(state: dict[str, Any]) -> None:
        raise Fatal("the scissors are blunt")

    stages = [Stage("render", actions=[renderer.action]), Stage("cut", actions=[cut])]
    handle = workflows.dispatch(Workflow("cut-film", stages=stages, on_failure="halt"), {"film": "f"})
    drain()
    renderer.work()
    drain()
    assert handle.status().run.status == "failed"
    workflows.retry(handle.run_id, "cut-film.render")
    drain()
    assert (len(renderer.given), handle.status().run.status) == (2, "running")
    renderer.work()
    drain()
    assert handle.status().run.status == "failed"
