"""What a worker costs the database, and how much of it goes on at once."""

from __future__ import annotations

import time

import pytest
from django.db import connection
from django.test import override_settings

from tests.support import invariants
from tests.support.crash import called, dispatch, finished, key_of, node, sessions, status
from tests.support.workers import SETTINGS as OF_TESTS
from tests.support.workers import Launcher, eventually
from workflow import states, workflows
from workflow.conf import conf
from workflow.errors import RunConflict
from workflow.models import Job, RunEvent

pytestmark = pytest.mark.crash


def test_progress_in_a_tight_loop_is_a_few_writes_a_second_and_the_last_value_arrives(
    workers: Launcher,
) -> None:
    workers.start()
    begun = time.monotonic()
    handle = dispatch("plain", {"plain.s.a": ["progress:50000"]})
    finished(handle)
    entries = RunEvent.objects.filter(run_id=handle.run_id, name=states.EVENT_ACTION_PROGRESS)
    assert 1 <= entries.count() <= 5 + 4 * (time.monotonic() - begun)
    assert node(handle, "plain.s.a").progress == 100
    last = entries.order_by("seq").last()
    assert last is not None
    assert last.data["progress"] == 100
    invariants.check(exact=True)


@pytest.mark.parametrize("conn_max_age", [0, 600])
def test_connections_are_bounded_by_the_threads(workers: Launcher, conn_max_age: int) -> None:
    """Five of the engine's own, one for each thread, one for the ORM of all async handlers (C33)."""
    threads = 4
    workers.start(settings={"THREADS": threads}, conn_max_age=conn_max_age)
    handles = [
        dispatch(name, {f"{name}.s.a": ["query"]}) for name in ("plain", "calm", "atomic") for _ in range(30)
    ]
    most = 0
    deadline = time.monotonic() + 60
    while (
        any(handle.status().run.finished_at is None for handle in handles[-3:])
        and time.monotonic() < deadline
    ):
        most = max(most, len(sessions()))
    finished(*handles)
    # The server may still be ending the session of a handler when the next one's has begun.
    assert most <= 5 + threads + 1 + (threads if conn_max_age == 0 else 0)
    if conn_max_age == 0:
        eventually(lambda: len(sessions()) <= 6)


def test_no_transaction_is_open_while_user_code_runs(workers: Launcher) -> None:
    workers.start()
    handles = [dispatch(name, {f"{name}.s.a": ["sleep:1"]}) for name in ("plain", "calm", "ledger")]
    for name, handle in zip(("plain", "calm", "ledger"), handles, strict=True):
        called(handle, f"{name}.s.a")
    for _ in range(20):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pid, query FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = "
                "current_database() AND (application_name = 'worker' OR application_name LIKE 'workflow %')"
            )
            assert cursor.fetchall() == []
        time.sleep(0.02)
    finished(*handles)


def test_plain_handlers_run_at_once_up_to_the_number_of_threads(workers: Launcher) -> None:
    workers.start(settings={"THREADS": 8})
    handles = [dispatch("plain", {"plain.s.a": ["sleep:1"]}) for _ in range(16)]
    finished(*handles)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT max(n) FROM (SELECT count(*) AS n FROM crash_call AS a JOIN crash_call AS b "
            "ON b.started_at <= a.started_at AND b.ended_at > a.started_at GROUP BY a.id) AS at_once"
        )
        assert cursor.fetchone() == (8,)


@pytest.mark.parametrize("name", ["asking", "aasking"])
def test_a_suspended_handler_holds_no_slot_thread_lease_or_transaction(workers: Launcher, name: str) -> None:
    workers.start(settings={"CONCURRENCY": 1, "THREADS": 1})
    handles = [dispatch(name) for _ in range(3)]
    eventually(lambda: {node(handle, f"{name}.s.a").status for handle in handles} == {states.WAITING})
    finished(dispatch("plain"), dispatch("calm"))
    assert {status(handle) for handle in handles} == {states.RUNNING}
    jobs = Job.objects.filter(run_id__in=[handle.run_id for handle in handles])
    assert list(jobs.values_list("lease_token", flat=True)) == [None] * 3
    # The worker's own short ones come and go; one of a handler's would stay.
    eventually(lambda: not sessions("xact_start IS NOT NULL AND pid <> pg_backend_pid()"))
    for handle in handles:
        workflows.publish("asking.go", correlation=key_of(handle))
    finished(*handles)
    assert [node(handle, f"{name}.s.a").attempt for handle in handles] == [1] * 3
    invariants.check()


def test_whoever_blocks_the_event_loop_is_told_on(workers: Launcher) -> None:
    worker = workers.start()
    finished(dispatch("calm", {"calm.s.a": ["block:3"]}))
    eventually(lambda: worker.lines("the event loop was blocked", "calm.s.a"))


def test_a_wide_stage_ends_once_whichever_members_come_in_last(workers: Launcher) -> None:
    """Twenty queued members on three workers: the parent goes on exactly once (C77)."""
    for _ in range(3):
        workers.start()
    handles = [dispatch("wide") for _ in range(10)]
    finished(*handles)
    for handle in handles:
        assert (
            RunEvent.objects.filter(
                run_id=handle.run_id, node="wide.after.end", name="action.started"
            ).count()
            == 1
        )
    invariants.check(exact=True)


@pytest.mark.parametrize(
    ("deed", "end"), [("ok", states.COMPLETED), ("fatal", states.COMPENSATED)], ids=["completion", "failure"]
)
def test_cancels_that_race_with_the_end_have_one_winner(workers: Launcher, deed: str, end: str) -> None:
    """Or with turning back: a run that compensates cannot be cancelled, and says so."""
    workers.start()
    outcomes = set()
    for _ in range(40):
        handle = dispatch("pair", {"pair.s.b": [deed]})
        eventually(lambda handle=handle: node(handle, "pair.s.b").status != states.PENDING)
        try:
            workflows.cancel(handle.run_id)
            won = states.CANCELLED
        except RunConflict:
            won = end
        finished(handle)
        assert handle.status().run.status == won
        outcomes.add(won)
    assert outcomes
    invariants.check(zombies=True)


@pytest.mark.parametrize("name", ["plain", "calm", "atomic"])
def test_with_debug_the_queries_of_handlers_are_not_kept_for_ever(workers: Launcher, name: str) -> None:
    """Django keeps the text of each query, up to 9,000 a thread, until a request begins: here none ever does."""
    workers.start(settings={"THREADS": 1}, django={"DEBUG": True}, conn_max_age=600)
    for _ in range(3):
        finished(*[dispatch(name, {f"{name}.s.a": ["queries"]}) for _ in range(10)])
    fields = RunEvent.objects.filter(name="log").values_list("data__fields", flat=True)
    kept = [entry["kept"] for entry in fields]
    assert len(kept) == 30
    assert (
        1 <= min(kept) <= max(kept) <= (10 if name == "calm" else 4)
    )  # those at work together share one log


def test_idle_workers_ask_little(workers: Launcher) -> None:
    """Less than two transactions a second each, with the settings that are the defaults (C99)."""
    with override_settings(WORKFLOW={}):
        defaults = {name: getattr(conf, name) for name in OF_TESTS}
    count, seconds = 3, 4.0
    for _ in range(count):
        workers.start(settings=defaults)
    eventually(lambda: len(sessions("query LIKE 'LISTEN%'")) == count)

    def rate() -> float:
        before, begun = transactions(), time.monotonic()
        time.sleep(seconds)  # nothing is to happen
        return (transactions() - before) / (time.monotonic() - begun) / count

    eventually(lambda: rate() < 2, 30)  # what they did as they started is counted a little later


def transactions() -> int:
    """How many the database has seen; those of a session are counted once it has been idle for a moment."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        )
        found: int = cursor.fetchone()[0]
    return found
