"""SIGTERM and SIGINT: nothing is lost, no attempt is spent, and the worker leaves when it was told to."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.support import invariants
from tests.support.crash import called, calls, dispatch, finished, node, sessions, status, take_over
from tests.support.workers import REPOSITORY, Launcher, database_url, eventually
from workflow import states
from workflow.models import Job, RunEvent, Worker

pytestmark = pytest.mark.crash


def ready(pid: int) -> None:
    """Waits until a worker process has signed on."""
    eventually(lambda: Worker.objects.filter(pid=pid, stopped_at=None).exists())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_leaves_at_once(workers: Launcher, number: int) -> None:
    worker = workers.start(concurrency=1)
    ready(worker.pid)
    begun = time.monotonic()
    worker.send(number)
    assert worker.wait() == 0
    assert worker.lines("workflows, 1 unit at once")
    assert time.monotonic() - begun < 10
    assert Worker.objects.get(pid=worker.pid).stopped_at is not None


def test_a_signal_that_comes_while_a_worker_starts_is_heard(workers: Launcher) -> None:
    for _ in range(3):
        worker = workers.start(processes=2)
        assert worker.stop() in (0, -signal.SIGTERM)  # the latter before `run` was entered
    worker = workers.start(processes=2)
    eventually(lambda: len(worker.family()) == 3)
    assert worker.stop() == 0


@pytest.mark.parametrize(("name", "deed"), [("pair", "sleep:1"), ("steady", "sleep:1")])
def test_a_handler_may_finish_and_what_follows_is_given_back(workers: Launcher, name: str, deed: str) -> None:
    worker = workers.start()
    handle = dispatch(name, {f"{name}.s.a": [deed]})
    called(handle, f"{name}.s.a")
    assert worker.stop() == 0
    assert node(handle, f"{name}.s.a").status == states.COMPLETED
    (job,) = Job.objects.filter(run_id=handle.run_id)
    assert (job.lease_token, job.attempt, calls(handle, f"{name}.s.b")) == (None, 0, [])
    workers.start()
    finished(handle)
    assert [len(calls(handle, f"{name}.s.{each}")) for each in "ab"] == [1, 1]
    assert [node(handle, f"{name}.s.{each}").attempt for each in "ab"] == [1, 1]
    invariants.check()


@pytest.mark.parametrize(
    ("name", "deed", "how"),
    [("plain", "hold:60", "Aborted"), ("calm", "sleep:60", "CancelledError"), ("plain", "stubborn:60", None)],
)
def test_what_does_not_finish_in_time_is_given_back_without_an_attempt(
    workers: Launcher, name: str, deed: str, how: str | None
) -> None:
    path = f"{name}.s.a"
    worker = workers.start(settings={"SHUTDOWN_GRACE": 0.5})
    handle = dispatch(name, {path: [deed]})
    called(handle, path)
    begun = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - begun < 30
    assert (node(handle, path).status, node(handle, path).attempt) == (states.PENDING, 0)
    assert [ended for _, _, ended in calls(handle, path)] == [how]
    (job,) = Job.objects.filter(run_id=handle.run_id)
    assert (job.lease_token, job.attempt) == (None, 0)
    given_back = RunEvent.objects.get(run_id=handle.run_id, name=states.EVENT_ACTION_RETRYING)
    assert given_back.data["reason"] == "shutdown"
    workers.start(settings={"SHUTDOWN_GRACE": 0.5})
    assert [attempt for attempt, _, _ in called(handle, path, times=2)] == [1, 1]
    invariants.check(at_rest=False)


def test_a_compensation_is_given_back_without_an_attempt_too(workers: Launcher) -> None:
    worker = workers.start(settings={"SHUTDOWN_GRACE": 0.2})
    handle = dispatch("pair", {"pair.s.b": ["fatal"], "undo pair.s.a": ["hold:60"]})
    called(handle, "pair.s.a", "undo")
    assert worker.stop() == 0
    assert node(handle, "pair.s.a").compensate_attempt == 0
    workers.start(settings={"SHUTDOWN_GRACE": 0.2})
    assert [attempt for attempt, _, _ in called(handle, "pair.s.a", "undo", times=2)] == [1, 1]


@pytest.mark.parametrize("phase", ["run", "undo"])
def test_an_atomic_handler_that_ends_while_it_is_given_back_counts_as_the_attempt_that_it_was(
    workers: Launcher, phase: str
) -> None:
    way = {"one.b.atomic": ["sleep:0.6"]}
    back = {"undo one.b.atomic": ["sleep:0.6"], "two.d.end": ["fatal"]}
    handle = dispatch("chain", way if phase == "run" else back)
    # Its last boundary waits for longer than the handler takes.
    worker = workers.start("settle.before:job-release=sleep:1.2", settings={"SHUTDOWN_GRACE": 0})
    called(handle, "one.b.atomic", phase)
    assert worker.stop() == 0
    name = states.EVENT_ACTION_COMPLETED if phase == "run" else states.EVENT_ACTION_COMPENSATED
    told = RunEvent.objects.filter(run_id=handle.run_id, node="one.b.atomic", name=name)
    assert [entry.data["attempt"] for entry in told] == [1]
    assert list(Job.objects.values_list("lease_token", "attempt", "last_error")) == [(None, 0, "")]
    assert not worker.lines("the engine failed")
    workers.start()
    finished(handle)
    assert status(handle) == (states.COMPLETED if phase == "run" else states.COMPENSATED)
    invariants.check(exact=True)


def test_a_second_signal_leaves_now(workers: Launcher) -> None:
    worker = workers.start(settings={"SHUTDOWN_GRACE": 600})
    handle = dispatch("plain", {"plain.s.a": ["stubborn:60"]})
    called(handle, "plain.s.a")
    worker.send(signal.SIGTERM)
    eventually(lambda: worker.lines("stops"))
    worker.send(signal.SIGTERM)
    begun = time.monotonic()
    assert worker.wait() == 0
    assert time.monotonic() - begun < 30
    assert (node(handle, "plain.s.a").status, node(handle, "plain.s.a").attempt) == (states.PENDING, 0)


def test_a_commit_that_the_server_does_not_answer_keeps_no_worker(workers: Launcher) -> None:
    """As when it waits for a standby that is lost: neither the grace's end nor a second signal could come through."""
    worker = workers.start(settings={"SHUTDOWN_GRACE": 1})
    handle = dispatch("pair", {"pair.s.b": ["sleep:2"]})
    called(handle, "pair.s.b")
    # What its settling connection has said last: that the action began.
    (settling,) = sessions("query LIKE '%INSERT INTO workflow_runevent%' AND pid <> pg_backend_pid()")
    os.kill(settling, signal.SIGSTOP)
    try:
        eventually(lambda: calls(handle, "pair.s.b")[0][2])
        worker.send(signal.SIGTERM)
        begun = time.monotonic()
        assert worker.wait() == 0
        assert time.monotonic() - begun < 20
    finally:
        os.kill(settling, signal.SIGCONT)
    workers.start()
    take_over()
    finished(handle)
    assert status(handle) == states.COMPLETED


def test_a_stopping_worker_claims_nothing_more(workers: Launcher) -> None:
    worker = workers.start()
    first = dispatch("plain", {"plain.s.a": ["sleep:1"]})
    called(first, "plain.s.a")
    worker.send(signal.SIGTERM)
    eventually(lambda: worker.lines("stops"))
    second = dispatch("plain")
    assert worker.wait() == 0
    assert (status(first), status(second)) == (states.COMPLETED, states.PENDING)
    assert Job.objects.get(run_id=second.run_id).attempt == 0


# --- several processes ----------------------------------------------------------------------------


def test_a_signal_to_the_whole_group_counts_once(workers: Launcher) -> None:
    """As Ctrl-C in a terminal: parent and children get it, and the parent passes it on."""
    worker = workers.start(processes=2)
    handles = [dispatch("plain", {"plain.s.a": ["sleep:1"]}) for _ in range(4)]
    for handle in handles:
        called(handle, "plain.s.a")
    os.killpg(worker.pid, signal.SIGINT)
    assert worker.wait() == 0
    assert [status(handle) for handle in handles] == [states.COMPLETED] * 4
    invariants.check(exact=True)


def test_a_second_signal_to_the_parent_hurries_its_children(workers: Launcher) -> None:
    worker = workers.start(settings={"SHUTDOWN_GRACE": 600}, processes=2)
    handle = dispatch("plain", {"plain.s.a": ["hold:60"]})
    called(handle, "plain.s.a")
    worker.send(signal.SIGTERM)
    eventually(lambda: len(worker.family()) == 2, what="the idle child has not left")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert node(handle, "plain.s.a").attempt == 0


NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]
if os.geteuid() != 0:
    NAMESPACE.append(
        "--map-root-user"
    )  # root needs no user namespace, and would lose its way to the database in one
"""Runs a command as process 1 of a namespace of its own, as a container does."""


def _has_namespaces() -> bool:
    return (
        shutil.which("unshare") is not None
        and not subprocess.run([*NAMESPACE, "true"], check=False).returncode
    )


@pytest.mark.skipif(not _has_namespaces(), reason="this machine makes no process namespaces")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("processes", [1, 2])
def test_process_1_of_a_container_hears_its_signals(workers: Launcher, number: int, processes: int) -> None:
    command = [sys.executable, "manage.py", "workflow:worker", "--processes", str(processes)]
    environment = {
        **os.environ,
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "tests.crash_app.settings",
    }
    with subprocess.Popen([*NAMESPACE, *command], cwd=REPOSITORY, env=environment) as container:
        try:
            eventually(lambda: Worker.objects.filter(stopped_at=None).count() == processes)
            pids = set(Worker.objects.values_list("pid", flat=True))
            assert (1 in pids) == (processes == 1)
            finished(dispatch("plain"))
            (first,) = psutil.Process(container.pid).children()
            first.send_signal(number)
            assert container.wait(60) == 0
        finally:
            container.kill()
    assert not Worker.objects.filter(stopped_at=None).exists()
    invariants.check(exact=True)


def test_a_child_that_dies_is_replaced(workers: Launcher) -> None:
    worker = workers.start(processes=2)
    eventually(lambda: Worker.objects.count() == 2)
    handle = dispatch("plain", {"plain.s.a": ["hold:60", "ok"]})
    ((_, pid, _),) = called(handle, "plain.s.a")
    assert pid in worker.family()
    os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: worker.lines(f"process {pid} was killed by signal 9 (SIGKILL); another takes its place")
    )
    eventually(lambda: Worker.objects.count() == 3)
    assert worker.stop() == 0
    assert pid not in worker.family()


def test_children_whose_parent_is_killed_leave_by_themselves(workers: Launcher) -> None:
    worker = workers.start(processes=2)
    eventually(lambda: Worker.objects.count() == 2)
    children = [psutil.Process(pid) for pid in worker.family() if pid != worker.pid]
    worker.kill()
    gone, alive = psutil.wait_procs(children, timeout=30)
    assert (len(gone), alive) == (2, [])
    assert not Worker.objects.filter(stopped_at=None).exists()


def test_a_process_that_has_done_its_share_is_replaced(workers: Launcher) -> None:
    worker = workers.start(max_jobs=10)
    handles = [dispatch("plain") for _ in range(25)]
    finished(*handles)
    pids = [calls(handle, "plain.s.a")[0][1] for handle in handles]
    assert sorted(pids.count(pid) for pid in set(pids)) == [5, 10, 10]
    invariants.check(exact=True)
    assert worker.stop() == 0


def test_a_process_that_has_grown_too_big_finishes_its_work_and_is_replaced(workers: Launcher) -> None:
    worker = workers.start(max_rss=1)
    handle = dispatch("pair", {"pair.s.a": ["sleep:3"]})
    finished(handle)
    assert {pid for _, pid, _ in calls(handle, "pair.s.a")} == {
        pid for _, pid, _ in calls(handle, "pair.s.b")
    }
    assert worker.lines("MB are resident, more than 1")
    eventually(lambda: Worker.objects.count() >= 2)
    assert worker.stop() == 0
    invariants.check(exact=True)


def test_a_burst_ends_though_its_processes_have_no_output(workers: Launcher) -> None:
    """As with `>&-`: there is nothing to flush, and a child that leaves must not unwind through its parent's frames."""
    handle = dispatch("plain")
    command = [sys.executable, "manage.py", "workflow:worker", "--burst", "--processes", "2"]
    environment = {
        **os.environ,
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "tests.crash_app.settings",
    }
    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], cwd=REPOSITORY, env=environment, start_new_session=True
    ) as burst:
        try:
            assert burst.wait(60) == 0
        finally:
            if burst.poll() is None:
                os.killpg(burst.pid, signal.SIGKILL)
    assert status(handle) == states.COMPLETED


def _command(*arguments: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "tests.crash_app.settings",
    }
    return subprocess.Popen(
        [sys.executable, "manage.py", "workflow:worker", *arguments],
        cwd=REPOSITORY,
        env=environment,
        start_new_session=True,
    )


@pytest.mark.parametrize("deed", ["deaf:120", "to-thread:120", "to-orm:120"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_that_was_told_twice_leaves_whatever_its_handlers_do(
    workers: Launcher, deed: str, processes: int
) -> None:
    handle = dispatch("calm", {"calm.s.a": [deed]})
    with _command("--processes", str(processes)) as worker:
        try:
            called(handle, "calm.s.a")
            worker.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(25) == 0
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
    assert (node(handle, "calm.s.a").status, node(handle, "calm.s.a").attempt) == (states.PENDING, 0)
    assert Job.objects.get(run_id=handle.run_id).lease_token is None
    assert not Worker.objects.filter(stopped_at=None).exists()


@pytest.mark.parametrize("deed", ["deaf:120", "to-thread:120"])
def test_a_process_that_has_done_its_share_is_replaced_whatever_its_handlers_do(
    workers: Launcher, deed: str
) -> None:
    worker = workers.start(settings={"SHUTDOWN_GRACE": 0.5}, max_jobs=1)
    held = dispatch("calm", {"calm.s.a": [deed]})
    called(held, "calm.s.a")
    finished(dispatch("plain"), within=40)
    worker.kill()
