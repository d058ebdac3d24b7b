"""What docs/how-to/tenants.md says of row-level security holds on the real database, for roles that are no superuser.

All of it happens in the test's own transaction: roles, which belong to the whole server, are gone with it, also when
the test is killed. Their names carry that of the test database, since other processes test on the same server.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from django.db import ProgrammingError, connection, transaction

from tests.support.shown import shown
from tests.support.threads import elsewhere
from workflow import RunConflict, RunHandle, RunNotFound, Stage, WaitFor, Workflow, workflows
from workflow.models import Event, Job, Node, Run, RunEvent, Step, Worker
from workflow.registry import registry
from workflow.testing import advance, drain

PAGE = "docs/how-to/tenants.md"
TABLES = ("run", "node", "job", "step", "event", "runevent", "worker", "pausedqueue")
REFUSED = "row-level security"
As = Callable[[str], AbstractContextManager[None]]


def nap(state: dict[str, Any], ctx: Any) -> None:
    ctx.step.run("note", str)


ORDER = Workflow(
    "tenants-order",
    stages=[Stage("nap", run=nap), Stage("paid", wait_for=WaitFor("paid", correlate="order"))],
    on_failure="halt",
)


@pytest.fixture
def page(db: None) -> dict[str, Any]:
    return shown(PAGE)


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def role(kind: str) -> str:
    return re.sub(r"\W", "_", f"{kind}_{connection.settings_dict['NAME']}".lower())


@pytest.fixture(autouse=True)
def _policies(page: dict[str, Any]) -> Iterator[None]:
    """The page's migration, for a web role; and a worker's role, which owns nothing and has a policy of its own."""
    web, worker = role("shop_web"), role("shop_worker")
    execute(f"CREATE ROLE {web}", f"CREATE ROLE {worker}")
    for operation in page["Migration"].operations:
        given = [operation.sql] if isinstance(operation.sql, str) else operation.sql
        execute(*(statement.replace("shop_web", web) for statement in given))
    for table in TABLES:
        execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON workflow_{table} TO {worker}")
    for table in page["POLICIES"]:
        execute(f"CREATE POLICY workers ON {table} TO {worker} USING (true)")
    with registry.isolated():
        workflows.register(ORDER)
        yield


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    execute(f"SET LOCAL ROLE {role(name)}")
    try:
        yield
    finally:
        execute("RESET ROLE")


@pytest.fixture
def tenant(page: dict[str, Any]) -> As:
    """`with tenant("acme"):` what a web process does for it."""

    @contextmanager
    def act(name: str) -> Iterator[None]:
        try:
            with page["as_tenant"](name), acting_as("shop_web"):
                yield
        finally:  # the page's transaction is a part of the test's here, which goes on
            execute("SET LOCAL app.tenant = ''")

    return act


def work() -> None:
    with acting_as("shop_worker"):
        drain()


def order(tenant: str, number: int = 1, **more: Any) -> RunHandle:
    return workflows.dispatch(
        "tenants-order", {"order": f"{tenant}:{number}"}, context={"tenant": tenant}, **more
    )


def refused(call: Callable[[], Any], error: type[Exception] = ProgrammingError, match: str = REFUSED) -> None:
    with pytest.raises(error, match=match), transaction.atomic():
        call()


def test_a_tenants_runs_go_their_way_in_a_worker_of_another_role(tenant: As) -> None:
    with tenant("acme"):
        handle = order("acme")
        many = workflows.dispatch_many("tenants-order", [{}, {}], context={"tenant": "acme"}, by="ada")
        workflows.cancel(many[0].run_id, "changed their mind")
    work()
    with tenant("acme"):
        assert handle.status().run.status == "waiting"
        assert many[0].status().run.status == "cancelled"
        assert workflows.publish("paid", {"cents": 5}, correlation="acme:1", event_id="acme:e")
        assert not workflows.publish("paid", {"cents": 5}, correlation="acme:1", event_id="acme:e")
    work()
    with tenant("acme"):
        assert handle.status().run.status == "completed"
        assert many[1].status().run.status == "failed"  # nothing to correlate by
        workflows.retry(many[1].run_id)
        assert RunEvent.objects.filter(run_id=handle.run_id).exists()
    advance(1)
    with tenant("acme"):
        assert workflows.prune(0) == 2
        assert [run.id for run in workflows.list().items] == [many[1].run_id]


def test_the_runs_of_another_tenant_do_not_exist(tenant: As) -> None:
    with tenant("acme"):
        handle = order("acme")
        workflows.publish("other", correlation="acme:2")
    work()
    with tenant("globex"):
        own = order("globex")
        calls: list[Callable[..., Any]] = [
            workflows.status,
            workflows.cancel,
            workflows.retry,
            workflows.resume,
        ]
        for call in calls:
            refused(lambda call=call: call(handle.run_id), RunNotFound, "no run")  # type: ignore[misc]
        assert [run.id for run in workflows.list().items] == [own.run_id]
        for model in (Node, Job, Step, RunEvent):
            assert not model.objects.filter(run_id=handle.run_id).exists()
        assert not Event.objects.exists()
        assert Run.objects.filter(pk=handle.run_id).update(priority=5) == 0
        assert Node.objects.filter(run_id=handle.run_id).delete()[0] == 0
        assert workflows.prune(0) == 0
    assert handle.status().run.status == "waiting"
    assert Step.objects.filter(run_id=handle.run_id).exists()


def test_what_a_tenant_may_not_write_is_refused_and_nothing_is_created(tenant: As) -> None:
    with tenant("globex"):
        refused(lambda: order("acme"))
        refused(lambda: workflows.dispatch("tenants-order", {}))
        refused(lambda: workflows.publish("paid", correlation="acme:1"))
        refused(lambda: workflows.publish("paid"))
        refused(lambda: Run.objects.filter(pk=order("globex").run_id).update(context={"tenant": "acme"}))
        refused(lambda: workflows.pause_queue("default"), match="permission denied")
        refused(Worker.objects.count, match="permission denied")
    assert (Run.objects.count(), Job.objects.count(), Event.objects.count()) == (0, 0, 0)


def test_without_a_tenant_there_is_nothing(tenant: As) -> None:
    with tenant("acme"):
        order("acme")
    with acting_as("shop_web"):
        refused(lambda: order(""))
        refused(lambda: workflows.publish("paid", correlation=":1"))
        assert workflows.list().items == []
        assert not Node.objects.exists()
    assert Run.objects.count() == 1


def test_keys_and_event_ids_are_one_space_for_all(tenant: As) -> None:
    with tenant("acme"):
        order("acme", idempotency_key="k")
        assert not order("acme", idempotency_key="k").created
        workflows.publish("paid", correlation="acme:9", event_id="e")
    with tenant("globex"):
        refused(lambda: order("globex", idempotency_key="k"), RunConflict, "idempotency key")
        assert not workflows.publish("paid", correlation="globex:1", event_id="e")
    assert (Run.objects.count(), Event.objects.count()) == (1, 1)


def test_a_worker_that_is_bound_by_the_policies_finds_no_job(page: dict[str, Any], tenant: As) -> None:
    with tenant("acme"):
        handle = order("acme")
    for table in page["POLICIES"]:
        execute(f"DROP POLICY workers ON {table}")
    work()
    assert handle.status().run.status == "pending"


def test_a_row_of_another_tenant_cannot_be_locked(tenant: As) -> None:
    with tenant("acme"):
        handle = order("acme")
    with tenant("globex"):
        assert not Run.objects.select_for_update().filter(pk=handle.run_id)


def test_a_connection_that_serves_one_tenant_after_another_mixes_nothing_up(tenant: As) -> None:
    """Also once `dispatch` is a prepared statement there, and the plans of its function are kept."""
    for number in range(1, 9):
        for name in ("acme", "globex"):
            with tenant(name):
                order(name, number)
                refused(lambda name=name: order(f"not-{name}"))  # type: ignore[misc]
                assert {run.state["order"] for run in workflows.list().items} == {
                    f"{name}:{n}" for n in range(1, number + 1)
                }


def test_a_batch_needs_policies_that_do_not_look_for_its_runs(page: dict[str, Any], tenant: As) -> None:
    """Why the page has `WITH CHECK (true)`."""
    execute(f"ALTER POLICY tenant ON workflow_node WITH CHECK ({page['ITS_RUN']})")
    with tenant("acme"):
        assert order("acme").created
        refused(lambda: order("acme", by="ada"))
        refused(lambda: workflows.dispatch_many("tenants-order", [{}], context={"tenant": "acme"}))


def test_a_tenants_list_is_read_along_its_index(page: dict[str, Any], tenant: As) -> None:
    Run.objects.bulk_create(
        Run(id=uuid.uuid4(), workflow="w", version=1, fingerprint="f", context={"tenant": f"t{number % 50}"})
        for number in range(2000)
    )
    execute("ANALYZE workflow_run")
    with tenant("t7"), connection.cursor() as cursor:
        cursor.execute("EXPLAIN SELECT id FROM workflow_run ORDER BY id DESC LIMIT 50")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "shop_run_tenant" in plan, plan


def test_the_migration_can_be_taken_back(page: dict[str, Any]) -> None:
    for operation in reversed(page["Migration"].operations):
        given = operation.reverse_sql
        statements = [given] if isinstance(given, str) else given
        for statement in statements:
            if statement.startswith("ALTER"):
                execute(f"DROP POLICY workers ON {statement.split()[2]}")
            execute(statement.replace("shop_web", role("shop_web")))
    execute(f"DROP ROLE {role('shop_web')}")


def test_the_tenant_ends_with_the_transaction(page: dict[str, Any]) -> None:
    def asked() -> tuple[str, str]:
        look = "SELECT coalesce(current_setting('app.tenant', true), '')"
        with connection.cursor() as cursor:
            with page["as_tenant"]("acme"):
                inside = cursor.execute(look).fetchone()
            return inside[0], cursor.execute(look).fetchone()[0]

    with elsewhere() as start:  # the transaction of this test goes on
        assert start(asked).result(30) == ("acme", "")
