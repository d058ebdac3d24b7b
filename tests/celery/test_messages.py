"""Messages: who gets one, what it says, and what becomes of those that say nothing new, or are lost."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.db import transaction

from tests.celery.conftest import QUIETLY, TRANSPORT, Fleet
from tests.support import invariants
from tests.support.crash import called, calls, dispatch, finished, status
from tests.support.workers import REPOSITORY, SETTINGS, database_url, end, eventually
from workflow import states, workflows
from workflow.celery.jobs import job as task
from workflow.models import Job, Run, Worker
from workflow.results import RunHandle
from workflow.testing import advance
from workflow.transports.celery import Sender, Unroutable

pytestmark = pytest.mark.crash


def send(fleet: Fleet, *job_ids: object) -> None:
    """Messages that no relay has sent."""
    app = Celery("other", broker=fleet.broker.url, set_as_current=False)
    try:
        for job_id in job_ids:
            app.send_task("workflow.job", (job_id,), {"queue": "default", "priority": 0, "new": 1})
    finally:
        app.close()


def job_of(handle: RunHandle) -> Job:
    return Job.objects.get(run_id=handle.run_id)


def test_a_message_that_comes_twice_or_for_a_job_that_is_gone_does_nothing(fleet: Fleet) -> None:
    worker = fleet.celery("threads", concurrency=8)
    handle = dispatch("plain", {"plain.s.a": ["hold:60"]})
    ((_, _, how),) = called(handle, "plain.s.a")
    assert how is None
    job = job_of(handle)
    send(fleet, str(job.pk), str(job.pk), str(uuid.uuid4()), "nonsense", 17)
    eventually(lambda: len(worker.lines("Task workflow.job", "succeeded")) == 5, what=worker.said)
    assert len(worker.lines("that is no id")) == 2
    assert Job.objects.get(pk=job.pk).lease_token == job.lease_token
    assert len(calls(handle, "plain.s.a")) == 1
    workflows.cancel(handle.run_id)
    finished(handle)
    send(fleet, str(job.pk))
    eventually(lambda: len(worker.lines("Task workflow.job", "succeeded")) == 7, what=worker.said)
    assert status(handle) == states.CANCELLED
    assert not worker.lines("ERROR")


def test_what_a_transaction_rolls_back_is_never_rung(fleet: Fleet) -> None:
    worker = fleet.celery("threads")
    with transaction.atomic():
        dispatch("plain")
        transaction.set_rollback(True)
    handle = dispatch("plain")
    finished(handle)
    assert len(worker.lines("Task workflow.job", "received")) == 1


def test_a_job_of_a_paused_queue_is_not_rung_and_a_message_does_not_start_it(fleet: Fleet) -> None:
    worker = fleet.celery("threads")
    workflows.pause_queue("reports")
    waiting = dispatch("plain", queue="reports")
    finished(dispatch("plain"))
    assert job_of(waiting).rung_at is None
    send(fleet, str(job_of(waiting).pk))
    eventually(lambda: len(worker.lines("Task workflow.job", "succeeded")) == 2, what=worker.said)
    assert (status(waiting), job_of(waiting).attempt) == (states.PENDING, 0)
    workflows.resume_queue("reports")
    finished(waiting)
    invariants.check(exact=True)


def test_a_message_says_which_job_its_queue_and_its_priority(fleet: Fleet) -> None:
    worker = fleet.celery("prefork", "-Q", "elsewhere")  # it sends, and takes nothing of it
    handle = dispatch("plain", queue="reports", priority=7)
    eventually(lambda: fleet.waiting() == 1)
    client = fleet.client
    (message,) = (json.loads(each) for each in client.lrange("celery", 0, -1))
    client.close()
    arguments, options, _ = json.loads(base64.b64decode(message["body"]))
    assert arguments == [str(job_of(handle).pk)]
    assert options == {"queue": "reports", "priority": 7}
    assert message["headers"]["task"] == "workflow.job"
    # Nor has it opened connections for units that do not come to it.
    assert not Worker.objects.exists()
    assert worker.stop() == 0


def by_queue_and_priority(
    name: str, args: Any, kwargs: Any, options: Any, **more: Any
) -> dict[str, Any] | None:
    if name != "workflow.job":
        return None
    return {"queue": f"units-{kwargs['queue']}", "priority": 0 if kwargs["priority"] > 0 else 5}


def test_routes_of_the_project_go_by_the_jobs_queue_and_priority(fleet: Fleet) -> None:
    app = Celery("routing", broker=fleet.broker.url, set_as_current=False)
    app.conf.task_routes = [by_queue_and_priority]
    assert task.name in app.tasks
    sender = Sender(app)
    sender.connect()
    sender.send(str(uuid.uuid4()), "reports", 1)
    sender.send(str(uuid.uuid4()), "reports", 0)
    sender.close()
    client = fleet.client
    # Each priority but the first has a list of its own, whose name begins with that of the queue.
    lists = sorted(name for name in client.keys("units-*") if client.type(name) == b"list")
    messages = [json.loads(client.lindex(name, 0)) for name in lists]
    client.close()
    assert [name.startswith(b"units-reports") for name in lists] == [True, True]
    assert [message["properties"]["priority"] for message in messages] == [0, 5]


def test_routes_that_raise_are_told_from_a_broker_that_is_away(fleet: Fleet) -> None:
    def raising(*arguments: Any, **options: Any) -> None:
        raise KeyError("of no queue")

    app = Celery("routing", broker=fleet.broker.url, set_as_current=False)
    sender = Sender(app)
    sender.connect()
    app.conf.task_routes = [raising]
    with pytest.raises(Unroutable):
        sender.send(str(uuid.uuid4()), "reports", 1)
    sender.close()


def test_a_soft_time_limit_ends_the_message_and_not_the_unit(fleet: Fleet) -> None:
    worker = fleet.celery("prefork", "--soft-time-limit", "1", concurrency=1)
    handle = dispatch("plain", {"plain.s.a": ["sleep:2"]})
    after = dispatch("plain")
    finished(handle, after)
    assert worker.lines("SoftTimeLimitExceeded")
    assert [status(each) for each in (handle, after)] == [states.COMPLETED, states.COMPLETED]
    invariants.check(exact=True)
    assert worker.stop() == 0


def test_messages_that_the_broker_loses_are_sent_again(fleet: Fleet) -> None:
    fleet.celery("threads", "-Q", "elsewhere")
    handle = dispatch("plain")
    eventually(lambda: fleet.waiting() == 1)
    client = fleet.client
    client.delete("celery")
    client.close()
    advance(40)  # as long as nobody takes the job
    eventually(lambda: fleet.waiting() == 1)
    fleet.celery("threads")
    finished(handle)
    assert len(calls(handle, "plain.s.a")) == 1


def test_relays_of_several_workers_send_one_message_for_each_job(fleet: Fleet) -> None:
    for _ in range(3):
        fleet.celery("threads", "-Q", "elsewhere")
    workflows.dispatch_many("plain", [{"key": str(n)} for n in range(300)])
    for n in range(20):
        workflows.dispatch("plain", {"key": f"alone {n}"})
    eventually(lambda: not Job.objects.filter(rung_at=None).exists())
    eventually(lambda: fleet.waiting() == 320)
    client = fleet.client
    bodies = [
        json.loads(base64.b64decode(json.loads(each)["body"])) for each in client.lrange("celery", 0, -1)
    ]
    client.close()
    assert len({job for (job,), _, _ in bodies}) == 320


def test_a_broker_that_is_away_costs_a_line_and_time_and_no_job(fleet: Fleet) -> None:
    worker = fleet.celery("prefork")
    finished(dispatch("plain"))
    client = fleet.client  # Celery may end a worker whose broker goes while a message is not yet acknowledged
    eventually(lambda: client.hlen("unacked") == 0)
    client.close()
    fleet.broker.stop()
    try:
        handle = dispatch("plain")
        eventually(lambda: worker.lines("the broker is away"), what=worker.said)
        assert job_of(handle).rung_at is None
        assert job_of(handle).attempt == 0
    finally:
        fleet.broker.start()
    finished(handle)
    assert len(worker.lines("WARNING workflow", "the broker is away")) == 1
    assert worker.lines("the broker is back")
    invariants.check(exact=True)


def test_a_cancel_is_heard_by_a_handler_at_work(fleet: Fleet) -> None:
    fleet.celery("prefork", concurrency=1)
    handle = dispatch("plain", {"plain.s.a": ["hold:60"]})
    called(handle, "plain.s.a")
    workflows.cancel(handle.run_id)
    eventually(lambda: calls(handle, "plain.s.a")[0][2] == "Aborted", seconds=10)
    finished(dispatch("plain"))  # the only process is free again


def test_with_workers_of_both_kinds_each_action_is_done_once(fleet: Fleet) -> None:
    celery = [fleet.celery("prefork", concurrency=2), fleet.celery("threads", concurrency=4)]
    plain = fleet.plain(concurrency=3)
    held = [dispatch("plain", {"plain.s.a": ["hold:60"]}) for _ in range(9)]  # as many as all of them take
    pids = {called(handle, "plain.s.a")[0][1] for handle in held}
    assert all(pids & set(worker.family()) for worker in (*celery, plain))
    for handle in held:
        workflows.cancel(handle.run_id)
    handles = [dispatch(name) for name in ("wide", "chain", "ledger", "pair", "aside") for _ in range(4)]
    failing = [dispatch("pair", {"pair.s.b": ["fail", "fatal"]}) for _ in range(4)]
    finished(*handles, *failing)
    assert {status(handle) for handle in handles} == {states.COMPLETED}
    assert {status(handle) for handle in failing} == {states.COMPENSATED}
    assert all(len(calls(handle, "pair.s.a")) <= 1 for handle in handles)
    invariants.check()
    assert [worker.stop() for worker in (*celery, plain)] == [0, 0, 0]


def test_the_celery_command_takes_units_as_it_is_shown(fleet: Fleet, tmp_path: Path) -> None:
    environment: dict[str, Any] = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.crash_app.settings",
        "DATABASE_URL": database_url(),
        "BROKER_URL": fleet.broker.url,
        "WORKFLOW_SETTINGS": json.dumps({**SETTINGS, "TRANSPORT": TRANSPORT}),
    }
    command = [sys.executable, "-m", "celery", "-A", "tests.crash_app", "worker", "-c", "1", *QUIETLY]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log)
        try:
            finished(dispatch("chain"))
        finally:
            stuck = end([process])
    assert not stuck
    assert process.returncode == 0, (tmp_path / "log").read_text()
    assert Run.objects.get().status == states.COMPLETED
