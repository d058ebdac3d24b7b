"""Migrations go forth and back, and workers of a release go on while the next one's are applied."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from tests.support import invariants
from tests.support.cluster import Cluster
from tests.support.crash import finished, status
from tests.support.workers import Launcher, eventually
from workflow import ids, states, workflows
from workflow.models import Run
from workflow.registry import registry
from workflow.results import RunHandle
from workflow.store.commands import tree_rows

pytestmark = pytest.mark.timeout(240)

SCHEMA = """
SELECT 'column', c.relname || '.' || a.attname,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'not null' END,
                 pg_get_expr(d.adbin, d.adrelid))
FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE c.relname LIKE 'workflow%' AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'storage', c.relname, array_to_string(c.reloptions, ' ') FROM pg_class AS c
WHERE c.relname LIKE 'workflow%' AND c.relkind IN ('r', 'i')
UNION ALL
SELECT 'index', indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'workflow%'
UNION ALL
SELECT 'constraint', conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid IN (SELECT oid FROM pg_class WHERE relname LIKE 'workflow%')
UNION ALL
SELECT 'trigger', tgname, pg_get_triggerdef(oid) FROM pg_trigger
WHERE NOT tgisinternal AND tgrelid IN (SELECT oid FROM pg_class WHERE relname LIKE 'workflow%')
UNION ALL
SELECT 'function', proname, pg_get_functiondef(oid) FROM pg_proc
WHERE pronamespace = 'public'::regnamespace
  AND (proname LIKE 'workflow%' OR oid IN (SELECT tgfoid FROM pg_trigger WHERE tgrelid IN (
       SELECT oid FROM pg_class WHERE relname LIKE 'workflow%')))
ORDER BY 1, 2, 3
"""
FIRST_IN_USE = "0005"
"""The migration before which no worker of this code can go on: a table is missing that it reads."""


def schema() -> list[tuple[str, str, str]]:
    """All of the engine's in the database, in words."""
    with connection.cursor() as cursor:
        cursor.execute(SCHEMA)
        found: list[tuple[str, str, str]] = cursor.fetchall()
    return found


def names() -> list[str]:
    """Ours, in their order."""
    return sorted(name for app, name in MigrationLoader(connection).disk_migrations if app == "workflow")


def migrate(name: str) -> None:
    call_command("migrate", "workflow", name, verbosity=0)


def dispatch_as_before(name: str) -> RunHandle:
    """As processes of a release before do it, which are there until the next one is rolled out."""
    workflow, run_id = registry.get(name), ids.new_run_id()
    rows = tree_rows(workflow)
    head = (
        run_id,
        workflow.name,
        workflow.version,
        workflow.tree.fingerprint,
        "default",
        0,
        "{}",
        "{}",
        None,
        None,
    )
    nodes = (rows.suffixes, rows.paths, rows.units, rows.kinds)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT workflow_dispatch_1({', '.join(['%s'] * 16)})", (*head, *nodes, ids.new_id(), 0.0)
        )
    return RunHandle(run_id, True, workflows)


@pytest.fixture
def latest(server: Cluster) -> Iterator[None]:
    """Whatever a test leaves behind, the next one starts from the latest migration."""
    yield
    migrate(names()[-1])


def test_each_migration_goes_back_to_what_was_before_it(latest: None) -> None:
    migrate("zero")
    assert schema() == []
    seen = {}
    for name in names():
        migrate(name)
        seen[name] = schema()
    assert len({tuple(each) for each in seen.values()}) == len(seen), "one of them changes nothing"
    for name in reversed(names()):
        migrate(name)
        assert schema() == seen[name]
    migrate("zero")
    assert schema() == []


def test_the_migrations_make_what_the_models_say(server: Cluster) -> None:
    call_command("makemigrations", "workflow", check=True, dry_run=True, verbosity=0)


def test_workers_go_on_while_migrations_are_applied_and_taken_back(
    latest: None, workers_there: Launcher
) -> None:
    worker = workers_there.start()
    handles = []
    for _ in range(3):
        for name in (FIRST_IN_USE, names()[-1]):
            handles += [dispatch_as_before("pair") for _ in range(30)]
            eventually(lambda: Run.objects.filter(status=states.RUNNING).exists())
            migrate(name)  # in the middle of their boundaries
    finished(*handles)
    assert {status(handle) for handle in handles} == {states.COMPLETED}
    assert "Traceback" not in worker.said()
    invariants.check(exact=True)
    assert worker.stop() == 0
