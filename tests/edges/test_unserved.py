"""Runs that no live worker serves are named: by the status of such a run, by sweeps, by `check --deploy`."""

from __future__ import annotations

import io
import json
import logging
import socket
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.db.models.functions import Now
from django.test import override_settings

from tests.support.rows import end
from workflow import Stage, WaitFor, Workflow, action, checks, states, sweeps, terminal, workflows
from workflow.management import watch
from workflow.management.output import Output
from workflow.models import Run, Worker
from workflow.registry import registry
from workflow.store import workers as store
from workflow.store.ports import AsyncPort, connection_parameters
from workflow.store.workers import Unserved, unserved, unserved_now, unserved_run
from workflow.testing import drain

TOLD = "no live worker serves unserved-soup v2"


@action
def stir(state: dict[str, Any]) -> None: ...


STAGES = [Stage("stir", actions=[stir])]
SOUP = Workflow("unserved-soup", version=2, compatible_versions=(1,), stages=STAGES)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with registry.isolated():
        workflows.register(SOUP)
        yield


@pytest.fixture(autouse=True)
def _never_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "_next_naming", float("-inf"))


def entry(name: str = SOUP.name, version: int = 2, **more: Any) -> dict[str, Any]:
    return {"name": name, "version": version, "fingerprint": SOUP.tree.fingerprint, **more}


def worker(*serves: dict[str, Any], queues: tuple[str, ...] = (), seen: float = 0, **values: Any) -> Worker:
    """A worker's row, last seen so many seconds ago."""
    return Worker.objects.create(
        hostname="kitchen", pid=17, concurrency=10, threads=4, queues=list(queues), serves=list(serves),
        seen_at=Now() - timedelta(seconds=seen), **values,
    )  # fmt: skip


def soup(queue: str = "default") -> uuid.UUID:
    return workflows.dispatch(SOUP, {}, queue=queue).run_id


def look() -> list[tuple[str, int, str | None, int]]:
    return [(runs.workflow, runs.version, runs.queue, runs.runs) for runs in unserved_now()]


pytestmark = pytest.mark.django_db


# Who serves whom


def test_a_run_is_served_by_a_live_worker_of_its_version() -> None:
    soup()
    assert look() == [("unserved-soup", 2, None, 1)]
    worker(entry())
    assert look() == []


@pytest.mark.parametrize(
    "row",
    [
        {"seen": 301},
        {"stopped_at": Now()},
        {"serves": [entry(version=1)]},
        {"serves": [entry("unserved-stew")]},
        {"serves": [entry(version=3, compatible=[1])]},
        {"serves": []},
    ],
    ids=["silent", "stopped", "older", "another", "newer", "nothing"],
)
def test_no_other_worker_serves_it(row: dict[str, Any]) -> None:
    run_id = soup()
    worker(*row.pop("serves", [entry()]), **row)
    assert [runs.oldest for runs in unserved_now()] == [run_id]
    found = unserved_run(run_id)
    assert found is not None
    assert found.reason == TOLD


def test_a_worker_is_alive_for_as_long_as_its_leases() -> None:
    soup()
    worker(entry(), seen=200)
    assert look() == []
    with override_settings(WORKFLOW={"STALE_LEASE_THRESHOLD": 100, "HEARTBEAT_INTERVAL": 10}):
        assert len(look()) == 1


def test_a_version_that_a_worker_takes_on_is_served() -> None:
    soup()
    worker(entry(version=4, compatible=[1, 2]))
    assert look() == []


def test_a_worker_of_other_queues_does_not_serve_it() -> None:
    slow, fast = soup("slow"), soup("fast")
    worker(entry(), queues=("fast", "faster"))
    assert look() == [("unserved-soup", 2, "slow", 1)]
    assert unserved_run(fast) is None
    [runs] = unserved_now()
    assert runs.reason == TOLD + ' in the queue "slow"'
    assert str(runs) == TOLD + f' in the queue "slow", which has 1 live run (the oldest: {slow})'


def test_another_tree_of_the_same_version_is_taken_on_by_path_as_the_worker_does() -> None:
    soup()
    worker({**entry(), "fingerprint": "another"})
    assert look() == []


def test_queues_are_told_apart_only_where_they_are_what_is_missing() -> None:
    for queue in ("slow", "fast", "fast"):
        soup(queue)
    assert look() == [("unserved-soup", 2, None, 3)]
    worker(entry(), queues=("medium",))
    assert look() == [("unserved-soup", 2, "fast", 2), ("unserved-soup", 2, "slow", 1)]


def test_runs_are_counted_and_the_oldest_is_named() -> None:
    first = soup()
    others = [soup(), soup()]
    end(others[0], states.CANCELLED)
    [runs] = unserved_now()
    assert str(runs) == f"{TOLD}, which has 2 live runs (the oldest: {first})"
    assert runs.created_at == Run.objects.get(pk=first).created_at


def test_a_run_that_is_over_needs_nobody() -> None:
    run_id = soup()
    end(run_id, states.COMPLETED)
    assert look() == []
    assert unserved_run(run_id) is None
    assert unserved_run(uuid.uuid4()) is None


def test_a_look_takes_so_many_runs_from_either_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_RUNS", 2)
    worker(entry(), queues=("kitchen",))
    for queue in ("old", "old", "middle", "new", "new"):
        soup(queue)
    assert [(queue, count) for _, _, queue, count in look()] == [("new", 2), ("old", 2)]
    assert "which has 2 or more live runs" in str(unserved_now()[0])


@pytest.mark.django_db(transaction=True)
async def test_a_workers_own_connection_gives_the_same() -> None:
    def prepare() -> list[Unserved]:
        soup("slow"), worker(entry(), queues=("fast",))
        return unserved_now()

    expected = await sync_to_async(prepare)()
    parameters = await sync_to_async(connection_parameters)()
    port = AsyncPort(lambda: parameters, "test")
    try:
        assert len(expected) == 1
        assert await unserved(port) == expected
    finally:
        await port.close()


def test_a_real_worker_says_what_it_takes_on(transactional_db: None) -> None:
    from workflow import worker as workers

    workers.run(concurrency=1, processes=1, queues=None, burst=True)
    row = Worker.objects.get()
    assert {**entry(compatible=[1]), "shares": False} in row.serves  # a burst does not stay
    assert row.queues == []


# What people see


def status(run_id: uuid.UUID, *arguments: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("workflow:status", str(run_id), *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_the_status_of_such_a_run_says_so() -> None:
    run_id = soup()
    assert f"\nworkers      {TOLD}\n" in status(run_id)[0]
    assert TOLD in status(run_id, "--force-color")[0]
    worker(entry())
    assert "workers" not in status(run_id)[0]


def test_a_run_status_as_json_stays_as_it_is() -> None:
    run_id = soup()
    out, err = status(run_id, "--json")
    assert json.loads(out) == workflows.status(run_id).model_dump(mode="json")
    assert err == ""


def test_watching_in_a_pipe_says_it_once() -> None:
    out = io.StringIO()
    changes = watch._Changes(Output(watch_wrapper(out)))
    run_id = soup()
    seen = None
    for _ in range(3):
        now = workflows.status(run_id)
        changes.see(seen, now)
        seen = now
    assert out.getvalue().count(TOLD) == 1
    worker(entry())
    changes.see(seen, workflows.status(run_id))
    Worker.objects.all().delete()
    changes.see(seen, workflows.status(run_id))
    assert out.getvalue().count(TOLD) == 2


def watch_wrapper(out: io.StringIO) -> Any:
    from django.core.management.base import OutputWrapper

    return OutputWrapper(out)


def test_what_a_name_holds_steers_no_terminal() -> None:
    run = workflows.status(soup()).run
    facts = dict(terminal.run_facts(run, run.created_at, 'in the queue "\x1b[31m\n"'))
    assert facts["workers"] == 'in the queue "\\x1b[31m "'


HOSTILE = "\n2026-01-01 ERROR all is lost\x1b[31m\u202e\r"
SHOWN = r"2026-01-01 ERROR all is lost\x1b[31m\u202e"


def test_what_a_queue_is_called_forges_no_line_of_a_log(caplog: pytest.LogCaptureFixture) -> None:
    run_id = soup(HOSTILE)
    worker(entry(), queues=("fast",))
    said = f'{TOLD} in the queue "{SHOWN}"'
    runs = unserved_run(run_id)
    assert runs is not None
    assert (runs.queue, runs.reason) == (HOSTILE, said)
    assert swept(caplog) == [f"{said}, which has 1 live run (the oldest: {run_id})"]
    with registry.isolated():
        registry.register(SOUP)
        [message] = found()
    assert SHOWN in message.msg
    assert message.hint == f'Start a worker that takes the queue "{SHOWN}".'


# Sweeps


def swept(caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "workflow"):
        counts = sweeps.run_once()
    assert counts["unserved"] == 0, "it changes nothing"
    return [record.getMessage() for record in caplog.records]


def test_a_sweep_names_them_at_most_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = soup()
    line = f"{TOLD}, which has 1 live run (the oldest: {run_id})"
    clock = 1000.0
    monkeypatch.setattr(sweeps.time, "monotonic", lambda: clock)
    assert swept(caplog) == [line]
    clock += 59
    assert swept(caplog) == []
    clock += 2
    assert swept(caplog) == [line]
    worker(entry())
    clock += 61
    assert swept(caplog) == []


def test_a_sweep_that_could_not_look_looks_again_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    soup()

    async def broken(port: object) -> list[Any]:
        raise OSError("away")

    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "unserved", broken)
        assert swept(caplog) == ["the sweep of unserved failed; the next pass finds its work again"]
    assert len(swept(caplog)) == 1


# check --deploy


def found(**options: Any) -> list[Any]:
    """As the command has it: checks of databases are run only where some are named."""
    tags = ["workflow", "database"] if options else ["workflow"]
    messages = run_checks(tags=tags, include_deployment_checks=True, **options)
    # W005 is about routers, of which these tests have none.
    return [m for m in messages if (m.id or "").startswith("workflow.") and m.id != "workflow.W005"]


@pytest.mark.parametrize("options", [{}, {"databases": ["default"]}])
def test_check_deploy_names_them(options: dict[str, Any]) -> None:
    run_id = soup()
    [message] = found(**options)
    assert (message.id, message.obj) == ("workflow.W001", "unserved-soup")
    assert message.msg == f"{TOLD[0].upper()}{TOLD[1:]}, which has 1 live run (the oldest: {run_id})."
    assert message.hint == "This code serves it: start a worker of it."
    worker(entry())
    assert found(**options) == []


def test_the_command_prints_them() -> None:
    soup()
    err = io.StringIO()
    call_command("check", deploy=True, stderr=err, stdout=io.StringIO())
    assert "(workflow.W001) No live worker serves unserved-soup v2, which has 1 live run" in err.getvalue()


def test_a_check_without_deploy_does_not_look() -> None:
    soup()
    assert list(run_checks(tags=["workflow"], databases=["default"])) == []


def test_the_hint_tells_what_would_help() -> None:
    soup("slow")
    worker(entry(), queues=("fast",))
    [message] = found()
    assert message.hint == 'Start a worker that takes the queue "slow".'
    Worker.objects.all().delete()
    registry.clear()
    [message] = found()
    assert message.hint == (
        "This code has no workflow of that name: is its app in INSTALLED_APPS, with a workflows.py?"
    )
    workflows.register(Workflow(SOUP.name, version=3, stages=STAGES))
    [message] = found()
    assert message.hint.startswith(
        "This code does not serve it either: keep workers of the release that does"
    )
    assert "compatible_versions=(2,)" in message.hint


def test_runs_of_a_tree_that_was_changed_without_a_new_version_are_named() -> None:
    """A worker of this code would end those that do not fit: the one time to hear of it is before it starts."""
    oldest, another, over = soup(), soup(), soup()
    workflows.cancel(over)
    registry.clear()
    workflows.register(Workflow(SOUP.name, version=2, stages=[*STAGES, Stage("salt", actions=[stir])]))
    [unserved_runs, changed] = found()
    assert unserved_runs.hint == (
        "This code has another tree for such runs: see workflow.W003 before you start a worker of it."
    )
    assert (changed.id, changed.obj) == ("workflow.W003", "unserved-soup")
    assert changed.msg == (
        f"2 live runs of unserved-soup v2 have another tree than this code (the oldest: {oldest})."
    )
    assert "a version of its own" in changed.hint
    worker(entry())  # whoever is alive: it is this code that is being looked at
    assert [message.id for message in found()] == ["workflow.W003"]
    workflows.cancel(another)
    assert found()[0].msg.startswith("1 live run of unserved-soup v2 has another tree than this code")
    registry.clear()
    workflows.register(Workflow(SOUP.name, version=3, stages=STAGES))
    assert found() == []


def test_runs_of_a_version_that_is_taken_on_and_does_not_fit_are_named() -> None:
    """The same matching as the worker's: what was removed has to be over, and nothing may be added."""
    oldest, another = soup(), soup()
    registry.clear()
    salted = Workflow(
        SOUP.name, version=3, compatible_versions=(2, 3), stages=[*STAGES, Stage("salt", actions=[stir])]
    )
    workflows.register(salted)
    [unserved_runs, unfit] = found()
    assert unserved_runs.hint == (
        "This code has another tree for such runs: see workflow.W003 before you start a worker of it."
    )
    assert (unfit.id, unfit.obj) == ("workflow.W003", "unserved-soup")
    assert unfit.msg == (
        f"unserved-soup v3 cannot go on with 2 live runs of v2 (the oldest: {oldest}): "
        "the definition has 'unserved-soup.salt', the run has not."
    )
    assert "take 2 out of compatible_versions=" in unfit.hint
    drain(oldest, timeout=10)
    assert str(workflows.status(oldest).run.error["message"]).endswith(
        "'unserved-soup.salt', the run has not"
    )
    assert found()[1].msg.startswith(
        f"unserved-soup v3 cannot go on with 1 live run of v2 (the oldest: {another})"
    )


def test_what_a_version_that_is_taken_on_still_has_to_do_is_looked_for_run_by_run() -> None:
    two = [Stage("wait", wait_for=WaitFor("salt")), *STAGES, Stage("serve", wait_for=WaitFor("go"))]
    registry.clear()
    old = workflows.register(Workflow(SOUP.name, version=2, stages=two))
    parked, past = (workflows.dispatch(old, {}).run_id for _ in range(2))
    drain(timeout=10)
    workflows.resume(past)
    drain(timeout=10)
    registry.clear()
    workflows.register(Workflow(SOUP.name, version=3, compatible_versions=(2,), stages=two[1:]))
    [_, unfit] = found()
    assert unfit.msg == (
        f"unserved-soup v3 cannot go on with 1 live run of v2 (the oldest: {parked}): "
        "the run has 'unserved-soup.wait' still to do, the definition has it no more."
    )
    workflows.cancel(parked)
    [unserved_runs] = found()
    assert unserved_runs.hint == "This code serves it: start a worker of it."


def test_the_nodes_of_so_many_runs_are_matched_some_of_each_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_MATCHED", 2)
    others = [Workflow(f"unserved-{name}", stages=STAGES) for name in ("rice", "stew")]
    for other in others:
        workflows.dispatch_many(other, [{}] * 3)
    registry.clear()
    for other in others:
        more = [*STAGES, Stage("salt", actions=[stir])]
        workflows.register(Workflow(other.name, version=2, compatible_versions=(1,), stages=more))
    unfit = [message.msg for message in found() if message.id == "workflow.W003"]
    assert [message[: message.index(" (")] for message in unfit] == [
        "unserved-rice v2 cannot go on with 1 or more live runs of v1",
        "unserved-stew v2 cannot go on with 1 or more live runs of v1",
    ]


def test_a_check_of_another_database_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    soup()
    monkeypatch.setitem(connections.settings, "analytics", connections.settings["default"])
    assert found(databases=["analytics"]) == []


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The alias of a database on a host that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = {**connections.settings["default"], "HOST": "127.0.0.1", "PORT": str(port)}
        settings["ENGINE"] = "django.db.backends.postgresql"
        monkeypatch.setitem(connections.settings, "nowhere", settings)
        yield "nowhere"
        del connections["nowhere"]


def test_a_database_that_does_not_answer_fails_no_check(
    nowhere: str, monkeypatch: pytest.MonkeyPatch, django_db_blocker: Any
) -> None:
    monkeypatch.setattr(checks, "CONNECT_TIMEOUT", 1)
    with override_settings(WORKFLOW={"DATABASE": nowhere}), django_db_blocker.unblock():
        assert found() == []
        connections[nowhere].settings_dict["OPTIONS"] = {"connect_timeout": 2}
        [message] = found(databases=[nowhere])
    assert message.id == "workflow.W002"
    assert message.msg.startswith("Could not look for runs that no live worker serves: ")


def test_tables_that_are_missing_fail_no_check() -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE workflow_worker RENAME TO elsewhere")
        assert found() == []
        [message] = found(databases=["default"])
        transaction.set_rollback(True)
    assert message.id == "workflow.W002"
    assert 'relation "workflow_worker" does not exist' in message.msg


def test_faulty_settings_are_somebody_elses_message() -> None:
    with override_settings(WORKFLOW={"DATABASE": "nothing-of-that-name"}):
        assert [message.id for message in found()] == ["workflow.E002"]
