"""Handlers that misbehave: each ends in a recorded attempt, and the worker goes on serving others in full strength."""

from __future__ import annotations

import signal
import time

import pytest
from django.db import connection

from tests.support import invariants
from tests.support.crash import called, calls, dispatch, finished, node, status, take_over
from tests.support.workers import Launcher, eventually
from workflow import states, workflows
from workflow.errors import FailureCode
from workflow.models import RunEvent, Step, Worker
from workflow.results import RunHandle

pytestmark = pytest.mark.crash

THREADS = 4
RAISED = {
    "fail": "Scripted",
    "system-exit": "SystemExit",
    "interrupt": "KeyboardInterrupt",
    "cancelled": "CancelledError",
    "generator-exit": "GeneratorExit",
}
"""What a handler raises, and the type that its error names."""
LEFT_OPEN = ("open-transaction", "no-autocommit", "raw-transaction", "open-atomic", "close")
LEFT_BEHIND = (*LEFT_OPEN, "asyncio-run", "async-to-sync")
"""What a plain handler does to its thread or its connection before it returns."""


def full_strength(threads: int) -> None:
    """As many handlers as there are threads are at work at once; then they are cancelled."""
    handles = [dispatch("plain", {"plain.s.a": ["hold:60"]}) for _ in range(threads)]
    for handle in handles:
        called(handle, "plain.s.a")
    for handle in handles:
        workflows.cancel(handle.run_id)
    for handle in handles:
        eventually(lambda handle=handle: calls(handle, "plain.s.a")[0][2])


def errors(handle: RunHandle, path: str) -> list[dict[str, str]]:
    """The errors of the attempts that were tried again."""
    entries = RunEvent.objects.filter(run_id=handle.run_id, node=path, name=states.EVENT_ACTION_RETRYING)
    return [entry.data["error"] for entry in entries.order_by("seq")]


def effects(*handles: RunHandle) -> int:
    """How many rows their handlers have written and committed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM crash_effect WHERE run_id = ANY(%s)", ([h.run_id for h in handles],)
        )
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("name", ["plain", "calm"])
def test_whatever_a_handler_raises_is_the_end_of_an_attempt(workers: Launcher, name: str) -> None:
    worker = workers.start(settings={"THREADS": THREADS})
    path = f"{name}.s.a"
    handles = {deed: dispatch(name, {path: [deed, "ok"]}) for deed in RAISED}
    finished(*handles.values())
    for deed, handle in handles.items():
        assert (status(handle), node(handle, path).attempt) == (states.COMPLETED, 2), deed
        (error,) = errors(handle, path)
        assert (error["code"], error["type"]) == (FailureCode.ACTION_FAILED, RAISED[deed])
    full_strength(THREADS)
    invariants.check(at_rest=False)
    assert worker.stop() == 0


def test_what_a_handler_leaves_on_its_thread_does_not_reach_the_next_one(workers: Launcher) -> None:
    worker = workers.start(settings={"THREADS": 1})
    handles = []
    for deed in (*LEFT_BEHIND, "broken-transaction"):
        handles += [
            dispatch("plain", {"plain.s.a": [deed, "ok"]}),
            dispatch("atomic"),
            dispatch("plain", {"plain.s.a": ["query"]}),
        ]
        finished(*handles[-3:])
    attempts = [node(handle, f"{handle.status().run.workflow}.s.a").attempt for handle in handles]
    assert attempts == [1] * (3 * len(LEFT_BEHIND)) + [2, 1, 1]
    invariants.check(exact=True)
    assert worker.stop() == 0


def test_a_connection_with_persistent_connections_is_cleaned_too(workers: Launcher) -> None:
    """With CONN_MAX_AGE a connection outlives its handler; what was left open on it does not."""
    worker = workers.start(settings={"THREADS": 1}, conn_max_age=600)
    for deed in LEFT_BEHIND:
        handles = [dispatch("plain", {"plain.s.a": [deed, "ok"]}), dispatch("atomic")]
        finished(*handles)
        assert [status(handle) for handle in handles] == [states.COMPLETED] * 2, deed
    invariants.check(exact=True)
    assert worker.stop() == 0


@pytest.mark.parametrize("conn_max_age", [0, 600])
@pytest.mark.parametrize("deed", [*LEFT_OPEN, "broken-transaction"])
def test_what_an_async_handler_leaves_on_the_thread_of_the_orm_does_not_reach_the_next_one(
    workers: Launcher, deed: str, conn_max_age: int
) -> None:
    """All async handlers of a process share one thread, and one connection, for Django's ORM."""
    worker = workers.start(conn_max_age=conn_max_age)
    finished(dispatch("calm", {"calm.s.a": [deed, "ok"]}))
    handles = [dispatch("calm", {"calm.s.a": ["effect"]}) for _ in range(5)]
    finished(*handles)
    assert {(status(handle), node(handle, "calm.s.a").attempt) for handle in handles} == {
        (states.COMPLETED, 1)
    }
    assert effects(*handles) == 5
    assert bool(worker.lines("left a transaction open")) is (deed not in ("close", "no-autocommit"))
    assert worker.stop() == 0


def test_a_block_that_an_async_handler_is_in_is_its_own_whatever_begins_and_ends_meanwhile(
    workers: Launcher,
) -> None:
    workers.start()
    finished(dispatch("calm", {"calm.s.a": ["query"]}))  # the thread is there from now on
    slow = dispatch("calm", {"calm.s.a": ["long-block:3"]})
    called(slow, "calm.s.a")
    others = [dispatch("calm") for _ in range(20)]
    finished(*others)
    assert status(slow) == states.RUNNING  # those that do not use the ORM do not wait for its thread
    finished(slow)
    assert (status(slow), node(slow, "calm.s.a").attempt, effects(slow)) == (states.COMPLETED, 1, 1)


def test_what_is_written_into_a_transaction_that_another_async_handler_has_left_open_is_undone(
    workers: Launcher,
) -> None:
    """It is over when that one ends, or another begins; and the log tells of it."""
    worker = workers.start()
    beside = dispatch("calm", {"calm.s.a": ["write-beside"]})
    called(beside, "calm.s.a")
    leaking = dispatch("calm", {"calm.s.a": ["leak-beside"]})
    finished(beside, leaking)
    after = dispatch("calm", {"calm.s.a": ["effect"]})
    finished(after)
    assert (effects(beside), effects(after)) == (0, 1)
    assert worker.lines("left a transaction open")


@pytest.mark.parametrize("deed", ["open-atomic", "broken-transaction", "raw-rollback"])
def test_an_atomic_handler_that_does_not_leave_its_transaction_whole_fails_and_is_undone(
    workers: Launcher, deed: str
) -> None:
    worker = workers.start(settings={"THREADS": 1})
    there = dispatch("atomic", {"atomic.s.a": [deed, "ok"]})
    back = dispatch("atomic-pair", {"atomic-pair.s.b": ["fatal"], "undo atomic-pair.s.a": [deed, "ok"]})
    finished(there, back)
    assert (status(there), node(there, "atomic.s.a").attempt) == (states.COMPLETED, 2)
    assert (status(back), node(back, "atomic-pair.s.a").status) == (states.COMPENSATED,) * 2
    (error,) = errors(there, "atomic.s.a")
    if deed != "broken-transaction":
        assert error["type"] == "TransactionBroken"
    invariants.check(exact=True)
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("hit", "deed", "ends"), [(1, "ok", states.COMPLETED), (2, "fatal", states.COMPENSATED)]
)
def test_an_atomic_handler_that_commits_just_as_its_time_is_up_is_done_and_that_is_no_error(
    workers: Launcher, hit: int, deed: str, ends: str
) -> None:
    """Of an action, and of its compensation."""
    worker = workers.start(f"atomic.before-commit=sleep:3@{hit}")
    handle = dispatch("brisk", {"brisk.s.b": [deed]})
    finished(handle)
    assert (status(handle), node(handle, "brisk.s.a").status) == (ends, ends)
    assert (node(handle, "brisk.s.a").attempt, node(handle, "brisk.s.a").error) == (1, None)
    eventually(lambda: worker.lines("INFO", "brisk.s.a was settled by somebody else just before"))
    assert not worker.lines("ERROR")
    invariants.check(exact=True)
    assert worker.stop() == 0


@pytest.mark.parametrize("name", ["plain", "atomic"])
def test_settings_of_a_session_end_with_it(workers: Launcher, name: str) -> None:
    """Search path, timeouts, a tenant, locks, temporary tables: with CONN_MAX_AGE at 0 each handler has its own."""
    workers.start(settings={"THREADS": 1}, conn_max_age=0)
    seen = []
    for deed in ("look", "session", "look"):
        handle = dispatch(name, {f"{name}.s.a": [deed]})
        finished(handle)
        assert (status(handle), node(handle, f"{name}.s.a").attempt) == (states.COMPLETED, 1)
        fields = RunEvent.objects.filter(run_id=handle.run_id, name="log").values_list(
            "data__fields", flat=True
        )
        seen += [entry["found"] for entry in fields]
    assert len(seen) == 2
    assert seen[0] == seen[1]


@pytest.mark.parametrize(("name", "conn_max_age"), [("plain", 600), ("calm", 0)])
def test_settings_of_a_session_that_is_kept_are_met_by_the_next_handler(
    workers: Launcher, name: str, conn_max_age: int
) -> None:
    """As by the next request of a web server."""
    workers.start(settings={"THREADS": 1}, conn_max_age=conn_max_age)
    for deed in ("session", "look"):
        handle = dispatch(name, {f"{name}.s.a": [deed]})
        finished(handle)
    (fields,) = RunEvent.objects.filter(run_id=handle.run_id, name="log").values_list(
        "data__fields", flat=True
    )
    assert fields["found"][1:3] == ["7654ms", "17"]


@pytest.mark.parametrize("conn_max_age", [0, 600])
def test_the_engines_own_statements_find_their_tables_whatever_the_search_path(
    workers: Launcher, conn_max_age: int
) -> None:
    """An atomic handler's checkpoint goes over the connection that the handler has used."""
    worker = workers.start(settings={"THREADS": 1}, conn_max_age=conn_max_age)
    handle = dispatch("atomic", {"atomic.s.a": ["search-path"]})
    finished(handle)
    assert (status(handle), node(handle, "atomic.s.a").attempt) == (states.COMPLETED, 1)
    invariants.check(exact=True)
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("name", "deed"),
    [
        ("impatient", "spin:60"),
        ("impatient", "sleep:6"),
        ("impatient", "stubborn:6"),
        ("restless", "sleep:60"),
        ("restless", "deaf:6"),
        ("restless", "block:2"),
    ],
)
def test_past_its_timeout_an_attempt_is_over_whatever_its_handler_does(
    workers: Launcher, name: str, deed: str
) -> None:
    worker = workers.start(settings={"THREADS": 2})
    begun = time.monotonic()
    handle = dispatch(name, {f"{name}.s.a": [deed]})
    finished(handle)
    assert status(handle) == states.COMPENSATED
    late = node(handle, f"{name}.s.a")
    assert (late.status, late.attempt, late.error["code"]) == (states.FAILED, 2, FailureCode.ACTION_TIMEOUT)
    assert [error["code"] for error in errors(handle, f"{name}.s.a")] == [FailureCode.ACTION_TIMEOUT]
    assert calls(handle, f"{name}.s.after") == []
    full_strength(2)
    assert time.monotonic() - begun < 30
    invariants.check(at_rest=False, zombies=True)
    assert worker.stop() == 0


def test_threads_that_do_not_stop_are_counted_and_do_not_keep_the_worker_from_leaving(
    workers: Launcher,
) -> None:
    worker = workers.start(settings={"THREADS": 2})
    handle = dispatch("impatient", {"impatient.s.a": ["stubborn:40"]})
    finished(handle)
    eventually(lambda: Worker.objects.get(pid=worker.pid).abandoned_threads == 2)
    assert worker.lines("does not stop")
    full_strength(2)
    begun = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - begun < 15


def test_a_blocked_loop_keeps_the_leases_of_the_process(workers: Launcher) -> None:
    short = {"STALE_LEASE_THRESHOLD": 1.5, "HEARTBEAT_INTERVAL": 0.2, "SWEEP_INTERVAL": 0.1}
    for _ in range(2):
        workers.start(settings=short)
    handles = [dispatch("calm", {"calm.s.a": ["block:4"]})] + [
        dispatch("calm", {"calm.s.a": ["sleep:1"]}) for _ in range(4)
    ]
    finished(*handles)
    assert [len(calls(handle, "calm.s.a")) for handle in handles] == [1] * 5
    invariants.check(exact=True)


def test_a_handler_that_holds_the_interpreter_loses_its_lease_and_its_result(workers: Launcher) -> None:
    short = {"STALE_LEASE_THRESHOLD": 1.5, "HEARTBEAT_INTERVAL": 0.2, "SWEEP_INTERVAL": 0.1}
    pair = [workers.start(settings=short), workers.start(settings=short)]
    handle = dispatch("plain", {"plain.s.a": ["hog:6", "ok"]})
    finished(handle)
    assert status(handle) == states.COMPLETED
    assert (node(handle, "plain.s.a").output, node(handle, "plain.s.a").attempt) == (2, 2)
    (_, first, _), (_, second, _) = calls(handle, "plain.s.a")
    assert first != second
    eventually(lambda: all(how for _, _, how in calls(handle, "plain.s.a")))
    assert node(handle, "plain.s.a").output == 2
    invariants.check(zombies=True)
    assert [worker.stop() for worker in pair] == [0, 0]


def test_a_handler_that_kills_its_process_every_time_is_called_as_often_as_it_has_attempts(
    workers: Launcher,
) -> None:
    handle = dispatch("pair", {"pair.s.b": ["kill"]})
    for _ in range(3):
        assert workers.start().wait() == -signal.SIGKILL
        assert take_over() == 1
    workers.start()
    finished(handle)
    assert status(handle) == states.COMPENSATED
    lost = node(handle, "pair.s.b")
    assert (lost.attempt, lost.error["code"]) == (3, FailureCode.LEASE_HEARTBEAT_LOST)
    assert [attempt for attempt, _, _ in calls(handle, "pair.s.b")] == [1, 2, 3]
    assert node(handle, "pair.s.a").status == states.COMPENSATED
    invariants.check()


@pytest.mark.parametrize("name", ["plain", "calm"])
def test_a_child_that_a_handler_forks_and_ends_does_not_end_the_worker(workers: Launcher, name: str) -> None:
    """It begins with the worker's handlers of signals, and with what wakes the worker's loop for them."""
    worker = workers.start()
    for _ in range(3):
        handle = dispatch(name, {f"{name}.s.a": ["fork"]})
        finished(handle)
        assert (status(handle), node(handle, f"{name}.s.a").attempt) == (states.COMPLETED, 1)
    finished(dispatch("plain"))
    assert not worker.lines("stops:")
    assert worker.stop() == 0


def test_a_compensation_that_kills_its_process_every_time_is_bounded_too(workers: Launcher) -> None:
    handle = dispatch("pair", {"pair.s.b": ["fatal"], "undo pair.s.a": ["kill"]})
    for _ in range(3):
        assert workers.start().wait() == -signal.SIGKILL
        assert take_over() == 1
    workers.start()
    finished(handle)
    assert status(handle) == states.COMPENSATED
    undone = node(handle, "pair.s.a")
    assert (undone.status, undone.error["code"]) == (states.COMPLETED, FailureCode.COMPENSATION_FAILED)
    assert len(calls(handle, "pair.s.a", "undo")) == 3
    assert handle.status().run.error["compensation_failures"] == ["pair.s.a"]
    invariants.check()


@pytest.mark.parametrize(
    ("name", "deed", "how"), [("plain", "hold:60", "Aborted"), ("calm", "sleep:60", "CancelledError")]
)
def test_a_running_handler_hears_of_a_cancel_at_once(
    workers: Launcher, name: str, deed: str, how: str
) -> None:
    worker = workers.start(settings={"HEARTBEAT_INTERVAL": 20, "POLL_INTERVAL": 20})
    handle = dispatch(name, {f"{name}.s.a": [deed]})
    called(handle, f"{name}.s.a")
    begun = time.monotonic()
    workflows.cancel(handle.run_id)
    eventually(lambda: calls(handle, f"{name}.s.a")[0][2], 10, "the handler did not hear of it")
    assert time.monotonic() - begun < 10
    assert calls(handle, f"{name}.s.a")[0][2] == how
    assert status(handle) == states.CANCELLED
    eventually(lambda: worker.lines("cancelled"))
    invariants.check()
    assert worker.stop() == 0


def test_a_handler_that_was_cancelled_while_it_waited_for_a_thread_is_never_called(workers: Launcher) -> None:
    worker = workers.start(settings={"THREADS": 1})
    first = dispatch("plain", {"plain.s.a": ["hold:60"]})
    called(first, "plain.s.a")
    second = dispatch("plain")
    eventually(lambda: node(second, "plain.s.a").status == states.RUNNING)
    workflows.cancel(second.run_id)
    eventually(lambda: worker.lines(str(second.run_id), "lost"))
    workflows.cancel(first.run_id)
    third = dispatch("plain")
    finished(third)
    assert calls(second, "plain.s.a") == []
    invariants.check()


def test_the_steps_of_a_cancelled_handler_end_with_the_one_in_hand(workers: Launcher) -> None:
    """Of ten, each of which takes a while (C67)."""
    workers.start(settings={"THREADS": 2})
    handle = dispatch("plain", {"plain.s.a": ["ten:0.3"]})
    done = Step.objects.filter(run_id=handle.run_id, status="completed")
    eventually(lambda: done.count() >= 2)
    workflows.cancel(handle.run_id)
    at_most = done.count() + 2
    eventually(lambda: calls(handle, "plain.s.a")[0][2] == "Aborted")
    assert Step.objects.filter(run_id=handle.run_id).count() <= at_most < 10
    assert status(handle) == states.CANCELLED
    full_strength(2)


def test_handlers_that_hang_in_the_system_free_their_slots(workers: Launcher) -> None:
    """More of them than there are threads, in calls that no exception can end (C27)."""
    worker = workers.start(settings={"THREADS": THREADS})
    handles = [
        dispatch("impatient", {"impatient.s.a": [deed]}) for deed in ["receive:20", "sleep:20"] * THREADS
    ]
    finished(*handles)
    for handle in handles:
        late = node(handle, "impatient.s.a")
        assert late.error is not None
        assert (late.status, late.attempt, late.error["code"]) == (states.FAILED, 2, "ACTION_TIMEOUT")
    full_strength(THREADS)
    assert worker.stop() == 0
