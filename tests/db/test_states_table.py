"""The triggers hold the tables of states: each edge that they list is taken, each that they do not is refused."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Mapping

import pytest
from django.db import connection, transaction
from django.db.utils import IntegrityError

from tests.support import rows
from tests.support.definitions import PLAIN
from workflow import states, workflows

pytestmark = pytest.mark.django_db


def change(table: str, row: uuid.UUID, source: str, target: str) -> None:
    """The row has `source`, however it came there, and is given `target`; a node that is over, as a retry would."""
    over = states.RUN_TERMINAL if table == "workflow_run" else set(states.NODE_EDGES) - set(states.NODE_LIVE)
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('workflow.retrying', pg_current_xact_id()::text, true)")
        cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        for status in (source, target):
            finished = "now()" if status in over else "NULL"
            cursor.execute(
                f"UPDATE {table} SET status = %s, finished_at = {finished} WHERE id = %s", (status, row)
            )
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


@pytest.mark.parametrize(
    ("table", "edges"), [("workflow_run", states.RUN_EDGES), ("workflow_node", states.NODE_EDGES)]
)
def test_the_database_takes_the_edges_of_the_table_of_states_and_no_other(
    table: str, edges: Mapping[str, Collection[str]]
) -> None:
    handle = workflows.dispatch(PLAIN)
    row = handle.run_id if table == "workflow_run" else rows.node(handle.run_id, "plain.s.s#run").id
    for source, target in itertools.permutations(edges, 2):
        taken: bool | None = True
        try:
            with transaction.atomic():
                change(table, row, source, target)
                transaction.set_rollback(True)
        except IntegrityError as refused:
            taken = False if "illegal status change" in str(refused) else None
        assert taken == (target in edges[source]), (source, target)
