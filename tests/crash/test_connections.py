"""Connections are cut, the database is restarted, or gone for a while: workers go on, and nothing is done twice."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from tests.crash_app import trees
from tests.support import invariants
from tests.support.cluster import Cluster, cluster, reconnect
from tests.support.crash import (
    called,
    calls,
    clear,
    dispatch,
    finished,
    key_of,
    node,
    prepare,
    registered,
    sessions,
    status,
    terminate,
)
from tests.support.workers import Launcher, eventually
from tests.worker.test_stopping import ready
from workflow import states, workflows
from workflow.models import Node
from workflow.registry import registry
from workflow.results import RunHandle
from workflow.store.ports import connection_parameters

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]


def test_connections_that_were_cut_while_idle_cost_no_attempt(workers: Launcher) -> None:
    """Persistent connections of handlers, and those of the engine (C30)."""
    worker = workers.start(settings={"POLL_INTERVAL": 20, "HEARTBEAT_INTERVAL": 20}, conn_max_age=3600)
    queries = {"plain": {"plain.s.a": ["query"]}, "calm": {"calm.s.a": ["query"]}, "atomic": {}}
    for _ in range(2):
        handles = [dispatch(name, script) for name, script in queries.items() for _ in range(8)]
        finished(*handles)
        assert [status(handle) for handle in handles] == [states.COMPLETED] * 24
        assert set(Node.objects.filter(kind="action").values_list("attempt", flat=True)) == {1}
        cut = sessions()
        assert terminate(cut) > 5
        # These are gone; the engine's own may be back by then, under other pids.
        eventually(lambda cut=cut: not {*cut} & {*sessions()})
    assert worker.stop() == 0
    invariants.check(exact=True)


def test_a_worker_whose_listener_was_cut_hears_again(workers: Launcher) -> None:
    """It would look by itself once a minute only (C31, C39)."""
    worker = workers.start(settings={"POLL_INTERVAL": 60})
    ready(worker.pid)
    old = eventually(lambda: sessions("query LIKE 'LISTEN%'"))
    terminate(old)
    eventually(lambda: set(sessions("query LIKE 'LISTEN%'")) - set(old))
    finished(dispatch("plain"))  # what was added before it listened is looked for then
    begun = time.monotonic()
    finished(dispatch("plain"))
    running = dispatch("plain", {"plain.s.a": ["hold:60"]})
    called(running, "plain.s.a")
    workflows.cancel(running.run_id)
    eventually(lambda: calls(running, "plain.s.a")[0][2] == "Aborted")
    assert time.monotonic() - begun < 30
    assert worker.lines("not listening")


def test_connections_of_workers_notice_a_peer_that_is_gone_without_a_word(
    workers: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In half a minute, not the quarter of an hour of the system's own (C39); what the project says goes before it."""
    found = connection_parameters()
    assert found["tcp_user_timeout"] == 30_000
    assert found["keepalives_idle"] + found["keepalives_interval"] * found["keepalives_count"] <= 60
    assert found["connect_timeout"] <= 10
    options = {**connection.settings_dict["OPTIONS"], "tcp_user_timeout": 5000}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    assert connection_parameters()["tcp_user_timeout"] == 5000


def start_many(count: int, dice: random.Random) -> list[RunHandle]:
    """Runs of random workflows whose waits are served at once, some of whose actions fail."""
    handles = []
    for number in range(count):
        name = f"random-{number % trees.COUNT:02}"
        tree = registry.get(name).tree
        script = {
            each.path: dice.choice([["fail", "ok"], ["fatal"], ["sleep:0.05"], ["query"]])
            for each in tree.nodes
            if each.kind == "action" and dice.random() < 0.2
        }
        handle = dispatch(name, script)
        for each in tree.nodes:
            if each.kind == "stage" and not each.groups:
                workflows.publish(each.definition.wait_for.event, correlation=key_of(handle))
        handles.append(handle)
    return handles


def test_connections_that_are_cut_all_the_time_cost_time_and_nothing_else(workers: Launcher) -> None:
    dice = random.Random(11)
    pair = [workers.start(), workers.start(conn_max_age=60)]
    handles = start_many(48, dice)
    cut = 0
    deadline = time.monotonic() + 12
    while time.monotonic() < deadline and any(
        status(handle) not in states.RUN_TERMINAL for handle in handles
    ):
        found = sessions()
        cut += terminate(dice.sample(found, len(found) // 2))
        time.sleep(dice.uniform(0.02, 0.3))  # the cuts fall anywhere in what the workers are doing
    finished(*handles, within=60)
    assert cut > 20
    invariants.check(exact=True)
    assert [worker.stop() for worker in pair] == [0, 0]


def test_a_server_that_is_the_primary_no_more_is_left_for_the_new_one(workers: Launcher) -> None:
    """After a fail-over the old primary takes no writes: nothing fails for that, connections are made anew (25006)."""
    worker = workers.start()
    handle = dispatch("pair", {"pair.s.a": ["sleep:1"]})
    called(handle, "pair.s.a")
    name = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        try:
            terminate(sessions("application_name = 'worker' OR application_name LIKE 'workflow %'"))
            eventually(lambda: worker.lines("read-only transaction"))
        finally:
            cursor.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    finished(handle, dispatch("plain"))
    assert [node(handle, f"pair.s.{each}").attempt for each in "ab"] == [1, 1]
    invariants.check(exact=True)
    assert worker.stop() == 0


# --- a server of our own --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(django_db_blocker: DjangoDbBlocker) -> Iterator[Cluster]:
    with django_db_blocker.unblock(), cluster() as made:
        yield made


@pytest.fixture(scope="module")
def launcher_there(server: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    with Launcher(tmp_path_factory.mktemp("workers"), prepare()) as made:
        yield made


@pytest.fixture
def there(
    server: Cluster, launcher_there: Launcher, django_db_blocker: DjangoDbBlocker
) -> Iterator[tuple[Cluster, Launcher]]:
    """A server that may be crashed, and what starts workers on it."""
    with django_db_blocker.unblock(), registered():
        server.ensure_running()
        reconnect()
        clear()
        try:
            yield server, launcher_there
        finally:
            launcher_there.end_all()


def test_a_database_that_crashes_again_and_again_loses_nothing(there: tuple[Cluster, Launcher]) -> None:
    server, workers = there
    dice = random.Random(5)
    pair = [workers.start(), workers.start()]
    handles = start_many(36, dice)
    for _ in range(3):
        time.sleep(dice.uniform(0.2, 0.8))  # the crash falls anywhere in what the workers are doing
        server.crash()
        server.ensure_running()
        reconnect()
    finished(*handles, within=60)
    invariants.check(exact=True)
    assert [worker.stop() for worker in pair] == [0, 0]


def test_an_outage_costs_a_few_lines_and_ends_soon_after_the_database_is_back(
    there: tuple[Cluster, Launcher],
) -> None:
    server, workers = there
    worker = workers.start()
    handle = dispatch("pair", {"pair.s.a": ["sleep:1"]})
    called(handle, "pair.s.a")
    before = len(worker.said().splitlines())
    server.halt()
    time.sleep(8)  # the time itself is the thing: this is how few lines so long an outage makes
    assert worker.code is None
    lines = worker.said().splitlines()[before:]
    assert 0 < len(lines) < 10, "\n".join(lines)
    server.ensure_running()
    reconnect()
    begun = time.monotonic()
    finished(handle)
    finished(dispatch("plain"))
    assert time.monotonic() - begun < 20
    assert [node(handle, f"pair.s.{each}").attempt for each in "ab"] == [1, 1]
    assert [len(calls(handle, f"pair.s.{each}")) for each in "ab"] == [1, 1]
    assert worker.lines("the database is back")
    invariants.check(exact=True)
    assert worker.stop() == 0


def test_a_worker_can_be_stopped_while_the_database_is_away(there: tuple[Cluster, Launcher]) -> None:
    server, workers = there
    idle, busy = workers.start(queues=["nothing"]), workers.start(settings={"SHUTDOWN_GRACE": 1})
    handle = dispatch("pair", {"pair.s.a": ["sleep:0.5"]})
    called(handle, "pair.s.a")
    ready(idle.pid)
    server.halt()
    eventually(lambda: idle.lines("the database is away"))
    begun = time.monotonic()
    assert idle.stop() == 0
    assert time.monotonic() - begun < 10
    begun = time.monotonic()
    assert busy.stop() == 0
    assert time.monotonic() - begun < 20


def test_a_worker_that_starts_before_its_database_says_so_and_waits_for_it(
    there: tuple[Cluster, Launcher],
) -> None:
    server, workers = there
    server.halt()
    worker = workers.start()
    eventually(lambda: worker.lines("the database is away", "starting is tried again"), what=worker.said)
    server.ensure_running()
    reconnect()
    handle = dispatch("plain")
    finished(handle)
    assert worker.stop() == 0


def test_a_worker_that_is_stopped_while_it_waits_for_its_database_serves_nothing(
    there: tuple[Cluster, Launcher],
) -> None:
    server, workers = there
    server.halt()
    worker = workers.start()
    eventually(lambda: worker.lines("starting is tried again"), what=worker.said)
    assert worker.stop() == 0
    assert worker.lines("stops: it claims nothing more")
    assert not worker.lines("serves")


@pytest.mark.parametrize("options", [{}, {"processes": 2}, {"max_jobs": 5}], ids=["one", "two", "replaced"])
def test_a_burst_without_a_database_says_so_and_leaves(
    there: tuple[Cluster, Launcher], options: dict[str, int]
) -> None:
    server, workers = there
    server.halt()
    worker = workers.start(burst=True, **options)
    assert worker.wait(30) == 1
    said = worker.said().splitlines()
    assert len(said) == options.get("processes", 1)
    assert all(
        "the burst does not start: the database cannot be reached: connection" in line for line in said
    )
