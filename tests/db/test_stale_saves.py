"""Rows that were read before they changed, and are saved after it, bring nothing back (the database refuses them)."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction

from tests.support import rows
from tests.support.definitions import PLAIN
from workflow import states, workflows
from workflow.models import Node, Run

pytestmark = pytest.mark.django_db


def test_a_run_that_was_read_while_it_ran_is_not_brought_back_by_a_save() -> None:
    """`failed -> running` is an edge, a retry's: not of anybody who saves what he has read before."""
    run_id = workflows.dispatch(PLAIN).run_id
    rows.start(run_id)
    stale = Run.objects.get(pk=run_id)
    rows.fail(run_id, "plain.s.s#run")
    with pytest.raises(IntegrityError, match=r"has changed since it was read"), transaction.atomic():
        stale.save()
    assert rows.statuses(run_id)[""] == states.FAILED
    rows.check_whole(run_id)


def test_nor_does_one_that_runs_on_lose_what_it_has_reached() -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    rows.start(run_id)
    stale = Run.objects.get(pk=run_id)
    rows.note(run_id, "log")
    with pytest.raises(IntegrityError, match=r"has changed since it was read"), transaction.atomic():
        stale.save()
    Run.objects.get(pk=run_id).save()  # as it is now


@pytest.mark.parametrize("path", ["plain.s", "plain.s.s#run"])
@pytest.mark.parametrize("end", ["cancel", "fail", "complete", "skip"])
def test_a_node_that_is_over_is_not_set_back_by_a_save(path: str, end: str) -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    rows.start(run_id)
    stale = rows.node(run_id, path)
    if end == "cancel":
        workflows.cancel(run_id)
    elif end == "fail":
        rows.fail(run_id, "plain.s.s#run")
    elif end == "skip":
        rows.skip(run_id, [path])
    else:
        rows.begin(run_id, path)
        rows.complete(run_id, path)
    ended = rows.node(run_id, path).status
    assert ended not in states.NODE_LIVE
    refused = r"is over, and only a retry sets it back|illegal status"
    with pytest.raises(IntegrityError, match=refused), transaction.atomic():
        stale.save()
    with pytest.raises(IntegrityError), transaction.atomic():
        Node.objects.filter(pk=stale.pk).update(status=states.PENDING, finished_at=None)
    assert rows.node(run_id, path).status == ended


def test_what_a_retry_may_do_ends_with_its_transaction() -> None:
    run_id = workflows.dispatch(PLAIN).run_id
    rows.start(run_id)
    rows.fail(run_id, "plain.s.s#run")
    workflows.retry(run_id)
    assert rows.node(run_id, "plain.s").status == states.PENDING
    with connection.cursor() as cursor:  # another transaction has another number
        cursor.execute("SELECT set_config('workflow.retrying', '1', true)")
    rows.begin(run_id, "plain.s.s#run")
    rows.complete(run_id, "plain.s.s#run")
    with pytest.raises(IntegrityError, match=r"only a retry"), transaction.atomic():
        Node.objects.filter(run_id=run_id, path="plain.s.s#run").update(
            status=states.PENDING, finished_at=None
        )
