"""The Celery transport without a broker: what it refuses, and what a relay does when something is away."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from workflow.celery import wiring
from workflow.celery.jobs import job
from workflow.celery.relay import _Forks
from workflow.transports.celery import NAME, TASK, Sender, Unreachable


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[wiring._Place]:
    """Nothing of ours is in this process, neither before nor after."""
    found = wiring._Place()
    monkeypatch.setattr(wiring, "_place", found)
    settings.WORKFLOW = {"TRANSPORT": NAME}
    yield found
    assert found.engine is None
    assert found.relay is None


def consumer(**pool: Any) -> SimpleNamespace:
    app = SimpleNamespace(conf=SimpleNamespace(task_always_eager=False))
    return SimpleNamespace(pool=SimpleNamespace(limit=2, **pool), app=app)


def test_a_pool_of_greenlets_is_refused_with_one_error(
    caplog: pytest.LogCaptureFixture, place: wiring._Place
) -> None:
    for _ in range(2):  # Celery says so again when its broker was away
        wiring._worker_is_ready(consumer(is_green=True, uses_semaphore=False))
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "use prefork, threads or solo" in caplog.text
    wiring.serve("a job")
    assert place.engine is None


def test_a_worker_that_would_send_no_messages_is_refused_with_one_error(
    caplog: pytest.LogCaptureFixture, place: wiring._Place
) -> None:
    eager = consumer(is_green=False, uses_semaphore=False)
    eager.app.conf.task_always_eager = True
    wiring._worker_is_ready(eager)
    assert "task_always_eager" in caplog.text
    wiring.serve("a job")
    assert (place.engine, place.relay) == (None, None)


def test_with_another_transport_a_celery_worker_is_left_alone(settings: Any) -> None:
    settings.WORKFLOW = {}
    wiring._worker_begins(sender=None)
    wiring._worker_is_ready(consumer(is_green=True, uses_semaphore=False))
    wiring._child_begins()
    wiring._worker_is_to_stop()
    wiring._child_ends()
    wiring._worker_ends()


def test_a_message_without_an_id_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    for nonsense in ("nonsense", "", None, 5, ["a"]):
        job(nonsense)
    assert len(caplog.records) == 5


def test_the_task_is_acknowledged_late_and_keeps_no_result() -> None:
    assert (job.name, job.acks_late, job.ignore_result) == (TASK, True, True)


def by_queue(name: str, args: Any, kwargs: dict[str, Any], options: Any, **more: Any) -> dict[str, str]:
    return {"queue": f"units-{kwargs['queue']}"}


def raises(name: str, *more: Any, **others: Any) -> None:
    raise KeyError("unheard of")


@pytest.mark.parametrize(
    ("routes", "consumed", "expected"),
    [
        ({}, ["celery"], True),
        ({}, ["emails"], False),
        ({TASK: {"queue": "units"}}, ["units"], True),
        ({TASK: {"queue": "units"}}, ["celery"], False),
        ([by_queue], ["emails"], True),
        ([raises], ["emails"], True),
    ],
)
def test_engines_start_early_where_messages_are_to_be_expected(
    routes: Any, consumed: list[str], expected: bool
) -> None:
    from celery import Celery

    app = Celery("one", broker="memory://", set_as_current=False)
    app.conf.task_routes = routes
    app.amqp.queues.select(consumed)
    assert wiring._is_consumed(SimpleNamespace(app=app)) is expected


def test_a_broker_that_cannot_be_reached_is_unreachable() -> None:
    from celery import Celery

    sender = Sender(Celery("one", broker="redis://127.0.0.1:1/0", set_as_current=False))
    with pytest.raises(Unreachable):
        sender.connect()
    sender.close()


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.modules['celery'] = None; import workflow.tasks; assert not hasattr(workflow.tasks, 'job')",
        "import workflow, workflow.transports.postgres, sys; assert 'celery' not in sys.modules",
    ],
)
def test_nothing_asks_for_celery_where_it_is_not_installed_or_not_used(
    code: str, run_python: Callable[[str], str]
) -> None:
    assert run_python(code) == ""


def test_a_check_says_that_celery_is_not_installed(run_python: Callable[[str], str]) -> None:
    code = (
        "import sys, django; django.setup(); sys.modules['celery'] = None\n"
        "from django.conf import settings; settings.WORKFLOW = {'TRANSPORT': 'workflow.transports.celery'}\n"
        "from workflow.checks import check_transport\n"
        "print(*(message.msg for message in check_transport()))"
    )
    assert run_python(code).strip() == (
        "WORKFLOW[\"TRANSPORT\"] 'workflow.transports.celery' cannot be used: "
        'Celery is not installed (pip install "django-saga[celery]").'
    )


@pytest.fixture
def run_python() -> Callable[[str], str]:
    """Runs code in a process of its own; what it prints."""

    def run(code: str) -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_two_threads_that_fork_at_once_do_not_stop_the_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second does not get the lock in time, and forks without."""
    monkeypatch.setattr(_Forks, "LONGEST", 0.05)
    forks = _Forks()
    first_forks, second_forks = threading.Event(), threading.Event()

    def first() -> None:
        forks._before()
        first_forks.set()
        second_forks.wait(10)
        forks._after()

    def second() -> None:
        first_forks.wait(10)
        forks._before()
        second_forks.set()
        forks._after()

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert forks.none().acquire(timeout=1)
