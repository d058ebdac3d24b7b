"""Boundaries of many runs settle in one transaction; one that the database cannot take fails alone."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async

from tests.support.definitions import PLAIN
from workflow import workflows
from workflow.models import Job, RunEvent
from workflow.plan import Boundary, HistoryEntry
from workflow.registry import registry
from workflow.store import claims
from workflow.store.claims import Claim
from workflow.store.committer import TRIES, Committer
from workflow.store.drive import drive
from workflow.store.pipeline import Rows, Statement
from workflow.store.ports import AsyncPort, DjangoPort, connection_parameters
from workflow.store.settle import Rejected, Settlement, settle_now

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with registry.isolated():
        workflows.register(PLAIN)
        yield


def entry(name: str, node: str | None = None, data: str | None = None) -> HistoryEntry:
    return HistoryEntry(name, node, data)


def settle_all(
    claimed: list[Claim], entries: list[HistoryEntry], failures: Sequence[int] = ()
) -> list[Settlement | BaseException]:
    """Settles one history entry for each claim, all of them at once, on a worker's own connection. `failures`: how
    often each has failed already."""
    parameters = connection_parameters()
    boundaries = [
        Settlement(claim.lease(), Boundary(history=[one]), failures=failed)
        for claim, one, failed in zip(claimed, entries, failures or [0] * len(claimed), strict=True)
    ]

    async def work() -> list[Settlement | BaseException]:
        port = AsyncPort(lambda: parameters, "test")
        committer = Committer(port)
        try:
            return await asyncio.gather(*map(committer.settle, boundaries), return_exceptions=True)
        finally:
            await port.close()

    return asyncio.run(work())


@pytest.mark.parametrize(
    "bad",
    [
        entry("log", "half a \ud83d pair"),
        entry("log", "a NUL \0 character"),
        entry("log", None, '{"a NUL": "\\u0000"}'),
        entry("log", None, "no JSON"),
    ],
    ids=["surrogate", "nul", "nul in JSON", "no JSON"],
)
def test_a_boundary_that_cannot_be_stored_fails_alone(bad: HistoryEntry) -> None:
    workflows.dispatch_many("plain", [{} for _ in range(5)])
    claimed, _ = drive(claims.claim(DjangoPort(), str(uuid.uuid4()), 5, None))
    entries = [entry("log", data=f'{{"message": "{index}"}}') for index in range(4)]
    entries.insert(2, bad)
    results = settle_all(claimed, entries)
    assert [isinstance(result, Rejected) for result in results] == [False, False, True, False, False]
    assert all(isinstance(result, Settlement) and result.seq for result in results[:2] + results[3:])
    assert RunEvent.objects.filter(name="log").count() == 4


def test_what_a_run_settles_does_not_overtake_what_it_has_settled_before() -> None:
    """Also where that has failed once and goes alone: a wait must be written before the end of its handler."""
    workflows.dispatch_many("plain", [{}, {}])
    (mine, other), _ = drive(claims.claim(DjangoPort(), str(uuid.uuid4()), 2, None))
    entries = [entry("log", data=f'{{"message": "{message}"}}') for message in ("another", "first", "second")]
    settle_all([other, mine, mine], entries, failures=[0, 1, 0])
    found = (
        RunEvent.objects.filter(run_id=mine.run_id).order_by("seq").values_list("data__message", flat=True)
    )
    assert list(found) == ["first", "second"]


def units_at_work(claimed: list[Claim], boundaries: int) -> tuple[list[int], int]:
    """Each claim settles so many boundaries one after another; how many each got through, and the commits."""
    parameters = connection_parameters()

    async def unit(committer: Committer, claim: Claim) -> int:
        done = 0
        for number in range(boundaries):
            boundary = Boundary(history=[entry("log", data=f'{{"message": "{number}"}}')])
            done += (await committer.settle(Settlement(claim.lease(), boundary))).seq is not None
        return done

    async def work() -> tuple[list[int], int]:
        port = AsyncPort(lambda: parameters, "test")
        committer = Committer(port)
        try:
            done = await asyncio.gather(*(unit(committer, claim) for claim in claimed))
            assert committer.boundaries == sum(done)
            return done, committer.commits
        finally:
            await port.close()

    return asyncio.run(work())


@pytest.mark.parametrize("count", [1, Committer.LARGE - 1, Committer.LARGE, 41])
def test_every_unit_is_told_also_when_nobody_comes_back(count: int) -> None:
    workflows.dispatch_many("plain", [{} for _ in range(count)])
    claimed, _ = drive(claims.claim(DjangoPort(), str(uuid.uuid4()), count, None))
    assert units_at_work(claimed, 1) == ([1] * count, 1)


def test_while_one_half_of_the_units_is_committed_the_other_half_is_at_work() -> None:
    workflows.dispatch_many("plain", [{} for _ in range(40)])
    claimed, _ = drive(claims.claim(DjangoPort(), str(uuid.uuid4()), 40, None))
    done, commits = units_at_work(claimed, 4)
    assert done == [4] * 40
    assert commits == 1 + 3 * 2  # the first of all forty, from then on by halves


def test_a_few_units_are_not_split() -> None:
    workflows.dispatch_many("plain", [{} for _ in range(10)])
    claimed, _ = drive(claims.claim(DjangoPort(), str(uuid.uuid4()), 10, None))
    assert units_at_work(claimed, 4) == ([4] * 10, 4)


def staggered(counts: list[int], gathering: float) -> int:
    """Units that settle so many boundaries each and come back at different times; how many commits it took."""
    parameters = connection_parameters()
    workflows.dispatch_many("plain", [{} for _ in counts])
    claimed, _ = drive(claims.claim(DjangoPort(), str(uuid.uuid4()), len(counts), None))

    async def unit(committer: Committer, claim: Claim, place: int) -> None:
        for _ in range(counts[place]):
            settled = await committer.settle(Settlement(claim.lease(), Boundary(history=[entry("log")])))
            assert settled.seq is not None
            for _ in range(place * 3):  # turns of the loop, not time: the others are always a little later
                await asyncio.sleep(0)

    async def work() -> int:
        port = AsyncPort(lambda: parameters, "test")
        committer = Committer(port, gathering=gathering)
        try:
            await asyncio.gather(*(unit(committer, c, place) for place, c in enumerate(claimed)))
            return committer.commits
        finally:
            await port.close()

    return asyncio.run(work())


def test_a_few_units_that_come_back_one_by_one_are_gathered_for_the_next_commit() -> None:
    assert staggered([5] * Committer.SIBLINGS, gathering=60) == 5


def test_fewer_units_wait_for_no_other() -> None:
    assert staggered([5] * (Committer.SIBLINGS - 1), gathering=60) > 5


def test_gathering_ends_when_the_others_do_not_come_back() -> None:
    assert staggered([4, *[1] * (Committer.SIBLINGS - 1)], gathering=0.001) == 4


def settle_on(port: Failing, claimed: list[Claim], count: int = 1) -> list[Settlement | BaseException]:
    """Settles so many entries for each claim, one after the other; the last answer of each."""

    async def one(committer: Committer, claim: Claim) -> Settlement:
        for _ in range(count):
            settled = await committer.settle(Settlement(claim.lease(), Boundary(history=[entry("log")])))
        return settled

    async def work() -> list[Settlement | BaseException]:
        committer = Committer(port, first_pause=0.01)
        try:
            return await asyncio.gather(*(one(committer, c) for c in claimed), return_exceptions=True)
        finally:
            await port.close()

    return asyncio.run(work())


def claimed_runs(count: int) -> list[Claim]:
    workflows.dispatch_many("plain", [{} for _ in range(count)])
    return drive(claims.claim(DjangoPort(), str(uuid.uuid4()), count, None))[0]


class Failing:
    """A connection on which what settles this run fails, so many times."""

    def __init__(self, error: Exception, run_id: str | None, times: float = float("inf")) -> None:
        parameters = connection_parameters()
        self._port = AsyncPort(lambda: parameters, "test")
        self._error = error
        self._run_id = run_id
        self.left = times

    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        if self.left > 0 and len(statements) > 2 and str(self._run_id) in str(statements[0][1]):
            self.left -= 1
            raise self._error
        return await self._port.run(statements)

    async def close(self) -> None:
        await self._port.close()


PASSING = [
    psycopg.errors.QueryCanceled("canceling statement due to statement timeout"),
    psycopg.errors.OutOfMemory("out of memory"),
    psycopg.errors.ConfigurationLimitExceeded("temporary file size exceeds temp_file_limit"),
    psycopg.errors.IoError("could not read block 7"),
    psycopg.errors.FeatureNotSupported("cached plan must not change result type"),
    psycopg.errors.UndefinedTable("relation does not exist"),
    psycopg.errors.InternalError_("something odd"),
]


@pytest.mark.parametrize("error", PASSING, ids=[type(error).__name__ for error in PASSING])
def test_a_boundary_that_fails_for_no_reason_of_its_own_is_tried_again(error: Exception) -> None:
    claimed = claimed_runs(3)
    results = settle_on(Failing(error, claimed[1].run_id, TRIES), claimed)
    assert all(isinstance(result, Settlement) and result.seq for result in results), results
    assert RunEvent.objects.filter(name="log").count() == 3


@pytest.mark.parametrize("error", PASSING, ids=[type(error).__name__ for error in PASSING])
def test_one_that_fails_each_time_is_no_refusal_and_holds_up_no_other(error: Exception) -> None:
    claimed = claimed_runs(3)
    results = settle_on(Failing(error, claimed[1].run_id), claimed, 3)
    assert results.pop(1) is error
    assert all(isinstance(result, Settlement) and result.seq for result in results), results
    assert RunEvent.objects.filter(name="log").count() == 6


def test_an_error_of_the_engines_own_is_given_to_the_boundary_that_it_comes_from() -> None:
    claimed = claimed_runs(3)
    error = KeyError("a bug")
    results = settle_on(Failing(error, claimed[1].run_id), claimed)
    assert results.pop(1) is error
    assert all(isinstance(result, Settlement) and result.seq for result in results), results
    assert RunEvent.objects.filter(name="log").count() == 2


@pytest.mark.parametrize("code", ["P0001", "23514", "22023", "54000", "ZZ123"])
def test_what_a_trigger_raises_is_a_refusal(code: str) -> None:
    claimed = claimed_runs(2)
    error = Own() if code == Own.sqlstate else psycopg.errors.lookup(code)("the project says no")
    results = settle_on(Failing(error, claimed[1].run_id), claimed)
    assert [isinstance(result, Rejected) for result in results] == [False, True]


class Own(psycopg.DatabaseError):
    """As the driver makes it of an error whose code is not PostgreSQL's."""

    sqlstate = "ZZ123"


@pytest.mark.parametrize("direct", [True, False])
def test_a_statement_timeout_of_the_project_does_not_count_for_the_engine(
    direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_direct(_: Any) -> bool:
        return direct

    monkeypatch.setattr("workflow.store.ports.ais_direct", is_direct)
    parameters = {**connection_parameters(), "options": "-c statement_timeout=50"}

    async def work() -> list[Rows]:
        port = AsyncPort(lambda: parameters, "test")
        try:
            return await port.run([("SELECT pg_sleep(0.2)", ()), ("SHOW statement_timeout", ())])
        finally:
            await port.close()

    assert asyncio.run(work())[1] == [("0",)]


class Unanswered:
    """A connection on which the first commit is not answered."""

    def __init__(self, port: AsyncPort) -> None:
        self.port = port
        self.lost = asyncio.Event()

    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        rows = await self.port.run(statements)
        if not self.lost.is_set():
            self.lost.set()
            raise psycopg.OperationalError("the answer to COMMIT is lost")
        return rows


def test_an_unanswered_boundary_counts_once_when_an_atomic_action_beside_it_settles_meanwhile() -> None:
    """The atomic action's checkpoint stamps the run too, on another connection, before anybody asks."""
    handle = workflows.dispatch("plain", {})
    (claim,), _ = drive(claims.claim(DjangoPort(), str(uuid.uuid4()), 1, None))
    parameters = connection_parameters()

    def boundary(name: str) -> Settlement:
        return Settlement(claim.lease(), Boundary(history=[entry("log", data=f'"{name}"')]))

    async def work() -> Settlement:
        port = AsyncPort(lambda: parameters, "test")
        unanswered = Unanswered(port)
        committer = Committer(unanswered, first_pause=0.5)
        try:
            noted = asyncio.create_task(committer.settle(boundary("noted")))
            await unanswered.lost.wait()
            await sync_to_async(settle_now)(DjangoPort(), boundary("atomic"), beside=True)
            return await noted
        finally:
            await port.close()

    assert asyncio.run(work()).seq is not None
    history = RunEvent.objects.filter(run_id=handle.run_id).order_by("seq")
    assert [found.data for found in history] == ["noted", "atomic"]


def test_what_was_claimed_without_knowing_it_and_is_locked_is_given_back_later() -> None:
    handles = workflows.dispatch_many("plain", [{}, {}])
    worker = str(uuid.uuid4())
    drive(claims.claim(DjangoPort(), worker, 2, None))
    with psycopg.connect(**connection_parameters()) as other:
        other.execute("DELETE FROM workflow_job WHERE run_id = %s", (handles[0].run_id,))
        assert drive(claims.release_stranded(DjangoPort(), worker, [])) == (1, 1)
        other.rollback()
    assert drive(claims.release_stranded(DjangoPort(), worker, [])) == (1, 0)
    assert drive(claims.release_stranded(DjangoPort(), worker, [])) == (0, 0)
    assert list(Job.objects.values_list("lease_token", "attempt")) == [(None, 0), (None, 0)]
