"""Atomic actions whose handlers do not leave their transaction as they were given it.

Each once as a test's transaction has it around, and once as a worker runs it, where it is the outermost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from tests.support.runs import node, run_through, staged
from workflow import Action, RunConflict, states, workflows
from workflow.models import RunEvent
from workflow.testing import drain


def _leaks_atomic() -> None:
    transaction.atomic().__enter__()


def _leaks_atomic_without_savepoint() -> None:
    transaction.atomic(savepoint=False).__enter__()


def _leaks_two() -> None:
    transaction.atomic().__enter__()
    transaction.atomic().__enter__()


@contextmanager
def left_alone() -> Iterator[None]:
    """Whatever runs inside finds and leaves the test's own blocks as they were."""
    before = (list(connection.savepoint_ids), list(connection.atomic_blocks), connection.needs_rollback)
    yield
    assert (
        list(connection.savepoint_ids),
        list(connection.atomic_blocks),
        connection.needs_rollback,
    ) == before


LEAKS = [_leaks_atomic, _leaks_atomic_without_savepoint, _leaks_two]
AROUND = [
    pytest.param(True, id="in a transaction"),
    pytest.param(False, id="outermost", marks=pytest.mark.django_db(transaction=True)),
]


@pytest.mark.parametrize("inside", AROUND)
@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("leak", LEAKS)
def test_a_block_that_is_left_open_fails_the_attempt_and_undoes_it(
    leak: Callable[[], None], raises: bool, inside: bool
) -> None:
    def write(state: dict[str, Any], ctx: Any) -> dict[str, int]:
        Group.objects.create(name=f"outside-{ctx.attempt}")
        if ctx.attempt == 1:
            leak()
            Group.objects.create(name="inside")
            if raises:
                raise RuntimeError("on top of it")
        return {"attempt": ctx.attempt}

    assert connection.in_atomic_block is inside
    definition = staged(Action("write", write, atomic=True, backoff=0), Action("next", lambda state: None))
    with left_alone():
        handle = workflows.dispatch(definition, {})
        drain(handle.run_id)
    status = handle.status()
    assert (status.run.status, status.run.state) == (states.COMPLETED, {"attempt": 2})
    assert list(Group.objects.values_list("name", flat=True)) == ["outside-2"]
    (error,) = [entry["error"] for entry in _retries(status.run.id)]
    expected = "on top of it" if raises else "the handler left a transaction.atomic() block open"
    assert error["message"] == expected


@pytest.mark.parametrize("inside", AROUND)
@pytest.mark.parametrize("leak", LEAKS)
def test_so_it_does_for_a_compensation(leak: Callable[[], None], inside: bool) -> None:
    def make(state: dict[str, Any]) -> None:
        Group.objects.create(name="made")

    def unmake(state: dict[str, Any], ctx: Any) -> None:
        if ctx.attempt == 1:
            leak()
        Group.objects.create(name=f"unmade-{ctx.attempt}")

    def fail(state: dict[str, Any]) -> None:
        raise RuntimeError("told to")

    make_it = Action("make", make, compensate=unmake, atomic=True, backoff=0)
    with left_alone():
        status = run_through(staged(make_it, Action("fail", fail, attempts=1)))
    assert connection.in_atomic_block is inside
    assert (status.run.status, node(status, "w.s.make").status) == (states.COMPENSATED,) * 2
    assert set(Group.objects.values_list("name", flat=True)) == {"made", "unmade-2"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["ROLLBACK", "COMMIT", "too many"])
def test_a_handler_that_ends_its_transaction_fails(how: str) -> None:
    def write(state: dict[str, Any]) -> None:
        Group.objects.create(name="written")
        if how == "too many":
            connection.atomic_blocks[-1].__exit__(None, None, None)
            return
        with connection.cursor() as cursor:
            cursor.execute(how)

    status = run_through(staged(Action("write", write, atomic=True, attempts=1)))
    assert status.run.status == states.COMPENSATED
    assert status.run.error is not None
    assert "the handler ended the transaction itself" in status.run.error["message"]
    assert Group.objects.exists() is (how != "ROLLBACK")


@pytest.mark.parametrize("inside", AROUND)
def test_a_plain_handler_leaves_no_block_open_in_the_transaction_of_a_test(inside: bool) -> None:
    def leak(state: dict[str, Any]) -> None:
        Group.objects.create(name="before")
        _leaks_atomic()
        Group.objects.create(name="inside")

    with left_alone():
        status = run_through(staged(Action("leak", leak), Action("next", lambda state: None)))
    assert status.run.status == states.COMPLETED
    assert list(Group.objects.values_list("name", flat=True)) == ["before"]
    assert connection.in_atomic_block is inside


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("back", [False, True], ids=["action", "compensation"])
def test_what_an_on_commit_hook_raises_is_told_and_changes_nothing(
    back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def hook() -> None:
        calls.append("hook")
        raise ZeroDivisionError("in the hook")

    def write(state: dict[str, Any]) -> None:
        Group.objects.create(name="written")
        transaction.on_commit(hook)

    def fail(state: dict[str, Any]) -> None:
        raise RuntimeError("told to")

    act = Action("a", (lambda state: None) if back else write, compensate=write, atomic=True)
    with caplog.at_level(logging.ERROR, "workflow"):
        status = run_through(staged(act, Action("fail", fail, attempts=1)) if back else staged(act))
    assert status.run.status == (states.COMPENSATED if back else states.COMPLETED), status.model_dump_json(
        indent=1
    )
    assert (Group.objects.count(), calls) == (1, ["hook"])
    told = [record for record in caplog.records if record.exc_info is not None]
    assert [record.getMessage() for record in told] == [
        "w.s.a: an on_commit hook raised; the action is committed, and completed"
    ]
    assert told[0].exc_info is not None
    assert told[0].exc_info[0] is ZeroDivisionError
    assert not [record for record in caplog.records if "refused" in record.getMessage()]


@pytest.mark.parametrize("inside", AROUND)
@pytest.mark.parametrize("change", ["cancel", "status"])
def test_a_handler_that_changes_its_own_run_is_told_why_it_fails_and_is_not_called_again(
    change: str, inside: bool
) -> None:
    def write(state: dict[str, Any], ctx: Any) -> None:
        Group.objects.create(name=f"attempt-{ctx.attempt}")
        if change == "cancel":
            workflows.cancel(ctx.run_id)
        else:
            with connection.cursor() as cursor:
                cursor.execute(
                    "UPDATE workflow_node SET status = 'cancelled', finished_at = now() WHERE id = %s",
                    (ctx.node_id,),
                )

    status = run_through(staged(Action("write", write, atomic=True)))
    assert (status.run.status, node(status, "w.s.write").attempt) == (states.COMPENSATED, 1)
    assert status.run.error is not None
    assert "the run was cancelled or changed in the action's own transaction" in status.run.error["message"]
    assert not Group.objects.exists()
    assert connection.in_atomic_block is inside
    with pytest.raises(RunConflict):
        workflows.cancel(status.run.id)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", ["pg_temp", "elsewhere"])
def test_a_checkpoint_finds_its_tables_whatever_search_path_the_handler_has_set(where: str) -> None:
    """`elsewhere` has tables of the same names, as another tenant's schema has."""
    paths: list[str] = []

    def path() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW search_path")
            return str(cursor.fetchone()[0])

    def write(state: dict[str, Any], ctx: Any) -> dict[str, int]:
        Group.objects.create(name=f"attempt-{ctx.attempt}")
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL search_path TO {where}")
        return {"attempt": ctx.attempt}

    def hit(name: str) -> None:
        if name == "atomic.before-commit":
            paths.append(path())

    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA elsewhere")
        for name in ("run", "node", "job", "step", "runevent"):
            cursor.execute(f"CREATE TABLE elsewhere.workflow_{name} (LIKE workflow_{name})")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("workflow.failpoints.hit", hit)
            status = run_through(staged(Action("a", write, atomic=True)))
        assert (status.run.status, status.run.state) == (states.COMPLETED, {"attempt": 1})
        assert list(Group.objects.values_list("name", flat=True)) == ["attempt-1"]
        assert paths == [where]  # for what is deferred to the commit
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA elsewhere CASCADE")


def _retries(run_id: Any) -> list[Any]:
    return list(
        RunEvent.objects.filter(run_id=run_id, name=states.EVENT_ACTION_RETRYING).values_list(
            "data", flat=True
        )
    )
