"""Runs that are begun by their claim: what that writes, and which it leaves alone."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from typing import Any, cast

import psycopg
import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from workflow import Action, Stage, Workflow, parallel, workflows
from workflow.definitions import Tree
from workflow.executor.jobs import give_back
from workflow.models import Job, Node, Run, RunEvent
from workflow.plan import Unit
from workflow.registry import registry
from workflow.store import claims, openings
from workflow.store.drive import drive
from workflow.store.openings import Openings
from workflow.store.ports import AsyncPort, DjangoPort, connection_parameters
from workflow.store.settle import Settlement, settle_now

pytestmark = pytest.mark.django_db(transaction=True)


def nothing(state: Any) -> None:
    """A handler."""


SEVERAL = Workflow(
    "several",
    stages=[Stage("s", actions=[parallel(Action("a", nothing), Action("b", nothing)), Action("c", nothing)])],
)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    registry.register(SEVERAL)
    return


def take(limit: int = 10, made: Openings | None = None) -> list[claims.Claim]:
    made = made or Openings([SEVERAL])
    return drive(claims.claim(DjangoPort(), str(uuid.uuid4()), limit, None, openings=made))[0]


def rows(run_id: uuid.UUID) -> list[Any]:
    """All that is kept of a run, without what differs from run to run."""
    run = Run.objects.values("status", "seq", "state", "error", "finished_at").get(pk=run_id)
    times = Run.objects.values_list("started_at", "updated_at").get(pk=run_id)
    nodes = Node.objects.filter(run_id=run_id).order_by("path")
    kept = nodes.values_list(
        "path", "status", "attempt", "output", "error", "due_at", "progress", "finished_at", "completed_seq"
    )
    begun = [at is None or at == times[0] for at in nodes.values_list("started_at", flat=True)]
    history = RunEvent.objects.filter(run_id=run_id).order_by("seq")
    told = list(history.values_list("seq", "name", "node", "data"))
    assert {*history.values_list("at", flat=True)} <= {times[0]}
    return [run, times[0] == times[1], list(kept), begun, told]


def test_a_run_that_its_claim_begins_is_as_one_that_a_boundary_begins() -> None:
    by_claim = workflows.dispatch("several", {"n": 1})
    (claim,) = take()
    by_boundary = workflows.dispatch("several", {"n": 1})
    (other,) = drive(claims.claim(DjangoPort(), str(uuid.uuid4()), 10, None))[0]
    assert (claim.opened is None, other.opened) == (False, None)
    tree: Tree = SEVERAL.tree
    (snapshot,) = drive(claims.snapshots(DjangoPort(), [(other, tree)]))
    assert not isinstance(snapshot, claims.Misfit)
    with transaction.atomic():
        assert settle_now(DjangoPort(), Settlement(other.lease(), Unit(tree, 1, snapshot).begin().boundary))
    assert rows(by_claim.run_id) == rows(by_boundary.run_id)
    assert Run.objects.get(pk=by_claim.run_id).boundary == uuid.UUID(claim.token)


def test_the_claim_is_told_of_the_run_as_nobody_had_begun_it() -> None:
    handle = workflows.dispatch("several", {"n": 1})
    made = Openings([SEVERAL])
    (claim,) = take(made=made)
    assert claim.run is not None
    assert claim.run.status == "pending"
    assert claim.opened == (3, Run.objects.get(pk=handle.run_id).started_at)
    (settled,) = claims.opened([claim], made)
    assert (settled.seq, settled.lease.token, len(settled.boundary.history)) == (3, claim.token, 3)


def test_many_are_begun_at_once() -> None:
    handles = workflows.dispatch_many("several", [{"n": n} for n in range(50)])
    claimed = take(limit=30)
    assert sum(claim.opened is not None for claim in claimed) == 30
    begun = {claim.run_id for claim in claimed}
    for handle in handles:
        wanted = ("running", 3, 4) if str(handle.run_id) in begun else ("pending", 0, 0)
        run = Run.objects.get(pk=handle.run_id)
        running = Node.objects.filter(run=run, status="running").count()
        assert (run.status, run.seq, running) == wanted
    assert RunEvent.objects.count() == 30 * 3


def changed() -> Workflow:
    return Workflow("several", stages=[Stage("s", actions=[Action("other", nothing)])])


def numbered() -> Workflow:
    return Workflow("several", version=2, stages=SEVERAL.pipelines[0].items)


@pytest.mark.parametrize("definition", [changed, numbered])
def test_a_run_of_another_definition_is_left_to_its_unit(definition: Any) -> None:
    handle = workflows.dispatch("several", {})
    (claim,) = take(made=Openings([definition()]))
    assert claim.opened is None
    assert Run.objects.get(pk=handle.run_id).status == "pending"
    assert not RunEvent.objects.exists()


@pytest.mark.parametrize("before", [{"attempt": 1}, {"last_error": "LEASE_HEARTBEAT_LOST: gone"}])
def test_a_job_with_a_past_is_left_to_its_unit(before: dict[str, Any]) -> None:
    workflows.dispatch("several", {})
    Job.objects.update(**before)
    (claim,) = take()
    assert claim.opened is None
    assert Run.objects.get().status == "pending"


def test_a_run_that_somebody_has_locked_is_claimed_without_waiting_and_left_to_its_unit() -> None:
    locked, free = workflows.dispatch("several", {}), workflows.dispatch("several", {})
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Run.objects.select_for_update().get(pk=locked.run_id)
            held.set()
            over.wait(30)
        connection.close()

    holding = threading.Thread(target=hold)
    holding.start()
    try:
        assert held.wait(30)
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = 1")
        opened = {claim.run_id: claim.opened is not None for claim in take()}
    finally:
        over.set()
        holding.join()
        connection.close()
    assert opened == {str(locked.run_id): False, str(free.run_id): True}


def test_a_node_that_is_not_pending_any_more_refuses_the_claim_as_a_whole() -> None:
    workflows.dispatch("several", {})
    other = workflows.dispatch("several", {})
    Node.objects.filter(run_id=other.run_id, path="several.s.a").update(status="running")
    parameters = connection_parameters()

    async def work() -> None:
        port = AsyncPort(lambda: parameters, "test")
        try:
            with pytest.raises(psycopg.errors.DivisionByZero):
                await claims.claim(port, str(uuid.uuid4()), 10, None, openings=Openings([SEVERAL]))
        finally:
            await port.close()

    asyncio.run(work())
    assert not Job.objects.filter(lease_token__isnull=False).exists()
    assert not RunEvent.objects.exists()


class Runtime:
    """What giving a job back needs of one."""

    port = DjangoPort()


def given_back(error: Exception, *, started: bool = False, made: Openings | None = None) -> str:
    """What the job says after a claim that ended so."""
    Job.objects.update(available_at=Now())
    (claim,) = take(made=made)
    claim.started = started
    drive(give_back(claim, claim.lease(), error, cast(Any, Runtime)))
    said: str = Job.objects.get().last_error
    return said


def test_what_has_not_begun_says_so_until_user_code_may_have_been_called() -> None:
    workflows.dispatch("several", {})
    said = [
        given_back(psycopg.OperationalError("gone")),
        given_back(ValueError("odd")),
        given_back(ValueError("odd")),
    ]
    assert said == [
        "UNBEGUN: given back by its worker",
        "UNBEGUN: ENGINE_FAILED 1: ValueError: odd",
        "UNBEGUN: ENGINE_FAILED 2: ValueError: odd",
    ]
    assert given_back(psycopg.OperationalError("gone"), started=True) == ""
    assert given_back(psycopg.OperationalError("gone")) == ""


def test_the_openings_that_go_out_are_those_met_last_as_many_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    definitions = [Workflow(f"w{n}", stages=[Stage("s", actions=[Action("a", nothing)])]) for n in range(4)]
    for definition in definitions:
        registry.register(definition)
    monkeypatch.setattr(openings, "ROOM", 6)  # of three nodes each
    made = Openings(definitions)

    def begun(name: str) -> bool:
        workflows.dispatch(name, {})
        (claim,) = take(made=made)
        claims.opened([claim], made)
        return claim.opened is not None

    assert [begun(f"w{n}") for n in (0, 1, 2, 2, 0, 1)] == [True, True, False, True, False, False]
    assert [begun(f"w{n}") for n in (0, 1, 2)] == [True, True, False]


def test_nothing_goes_out_where_no_definition_has_an_opening_or_after_a_refusal() -> None:
    gated = Workflow("gated", stages=[Stage("s", actions=[Action("a", nothing, when=nothing)])])
    assert Openings([gated]).statement("w") is None
    made = Openings([SEVERAL])
    assert made.statement("w") is not None
    made.rest()
    assert made.statement("w") is None
