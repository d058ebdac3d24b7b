"""What things cost, in counts and never in time: statements, commits, rows written, queries of a page.

A worker process is run inside the test, in a burst; its connections are the real ones, each wrapped in
one that keeps count. Rows are counted by PostgreSQL itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from tests.support import web
from tests.support.workers import eventually
from workflow import Action, Stage, Workflow, workflows
from workflow.executor import moving
from workflow.models import Run
from workflow.registry import registry
from workflow.sql import claim as claim_sql
from workflow.sql import openings as openings_sql
from workflow.sql import settle as settle_sql
from workflow.store.pipeline import Rows, Statement
from workflow.store.ports import AsyncPort, connection_parameters
from workflow.testing import drain
from workflow.worker import claiming
from workflow.worker import process as worker_process
from workflow.worker.options import Options

SETTLE = "workflow settle"
CLAIM = "workflow claim"
NODES = 7
"""Of a run of `FIVE`: the pipeline, the stage and its five actions."""
ENTRIES = 13
"""Of its history: it started; each action started and completed; the stage completed; it completed."""


async def nothing(state: dict[str, Any]) -> None:
    """A handler."""


FIVE = Workflow("five", stages=[Stage("s", actions=[Action(f"a{i}", nothing) for i in range(5)])])


QUEUED = Workflow(
    "queued", stages=[Stage(f"s{i}", actions=[Action("a", nothing)], via="queue") for i in range(5)]
)


class CountingPort(AsyncPort):
    """The real port, which also remembers what went through it."""

    transactions: list[tuple[str, list[str]]] = []

    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        self.transactions.append((self._name, [sql for sql, _ in statements]))
        return await super().run(statements)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with registry.isolated():
        workflows.register(FIVE)
        workflows.register(QUEUED)
        workflows.register(web.ORDER)
        yield


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """(connection, statements) of each transaction that workers of this test have run."""
    monkeypatch.setattr(worker_process, "AsyncPort", CountingPort)
    monkeypatch.setattr(CountingPort, "transactions", [])
    return CountingPort.transactions


def work(concurrency: int) -> None:
    """A worker process, here, until nothing is due."""
    parameters = connection_parameters()

    async def main() -> int:
        return await worker_process.WorkerProcess(
            parameters, Options(concurrency=concurrency, burst=True)
        ).run()

    assert asyncio.run(main()) == 0


def completed() -> int:
    return Run.objects.filter(status="completed").count()


# --- statements and commits ---------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_boundary_is_four_statements_in_one_transaction(transactions: list[tuple[str, list[str]]]) -> None:
    workflows.dispatch("five", {})
    work(concurrency=1)
    assert completed() == 1
    settled = [statements for name, statements in transactions if name == SETTLE]
    boundary = [
        settle_sql.LOCK_RUNS,
        settle_sql.UPDATE_RUNS,
        settle_sql.UPDATE_NODES,
        settle_sql.INSERT_HISTORY,
    ]
    # Its claim begins it with its first action; each action ends with the next one; the last ends run and job.
    assert settled == [*[boundary] * 4, [*boundary, settle_sql.DELETE_JOBS]]


@pytest.mark.django_db(transaction=True)
def test_an_action_that_leaves_nothing_open_in_its_ledger_closes_nothing(
    transactions: list[tuple[str, list[str]]],
) -> None:
    async def steps(state: dict[str, Any], ctx: Any) -> None:
        await ctx.step.arun("one", nothing, {})
        await ctx.step.arun("two", nothing, {})

    workflows.register(Workflow("steps", stages=[Stage("s", actions=[Action("a", steps)])]))
    workflows.dispatch("steps", {})
    work(concurrency=1)
    assert completed() == 1
    settled = [sql for name, statements in transactions if name == SETTLE for sql in statements]
    assert settled.count(settle_sql.WRITE_STEPS) == 4
    assert settle_sql.CLOSE_STEPS not in settled


@pytest.mark.django_db(transaction=True)
def test_five_queued_stages_are_as_many_commits_as_five_inline_ones(
    transactions: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "SLICE", 600.0)
    workflows.dispatch("queued", {})
    work(concurrency=1)
    assert completed() == 1
    settled = [statements for name, statements in transactions if name == SETTLE]
    boundary = [
        settle_sql.LOCK_RUNS,
        settle_sql.UPDATE_RUNS_MOVING,
        settle_sql.UPDATE_NODES,
        settle_sql.INSERT_HISTORY,
    ]
    # It starts with the first stage, each ends with the next one, the last one ends the run. No job is added, so
    # nobody is rung for.
    assert settled == [*[[*boundary, settle_sql.UPDATE_JOBS]] * 5, [*boundary, settle_sql.DELETE_JOBS]]
    claims = [statements for name, statements in transactions if name == CLAIM]
    assert len(claims) <= 4


@pytest.mark.django_db(transaction=True)
def test_a_run_that_comes_alone_is_claimed_once(
    transactions: list[tuple[str, list[str]]], settings: Any
) -> None:
    settings.WORKFLOW = {"POLL_INTERVAL": 600}  # however long it takes, no look is the clock's
    workflows.dispatch("five", {})
    work(concurrency=10)
    claims = [statements for name, statements in transactions if name == CLAIM]
    claim = [claim_sql.CLAIM, openings_sql.OPEN_RUNS, claim_sql.CLAIMED_RUNS, claim_sql.NEXT_DUE]
    assert all(statements == claim for statements in claims)
    # The one that finds it, one after it, one when the doorbell has begun to listen, and the burst's last look.
    assert len(claims) <= 4


@pytest.mark.django_db(transaction=True)
def test_jobs_that_come_one_by_one_to_a_worker_at_work_are_claimed_a_few_at_a_time(
    transactions: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rest, coming = 0.5, 20
    monkeypatch.setattr(claiming, "CLAIM_REST", rest)
    at_work = []
    over = threading.Event()

    async def hold(state: dict[str, Any]) -> None:
        at_work.append(1)
        await asyncio.to_thread(over.wait)

    workflows.register(Workflow("holding", stages=[Stage("s", actions=[Action("a", hold)])]))
    workflows.dispatch_many("holding", [{}] * claiming.BUSY)
    claims = 0

    def dispatch_one_by_one() -> None:
        nonlocal claims
        try:
            eventually(lambda: len(at_work) == claiming.BUSY)
            before, begun = len(transactions), time.monotonic()
            for _ in range(coming):
                seen = len(transactions)
                workflows.dispatch("five", {})
                # Not the next one before this one has been heard of, unless nobody claims for now.
                eventually(lambda seen=seen: len(transactions) > seen or time.monotonic() - begun > rest)
            eventually(lambda: completed() == coming)
            claims = sum(name == CLAIM for name, _ in transactions[before:])
            claims -= int((time.monotonic() - begun) / rest) + 2
        finally:
            over.set()
            connection.close()

    dispatching = threading.Thread(target=dispatch_one_by_one)
    dispatching.start()
    work(concurrency=40)
    dispatching.join()
    assert completed() == coming + claiming.BUSY
    assert claims <= 0  # of those beyond one in each rest


@pytest.mark.django_db(transaction=True)
def test_under_load_a_run_costs_less_than_half_a_commit(transactions: list[tuple[str, list[str]]]) -> None:
    runs = 200
    workflows.dispatch_many("five", [{}] * runs)
    work(concurrency=100)
    assert completed() == runs
    used = Counter(name for name, _ in transactions)
    assert used[SETTLE] + used[CLAIM] < 0.5 * runs


# --- rows ---------------------------------------------------------------------------------------


def written() -> dict[str, int]:
    """Rows inserted, updated, updated in place (HOT) and deleted so far, by table: `node.upd` and so on."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT substr(relname, 10), n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del FROM pg_stat_user_tables"
            " WHERE relname LIKE 'workflow\\_%%'"
        )
        return {
            f"{table}.{kind}": count
            for table, *counts in cursor.fetchall()
            for kind, count in zip(("ins", "upd", "hot", "del"), counts, strict=True)
        }


def spent_on(runs: int) -> dict[str, int]:
    """What that many runs of five actions write, worked off together."""
    before = written()
    workflows.dispatch_many("five", [{}] * runs)
    work(concurrency=100)
    connection.close()  # its counts, like those of the worker's connections, are known once it is gone

    def counted() -> dict[str, int] | None:
        spent = {name: count - before.get(name, 0) for name, count in written().items()}
        return spent if spent["runevent.ins"] == ENTRIES * runs and spent["job.del"] == runs else None

    found: dict[str, int] = eventually(counted)
    return found


@pytest.mark.django_db(transaction=True)
def test_rows_written_for_a_run_of_five_actions() -> None:
    runs = 100
    spent = spent_on(runs)
    assert spent["run.ins"] == runs
    assert spent["run.upd"] == 6 * runs  # begun by its claim, and one for each boundary
    assert spent["node.ins"] == NODES * runs
    assert spent["node.upd"] == 2 * NODES * runs  # each starts and completes
    assert spent["job.ins"] == spent["job.upd"] == runs  # claimed once, no stamp while the unit is alone
    assert spent["runevent.upd"] == spent["step.ins"] == 0


@pytest.mark.django_db(transaction=True)
def test_no_transition_of_a_node_touches_an_index() -> None:
    """As long as its page has room, as it has for a run alone. A run's first and last one do: its status is indexed."""
    spent = spent_on(1)
    assert spent["node.hot"] == spent["node.upd"] == 2 * NODES
    assert spent["run.hot"] == spent["run.upd"] - 2


# --- commands -----------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_dispatch_is_one_query(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1):
        handle = workflows.dispatch("five", {"a": 1}, context={"b": 2}, correlation_id="c")
    with django_assert_num_queries(1):
        workflows.dispatch("five", {}, idempotency_key="k")
    with django_assert_num_queries(1):
        assert not workflows.dispatch("five", {}, idempotency_key="k").created
    with django_assert_num_queries(1):
        assert handle.status().run.status == "pending"


@pytest.mark.django_db(transaction=True)
def test_a_thousand_runs_are_dispatched_by_three_queries(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(3):  # runs, nodes, jobs
        assert len(workflows.dispatch_many("five", [{"n": n} for n in range(1000)])) == 1000
    assert Run.objects.count() == 1000


@pytest.mark.django_db(transaction=True)
def test_a_page_of_runs_is_one_query_however_long_it_is(django_assert_num_queries: Any) -> None:
    workflows.dispatch_many("five", [{}] * 60)
    for limit in (1, 50):
        with django_assert_num_queries(1):
            page = workflows.list(workflow="five", status="pending", limit=limit)
        assert len(page.items) == limit
        assert page.next is not None


# --- pages --------------------------------------------------------------------------------------

SESSION = 4
"""The session, its user, and the user's own permissions and those of the groups."""
PAGES = {
    "/workflow/": 1,
    "/workflow/{run}/": 2,  # its tag, and then the run
    "/workflow/{run}/history/": 2,  # whether there is such a run, and the page
}


@pytest.mark.django_db
@pytest.mark.parametrize("runs", [1, 30])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_api_costs_the_same_however_much_there_is(
    page: str, runs: int, django_assert_num_queries: Any
) -> None:
    run_id = dispatched(runs)
    client = web.client_of(web.person("vera", "view_run"))
    with django_assert_num_queries(SESSION + PAGES[page]):
        assert client.get(page.format(run=run_id)).status_code == 200


@pytest.mark.django_db
@pytest.mark.parametrize("page", ["", "{run}/", "{run}/state/", "{run}/timeline/", "{run}/history/"])
def test_a_page_of_the_dashboard_costs_the_same_however_much_there_is(page: str) -> None:
    client = web.client_of(web.person("vera", "view_run"))
    few = queries(client, f"/dashboard/{page.format(run=dispatched(1))}")
    many = queries(client, f"/dashboard/{page.format(run=dispatched(40))}")
    assert many <= few <= SESSION + 12


def dispatched(runs: int) -> uuid.UUID:
    """So many runs that have come as far as their wait; one of them."""
    handles = workflows.dispatch_many("web-order", [{"order_id": f"o-{n}"} for n in range(runs)])
    drain()
    return handles[0].run_id


def queries(client: Client, address: str) -> int:
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as asked:
        assert client.get(address).status_code == 200
    return len(asked)
