"""What docs/how-to/deploy.md shows of bursts: a function that works for a while, called again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from tests.support.shown import shown
from tests.support.threads import elsewhere
from workflow import Stage, Workflow, workflows
from workflow.models import Job, Run
from workflow.registry import registry

pytestmark = pytest.mark.django_db(transaction=True)


def slow(state: dict[str, Any]) -> None:
    time.sleep(0.2)


SLOW = Workflow("bursts-slow", stages=[Stage("one", run=slow), Stage("two", run=slow)])


@pytest.fixture(scope="module")
def work() -> Callable[[float], None]:
    function: Callable[[float], None] = shown("docs/how-to/deploy.md", "Bursts instead of workers that stay")[
        "work"
    ]
    return function


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with registry.isolated():
        workflows.register(SLOW)
        yield


def test_one_process_may_be_called_again_and_again(work: Callable[[float], None]) -> None:
    for _ in range(2):
        handle = workflows.dispatch("bursts-slow")
        work(600)
        assert handle.status().run.status == "completed"


@override_settings(WORKFLOW={"CONCURRENCY": 4, "SHUTDOWN_GRACE": 10})
def test_a_burst_that_has_to_go_finishes_what_it_has_in_hand_and_leaves_the_rest(
    work: Callable[[float], None],
) -> None:
    workflows.dispatch_many("bursts-slow", [None] * 400)
    began = time.monotonic()
    work(2)
    assert time.monotonic() - began < 15  # all of it would take 40 seconds
    assert Run.objects.filter(status="pending").exists()
    assert Run.objects.filter(status="completed").exists()
    assert not Job.objects.filter(lease_token__isnull=False).exists()
    assert set(Job.objects.values_list("attempt", flat=True)) <= {0, 1}


def test_several_at_once_share_the_work(work: Callable[[float], None]) -> None:
    workflows.dispatch_many("bursts-slow", [None] * 40)
    with elsewhere() as start:
        other = start(lambda: call_command("workflow:worker", burst=True))
        work(600)
        other.result(60)
    assert set(Run.objects.values_list("status", flat=True)) == {"completed"}
    assert set(Run.objects.values_list("nodes__attempt", flat=True)) == {0, 1}
