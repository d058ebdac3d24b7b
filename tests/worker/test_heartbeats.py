"""One statement renews all that a process holds, however much it is, and waits for nobody."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from django.db import connection

from tests.support.crash import dispatch
from tests.support.workers import Launcher, database_url, eventually
from workflow.models import Job
from workflow.models import Worker as WorkerRow
from workflow.store.ports import connection_parameters
from workflow.worker import heartbeat as heartbeat_module
from workflow.worker.heartbeat import Heartbeat
from workflow.worker.outage import Outage

pytestmark = pytest.mark.crash

MANY = 60


def held(worker_id: uuid.UUID) -> list[tuple[str, str]]:
    """So many jobs that the worker claimed an hour ago."""
    for _ in range(MANY):
        dispatch("plain")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workflow_job SET lease_token = gen_random_uuid(), worker_id = %s, attempt = 1, "
            "locked_at = now() - interval '1 hour', started_at = now() - interval '1 hour' "
            "RETURNING id::text, lease_token::text",
            [worker_id],
        )
        return cursor.fetchall()


def stale() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM workflow_job WHERE locked_at < now() - interval '30 minutes'")
        found: int = cursor.fetchone()[0]
        return found


def test_one_statement_renews_every_lease_and_tells_which_are_lost(workers: Launcher, tmp_path: Path) -> None:
    worker = WorkerRow.objects.create(hostname="here", pid=1, concurrency=1, threads=1)
    leases = held(worker.pk)
    seen = worker.seen_at
    lost: list[bool] = []
    heartbeat = Heartbeat(
        connection_parameters, str(worker.pk), lambda: leases, lambda: lost.append(True), lambda: 2, Outage()
    )
    heartbeat._beat()  # connects
    assert stale() == 0
    assert not lost
    Job.objects.filter(pk=leases[0][0]).update(lease_token=uuid.uuid4())  # taken by another
    with (tmp_path / "trace").open("w+") as trace, psycopg.connect(database_url()) as other:
        other.execute("SELECT 1 FROM workflow_worker FOR UPDATE")
        other.execute("SELECT 1 FROM workflow_job WHERE id = %s FOR UPDATE", [leases[1][0]])
        assert heartbeat._connection is not None
        heartbeat._connection.pgconn.trace(trace.fileno())
        heartbeat._beat()
        heartbeat._connection.pgconn.untrace()
        trace.seek(0)
        lines = [line.split("\t") for line in trace.read().splitlines()]
        sent = [cells[3] for cells in lines if len(cells) > 3 and cells[1] == "F"]
    heartbeat._drop()
    assert sent.count("Execute") + sent.count("Query") == 1, sent
    assert lost == [True]
    worker.refresh_from_db()
    assert worker.seen_at > seen
    assert (worker.units, worker.abandoned_threads) == (MANY, 2)


@contextmanager
def hanging(
    monkeypatch: pytest.MonkeyPatch, interval: float, threshold: float
) -> Iterator[tuple[Heartbeat, list[threading.Event], list[threading.Event]]]:
    """A heartbeat whose first two beats tell that they were sent, and wait until they are answered."""
    own = SimpleNamespace(HEARTBEAT_INTERVAL=interval, STALE_LEASE_THRESHOLD=threshold)
    monkeypatch.setattr(heartbeat_module, "conf", own)
    heartbeat = Heartbeat(connection_parameters, "", list, lambda: None, lambda: 0, Outage())
    asked, answers = [[threading.Event() for _ in range(2)] for _ in range(2)]
    numbers = count()

    def beat() -> None:
        number = next(numbers)
        if number < len(asked):
            asked[number].set()
            assert answers[number].wait(60)

    monkeypatch.setattr(heartbeat, "_beat", beat)
    heartbeat.start()
    try:
        yield heartbeat, asked, answers
    finally:
        for answer in answers:
            answer.set()
        heartbeat.stop()


def test_an_answer_that_comes_late_renews_from_when_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """By then the leases were renewed some time ago, and nobody knows when; another beat is due."""
    with hanging(monkeypatch, interval=0.2, threshold=30) as (heartbeat, asked, answers):
        assert asked[0].wait(60)
        sent = time.monotonic()
        time.sleep(0.2)
        answered = time.monotonic()
        answers[0].set()
        assert asked[1].wait(60)
        assert sent - 0.2 < heartbeat._last < answered


def test_a_process_that_fell_silent_says_so_once_until_it_is_heard_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A beat that hung for longer than leases last leaves it silent: else it would lose what it takes from then on."""
    monkeypatch.setattr(heartbeat_module, "SECOND_LOOK", 0.0)
    with hanging(monkeypatch, interval=0.1, threshold=1.0) as (heartbeat, asked, answers):
        assert asked[0].wait(60)
        sent = time.monotonic()
        eventually(heartbeat.fell_silent, 60)
        eventually(lambda: time.monotonic() - sent > 1.0)
        answers[0].set()
        assert asked[1].wait(60)
        assert (heartbeat.silent, heartbeat.fell_silent()) == (True, False)
        answers[1].set()
        eventually(lambda: not heartbeat.silent, 60)
