"""Waits and events with real workers: whoever is first, the run goes on, once."""

from __future__ import annotations

import pytest

from tests.support import invariants
from tests.support.crash import dispatch, finished, key_of, status
from tests.support.workers import Launcher, eventually
from workflow import states, workflows

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("name", ["waiting", "queued-wait"])
def test_an_event_that_was_there_before_the_wait_parked_wakes_it(workers: Launcher, name: str) -> None:
    """The job that looks for it must not stand in the way of the job that goes on."""
    for _ in range(2):
        workers.start()
    handles = []
    for _ in range(20):
        handle = dispatch(name)
        workflows.publish("waiting.go", correlation=key_of(handle))
        handles.append(handle)
    finished(*handles, within=30)
    assert {status(handle) for handle in handles} == {states.COMPLETED}
    invariants.check(exact=True)


@pytest.mark.parametrize("name", ["waiting", "queued-wait"])
def test_an_event_that_comes_while_the_wait_is_parked_wakes_it(workers: Launcher, name: str) -> None:
    for _ in range(2):
        workers.start()
    handles = [dispatch(name) for _ in range(10)]
    eventually(lambda: {status(handle) for handle in handles} == {states.WAITING})
    for handle in handles:
        workflows.publish("waiting.go", correlation=key_of(handle))
    finished(*handles, within=30)
    assert {status(handle) for handle in handles} == {states.COMPLETED}
    invariants.check(exact=True)
