"""A relay's turn: what it sends, and what becomes of jobs that could not be sent."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.db.models.functions import Now

from tests.support.definitions import PLAIN
from tests.support.workers import eventually
from workflow import workflows
from workflow.celery.relay import BATCH, Relay
from workflow.conf import conf
from workflow.models import Job
from workflow.store.ports import connection_parameters
from workflow.transports.celery import Unreachable, Unroutable

pytestmark = pytest.mark.django_db(transaction=True)


class Post:
    """Takes messages, and breaks after some."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, int]] = []
        self.breaks_after = 10**9
        self.refuses: set[str] = set()

    def connect(self) -> None:
        if self.breaks_after <= 0:
            raise Unreachable("no broker")

    def send(self, job_id: str, queue: str, priority: int) -> None:
        if len(self.sent) >= self.breaks_after:
            raise Unreachable("no broker")
        if job_id in self.refuses:
            raise Unroutable("a router of the project's")
        self.sent.append((job_id, queue, priority))

    def close(self) -> None:
        """Nothing."""


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
def relay(post: Post) -> Iterator[Relay]:
    made = Relay(post)
    yield made
    made._drop()


def test_a_database_that_is_away_is_one_line_and_waited_for(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = jobs(1)
    tries: list[int] = []

    def parameters() -> dict[str, Any]:
        tries.append(1)
        if len(tries) < 3:
            raise OperationalError("no route to it")
        return connection_parameters()

    relay = Relay(post, parameters)
    relay.start()
    try:
        eventually(lambda: post.sent)
    finally:
        relay.stop()
        relay.join(30)
    assert [job for job, _, _ in post.sent] == wanted
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "no route to it" in told[0]


def test_it_hears_of_jobs_and_stops_when_it_is_told_to(post: Post, settings: Any) -> None:
    settings.WORKFLOW = {"POLL_INTERVAL": 3600}
    relay = Relay(post)
    relay.start()
    try:
        for number in (1, 2, 3):
            workflows.dispatch(PLAIN, {})
            eventually(lambda number=number: len(post.sent) == number)
    finally:
        relay.stop()
        relay.join(30)
    assert not relay._thread.is_alive()


def jobs(count: int) -> list[str]:
    return [job_of(workflows.dispatch(PLAIN, {}).run_id) for _ in range(count)]


def job_of(run_id: uuid.UUID) -> str:
    return str(Job.objects.get(run_id=run_id).pk)


def unrung() -> set[str]:
    return {str(job) for job in Job.objects.filter(rung_at=None).values_list("pk", flat=True)}


def test_each_job_is_sent_once_with_its_queue_and_priority(relay: Relay, post: Post) -> None:
    low = job_of(workflows.dispatch(PLAIN, {}, queue="reports").run_id)
    high = job_of(workflows.dispatch(PLAIN, {}, priority=4).run_id)
    relay.turn()
    relay.turn()
    assert post.sent == [(high, "default", 4), (low, "reports", 0)]


def test_it_looks_again_at_once_while_there_is_more_and_then_when_something_comes_due(
    relay: Relay, post: Post
) -> None:
    workflows.dispatch_many(PLAIN, [{}] * (BATCH + 1))
    later = workflows.dispatch(PLAIN, {}, delay=3600).run_id
    assert relay.turn() == 0
    assert len(post.sent) == BATCH
    relay.turn()
    assert len(post.sent) == BATCH + 1
    Job.objects.filter(run_id=later).update(available_at=Now() + timedelta(seconds=conf.POLL_INTERVAL / 2))
    assert 0 < relay.turn() <= conf.POLL_INTERVAL / 2
    assert len(post.sent) == BATCH + 1


def test_what_could_not_be_sent_counts_as_not_rung(relay: Relay, post: Post) -> None:
    wanted = jobs(5)
    post.breaks_after = 2
    with pytest.raises(Unreachable):
        relay.turn()
    assert [job for job, _, _ in post.sent] == wanted[:2]
    assert unrung() == set(wanted[2:])
    post.breaks_after = 0
    with pytest.raises(Unreachable):
        relay.turn()
    assert unrung() == set(wanted[2:])
    post.breaks_after = 100
    relay.turn()
    assert [job for job, _, _ in post.sent] == wanted


def test_a_job_that_the_projects_routes_trip_over_keeps_no_other(
    relay: Relay, post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = jobs(3)
    post.refuses = {wanted[0]}
    relay.turn()
    assert [job for job, _, _ in post.sent] == wanted[1:]
    assert len(caplog.records) == 1
    relay.turn()
    assert len(post.sent) == 2
