"""Django's signal for transitions: after the commit, in order, in the process that made them, and in nobody's way."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.support.web import FAULTY, ORDER
from tests.support.workers import eventually
from workflow import Action, Stage, Workflow, failpoints, states, transitions, workflows
from workflow.models import Job, Run, RunEvent
from workflow.registry import registry
from workflow.signals import transitioned
from workflow.testing import drain
from workflow.worker import pusher, signalling

pytestmark = [pytest.mark.django_db(transaction=True)]

ENGINES = ("worker", "drain")
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with registry.isolated():
        registry.register(ORDER)
        yield
    FAULTY.clear()
    assert not transitioned.receivers, "a test has left a receiver"


class Heard(list[dict[str, Any]]):
    """What a receiver was told."""

    def __call__(self, **told: Any) -> None:
        told.pop("signal")
        self.append({**told, "thread": threading.current_thread().name})

    @property
    def names(self) -> list[tuple[str, str | None]]:
        return [(told["name"], told["node"]) for told in self]

    def of(self, name: str, node: str | None = None) -> dict[str, Any]:
        (found,) = [told for told in self if (told["name"], told["node"]) == (name, node)]
        return found


@pytest.fixture
def heard() -> Iterator[Heard]:
    receiver = Heard()
    transitioned.connect(receiver)
    yield receiver
    transitioned.disconnect(receiver)


def work(engine: str) -> None:
    if engine == "drain":
        drain(timeout=PATIENCE)
    else:
        call_command("workflow:worker", "--burst", "--concurrency", "20")


def history(run_id: UUID) -> list[tuple[str, str | None]]:
    rows = RunEvent.objects.filter(run_id=run_id).exclude(name__in=transitions.NO_TRANSITIONS)
    return list(rows.order_by("seq").values_list("name", "node"))


def once(name: str, *actions: Action, **options: Any) -> Workflow:
    return Workflow(name, stages=[Stage("s", actions=list(actions))], **options)


@pytest.mark.parametrize("engine", ENGINES)
def test_each_transition_is_told_once_in_order(engine: str, heard: Heard) -> None:
    def talk(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
        ctx.progress(50)
        ctx.log("half way")
        return {}

    run_id = workflows.dispatch(once("talks", Action("talk", talk), Action("more", talk))).run_id
    work(engine)
    assert {told["run_id"] for told in heard} == {run_id}
    assert heard.names == history(run_id)
    assert heard.names == [
        ("started", None),
        ("action.started", "talks.s.talk"),
        ("action.completed", "talks.s.talk"),
        ("action.started", "talks.s.more"),
        ("action.completed", "talks.s.more"),
        ("stage.completed", "talks.s"),
        ("completed", None),
    ]
    assert [told["seq"] for told in heard] == sorted(told["seq"] for told in heard)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_told_of_one(engine: str, heard: Heard) -> None:
    def slow(state: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.1)
        return {}

    run_id = workflows.dispatch(once("slow", Action("act", slow), version=3)).run_id
    work(engine)
    told = heard.of("action.completed", "slow.s.act")
    run = Run.objects.get(pk=run_id)
    assert (told["sender"], told["workflow"], told["version"], told["attempt"]) == (Run, "slow", 3, 1)
    assert told["data"] == {"attempt": 1}
    assert isinstance(told["at"], datetime)
    assert told["at"].tzinfo is not None
    assert 0.1 <= told["seconds"] < 10
    ended = heard.of("completed")
    assert run.started_at is not None
    assert run.finished_at is not None
    assert ended["seconds"] == (run.finished_at - run.started_at).total_seconds()
    assert ended["attempt"] is None
    assert heard.of("action.started", "slow.s.act")["seconds"] is None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_saga_is_told_of_with_its_errors(engine: str, heard: Heard) -> None:
    def fail(state: dict[str, Any]) -> None:
        raise ValueError("declined")

    definition = once(
        "saga",
        Action("reserve", lambda state: {}, compensate=lambda state: None),
        Action("pay", fail, attempts=2, backoff=0),
    )
    run_id = workflows.dispatch(definition).run_id
    work(engine)
    assert heard.names == history(run_id)
    assert heard.of("action.retrying", "saga.s.pay")["attempt"] == 1
    failed = heard.of("action.failed", "saga.s.pay")
    assert (failed["attempt"], failed["data"]["error"]["message"]) == (2, "declined")
    assert failed["seconds"] is not None
    assert heard.of("action.compensated", "saga.s.reserve")["seconds"] is None
    assert heard.of("compensated")["seconds"] is not None


@pytest.mark.parametrize("engine", ENGINES)
def test_when_the_next_attempt_is_due_is_told_as_the_history_has_it(engine: str, heard: Heard) -> None:
    def fail(state: dict[str, Any]) -> None:
        raise ValueError("declined")

    definition = once("later", Action("pay", fail, via="queue", backoff=600), on_failure="halt")
    run_id = workflows.dispatch(definition).run_id
    work(engine)
    told = heard.of("action.retrying", "later.s.pay")
    stored = RunEvent.objects.get(run_id=run_id, name=states.EVENT_ACTION_RETRYING).data
    assert told["data"] == stored


def test_of_a_commit_whose_answer_was_lost_nothing_is_told_that_is_not_so(heard: Heard) -> None:
    definition = once("cut", Action("one", lambda state: {}))
    run_id = workflows.dispatch(definition).run_id
    failpoints.arm("settle.answer:run-completed=lose@1")
    try:
        work("worker")
    finally:
        failpoints.arm("")
    assert workflows.status(run_id).run.status == states.COMPLETED
    stored = RunEvent.objects.filter(run_id=run_id).values_list("seq", "name", "node", "at")
    assert {(told["seq"], told["name"], told["node"], told["at"]) for told in heard} <= set(stored)


def test_commands_tell_of_what_they_did_in_their_own_process(heard: Heard) -> None:
    FAULTY.add("o-1")
    failed = workflows.dispatch(ORDER, {"order_id": "o-1"}).run_id
    parked = workflows.dispatch(ORDER, {"order_id": "o-2"}).run_id
    drain(timeout=PATIENCE)
    heard.clear()
    workflows.retry(failed)
    workflows.cancel(parked, "no longer wanted")
    assert heard.names == [("resumed", None), ("cancelled", None)]
    assert [told["run_id"] for told in heard] == [failed, parked]
    assert heard[0]["data"]["retry"] is True
    assert heard[1]["data"]["reason"] == "no longer wanted"
    assert heard[1]["seconds"] is not None


def test_an_event_that_wakes_a_run_is_told_of(heard: Heard) -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o-3"}).run_id
    drain(timeout=PATIENCE)
    workflows.publish("order.approved", {}, correlation="o-3")
    heard.clear()
    drain(timeout=PATIENCE)
    assert heard.names == history(run_id)[-len(heard) :]
    assert heard.names[0] == ("resumed", "web-order.approve")


def test_nothing_is_told_of_what_is_rolled_back(heard: Heard) -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o-4"}).run_id
    drain(timeout=PATIENCE)
    heard.clear()
    with transaction.atomic():
        workflows.cancel(run_id)
        assert heard == [], "not before the commit"
        transaction.set_rollback(True)
    assert heard == []
    with transaction.atomic():
        workflows.cancel(run_id)
        assert heard == []
    assert heard.names == [("cancelled", None)]


def test_a_workers_receivers_have_a_thread_of_their_own_with_the_database(heard: Heard) -> None:
    seen: list[str] = []

    def look(run_id: UUID, name: str, **told: Any) -> None:
        seen.append(Run.objects.get(pk=run_id).status)

    transitioned.connect(look)
    try:
        workflows.dispatch(once("looks", Action("act", lambda state: {})))
        work("worker")
    finally:
        transitioned.disconnect(look)
    assert {told["thread"] for told in heard} == {"workflow-signals"}
    assert seen[-1] == "completed"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("trouble", [RuntimeError, SystemExit])
def test_a_receiver_that_raises_is_logged_and_harms_nothing(
    engine: str, trouble: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()

    def broken(**told: Any) -> None:
        raise trouble("the metrics server is down")

    transitioned.connect(heard)
    transitioned.connect(broken)
    try:
        runs = [workflows.dispatch(once(f"w{n}", Action("act", lambda state: {}))).run_id for n in range(3)]
        work(engine)
    finally:
        transitioned.disconnect(broken)
        transitioned.disconnect(heard)
    assert {Run.objects.get(pk=run_id).status for run_id in runs} == {"completed"}
    told = [record for record in caplog.records if record.name == "workflow" and record.exc_info]
    assert len(told) == 3 * len(history(runs[0]))
    assert all("the metrics server is down" in str(record.exc_info) for record in told)
    assert len(heard) == 3 * len(history(runs[0]))


def test_a_receiver_that_leaves_a_transaction_open_harms_no_later_one(heard: Heard) -> None:
    def careless(**told: Any) -> None:
        if len(heard) == 1:
            transaction.atomic().__enter__()
            Run.objects.exists()

    transitioned.connect(careless)
    try:
        runs = [workflows.dispatch(once(f"w{n}", Action("act", lambda state: {}))).run_id for n in range(2)]
        for (
            _
        ) in runs:  # the second worker's thread is a new one; the first's had batches after the careless one
            work("worker")
    finally:
        transitioned.disconnect(careless)
    assert len(heard) == 2 * len(history(runs[0]))


def test_a_slow_receiver_does_not_hold_up_runs() -> None:
    """The first call returns when all runs are over: it would be never if they waited for it."""
    told: list[str] = []
    waited: list[bool] = []

    def until(holds: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def slow(name: str, **others: Any) -> None:
        if not told:
            waited.append(until(lambda: not Run.objects.exclude(status="completed").exists()))
        told.append(name)

    transitioned.connect(slow)
    try:
        for number in range(5):
            workflows.dispatch(once(f"fast{number}", Action("act", lambda state: {})))
        work("worker")
    finally:
        transitioned.disconnect(slow)
    assert waited == [True]
    assert told.count("completed") == 5


def test_what_too_slow_receivers_miss_is_said_and_a_worker_does_not_wait_for_them_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(signalling, "CAPACITY", 2)
    monkeypatch.setattr(pusher, "SIGNALS_LAST", 0.1)
    monkeypatch.setattr(signalling, "BATCH", 2)
    free = threading.Event()
    told: list[str] = []

    def stuck(name: str, **others: Any) -> None:
        told.append(name)
        free.wait(PATIENCE)

    transitioned.connect(stuck)
    try:
        for number in range(5):
            workflows.dispatch(once(f"many{number}", Action("act", lambda state: {})))
        with caplog.at_level(logging.WARNING, "workflow"):
            work("worker")
    finally:
        transitioned.disconnect(stuck)
        free.set()
    assert Run.objects.filter(status="completed").count() == 5
    assert "receivers of signals are too slow" in caplog.text
    (left,) = re.findall(r"stops before receivers were told of (\d+) transitions", caplog.text)
    assert 2 < int(left) <= 4  # what waits, and what is in hand


def test_without_receivers_nothing_is_asked_and_no_thread_started(monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "o-5"}).run_id
    drain(timeout=PATIENCE)

    with CaptureQueriesContext(connection) as before:
        workflows.cancel(run_id)
    other = workflows.dispatch(ORDER, {"order_id": "o-6"}).run_id
    drain(timeout=PATIENCE)
    receiver = Heard()
    transitioned.connect(receiver)
    try:
        with CaptureQueriesContext(connection) as asked:
            workflows.cancel(other)
    finally:
        transitioned.disconnect(receiver)
    assert len(asked) == len(before) + 1
    monkeypatch.setattr(signalling.Signaller, "_put", lambda *_: pytest.fail("there are no receivers"))
    done = workflows.dispatch(once("quiet", Action("act", lambda state: {}))).run_id
    work("worker")
    assert Run.objects.get(pk=done).status == "completed"


@pytest.fixture
def stuck() -> UUID:
    """A run without a job that nobody could bring on for long."""
    run_id = workflows.dispatch(ORDER, {"order_id": "o-1"}).run_id
    Job.objects.filter(run_id=run_id).delete()
    Run.objects.filter(pk=run_id).update(updated_at=timezone.now() - timedelta(days=1))
    return run_id


def test_a_stuck_run_that_the_command_fails_is_told_of(stuck: UUID, heard: Heard) -> None:
    call_command("workflow:sweep", "--once")
    assert [(told["run_id"], told["name"]) for told in heard] == [(stuck, states.EVENT_FAILED)]
    assert heard[0]["data"]["error"]["code"] == "STUCK_RUN_REAPED"


def test_a_stuck_run_that_a_worker_fails_is_told_of(stuck: UUID, heard: Heard, settings: Any) -> None:
    settings.WORKFLOW = {**settings.WORKFLOW, "SWEEP_INTERVAL": 0.05}
    told = threading.Event()

    def hold(state: dict[str, Any]) -> None:
        """Keeps the burst going until the sweep has come."""
        eventually(lambda: any(one["run_id"] == stuck for one in list(heard)))
        told.set()

    workflows.dispatch(once("holding", Action("a", hold)), {})
    work("worker")
    assert told.is_set()
    assert [one["name"] for one in heard if one["run_id"] == stuck] == [states.EVENT_FAILED]


def test_receivers_whose_thread_cannot_be_started_at_once_are_told_later(
    heard: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refused = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if thread.name == "workflow-signals" and len(refused) < 2:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    handle = workflows.dispatch(once("short", Action("a", lambda state: time.sleep(2), attempts=1)), {})
    work("worker")
    assert handle.status().run.status == states.COMPLETED
    assert [told["name"] for told in heard if told["thread"] == "workflow-signals"][
        -1
    ] == states.EVENT_COMPLETED
    assert len([line for line in caplog.messages if "which cannot be started" in line]) == 1
