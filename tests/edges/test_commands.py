"""The commands as people and scripts use them: what they do, print and answer, and how they refuse."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import psycopg
import pytest
from django.core.management import CommandError, ManagementUtility, call_command
from django.db import ProgrammingError, connection, transaction
from django.db.models.functions import Now
from django.test import override_settings
from pydantic import BaseModel

from workflow import RunNotFound, Stage, WaitFor, Workflow, action, parallel, states, workflows
from workflow.management.base import database_trouble, json_argument, number
from workflow.models import Event, Node, Run, RunEvent
from workflow.registry import registry
from workflow.results import RunStatus
from workflow.testing import drain

REPOSITORY = Path(__file__).resolve().parents[2]
NOBODY = uuid.UUID("01997a5e-6c00-7d41-9b1e-4a5c2f300000")


class TeaInput(BaseModel):
    tea: str
    grams: int = 100
    api_token: str | None = None


@action(input=TeaInput)
def weigh(order: TeaInput) -> dict[str, Any]:
    return {"weighed": order.grams}


@action
def pack(state: dict[str, Any]) -> dict[str, Any]:
    return {"packed": True}


TEA = Workflow(
    "commands-tea",
    input=TeaInput,
    on_failure="halt",
    stages=[
        Stage("weigh", actions=[weigh]),
        Stage("paid", wait_for=WaitFor("tea.paid", correlate="tea")),
        Stage("pack", actions=[pack]),
    ],
)
FREE = Workflow("commands-free", stages=[Stage("pack", actions=[pack])])


@pytest.fixture(autouse=True)
def _registered() -> None:
    workflows.register(TEA)
    workflows.register(FREE)


def call(*arguments: Any, **options: Any) -> str:
    """`call_command`, and what it printed."""
    out = io.StringIO()
    call_command(*arguments, stdout=out, **options)
    return out.getvalue()


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def manage(transactional_db: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`manage("workflow:list")`: what `manage.py workflow:list` does, in this process."""

    def run(*arguments: str) -> Result:
        code = 0
        try:
            ManagementUtility(["manage.py", *arguments]).execute()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def tea(db: None) -> uuid.UUID:
    return workflows.dispatch("commands-tea", {"tea": "sencha"}).run_id


def end(run_id: uuid.UUID, status: str, **values: Any) -> None:
    """Ends a run by hand: what a worker would have done is no matter here."""
    Node.objects.filter(run=run_id).update(status=states.FAILED, finished_at=Now())
    run = Run.objects.filter(id=run_id)
    run.update(status=states.RUNNING, started_at=Now())
    run.update(status=status, finished_at=Now(), **values)


def park(run_id: uuid.UUID) -> None:
    """Parks a run of TEA on its wait by hand."""
    Run.objects.filter(id=run_id).update(status=states.RUNNING)
    Run.objects.filter(id=run_id).update(status=states.WAITING)
    Node.objects.filter(run=run_id, path="commands-tea").update(status=states.RUNNING)
    Node.objects.filter(run=run_id, path="commands-tea.paid").update(
        status=states.WAITING, wait_event="tea.paid", wait_correlation="sencha"
    )
    Run.objects.get(id=run_id).jobs.all().delete()


# Refusals


NOT_JSON = '{"a": '
REFUSED = [
    ("workflow:status",),
    ("workflow:status", str(NOBODY)),
    ("workflow:status", "no-uuid"),
    ("workflow:status", "x\ny\x1b[31m"),
    ("workflow:status", "é\udcff"),
    ("workflow:status", str(NOBODY), "--json"),
    ("workflow:status", str(NOBODY), "--watch"),
    ("workflow:status", str(NOBODY), str(NOBODY)),
    ("workflow:status", str(NOBODY), "--bogus"),
    ("workflow:status", str(NOBODY), "-v", "9"),
    ("workflow:list", "--bogus"),
    ("workflow:list", "--status", "done"),
    ("workflow:list", "--limit", "0"),
    ("workflow:list", "--limit", "-3"),
    ("workflow:list", "--limit", "many"),
    ("workflow:list", "--limit", "1.5"),
    ("workflow:list", "--limit", "9" * 5000),
    ("workflow:list", "--limit", "100000"),
    ("workflow:list", "--limit"),
    ("workflow:list", "--after", "not-a-cursor"),
    ("workflow:list", "--workflow", "nul\0nul"),
    ("workflow:list", "--correlation", "half\udc80"),
    ("workflow:list", "surplus"),
    ("workflow:list", "--no-color", "--force-color"),
    ("workflow:dispatch",),
    ("workflow:dispatch", "no-such-workflow", "--input", "{}"),
    ("workflow:dispatch", "no such\nworkflow\x00"),
    ("workflow:dispatch", "commands-tea"),
    ("workflow:dispatch", "commands-tea", "--input", NOT_JSON),
    ("workflow:dispatch", "commands-tea", "--input", "{tea: sencha}"),
    ("workflow:dispatch", "commands-tea", "--input", '{"tea": NaN}'),
    ("workflow:dispatch", "commands-tea", "--input", "[" * 100_000),
    ("workflow:dispatch", "commands-tea", "--input", '{"tea": "sencha", "grams": ' + "9" * 5000 + "}"),
    ("workflow:dispatch", "commands-tea", "--input", '{"grams": 5}'),
    ("workflow:dispatch", "commands-tea", "--input", '{"tea": "\\u0000"}'),
    ("workflow:dispatch", "commands-tea", "--input", '{"tea": "\\ud800"}'),
    ("workflow:dispatch", "commands-free", "--context", NOT_JSON),
    ("workflow:dispatch", "commands-free", "--priority", "high"),
    ("workflow:dispatch", "commands-free", "--priority", str(2**31)),
    ("workflow:dispatch", "commands-free", "--delay", "-1"),
    ("workflow:dispatch", "commands-free", "--delay", "nan"),
    ("workflow:dispatch", "commands-free", "--delay", "inf"),
    ("workflow:dispatch", "commands-free", "--queue", ""),
    ("workflow:dispatch", "commands-free", "--queue", "q" * 101),
    ("workflow:dispatch", "commands-free", "--correlation-id", "c" * 256),
    ("workflow:dispatch", "commands-free", "--idempotency-key", ""),
    ("workflow:dispatch", "commands-free", "--timeout", "5"),
    ("workflow:dispatch", "commands-free", "--wait", "--timeout", "soon"),
    ("workflow:retry",),
    ("workflow:retry", "no-uuid"),
    ("workflow:retry", str(NOBODY)),
    ("workflow:retry", str(NOBODY), "--from", "a.b"),
    ("workflow:retry", str(NOBODY), "--from"),
    ("workflow:cancel",),
    ("workflow:cancel", "no-uuid"),
    ("workflow:cancel", str(NOBODY)),
    ("workflow:cancel", str(NOBODY), "--reason", "r" * 10_001),
    ("workflow:resume",),
    ("workflow:resume", "no-uuid"),
    ("workflow:resume", str(NOBODY)),
    ("workflow:resume", str(NOBODY), "--payload", NOT_JSON),
    ("workflow:publish",),
    ("workflow:publish", ""),
    ("workflow:publish", "tea.paid", "--payload", NOT_JSON),
    ("workflow:publish", "tea.paid", "--payload", "-Infinity"),
    ("workflow:publish", "tea.paid", "--correlation", ""),
    ("workflow:publish", "tea.paid", "--event-id", "nul\0"),
    ("workflow:pause",),
    ("workflow:pause", ""),
    ("workflow:pause", "q" * 101),
    ("workflow:pause", "#events"),
    ("workflow:pause", "slow", "--list"),
    ("workflow:pause", "slow", "--for", "soon"),
    ("workflow:pause", "slow", "--for", "0"),
    ("workflow:pause", "slow", "--for", "-1"),
    ("workflow:pause", "slow", "--for", "nan"),
    ("workflow:pause", "slow", "--for", "5", "--until", "2100-01-01T00:00"),
    ("workflow:pause", "slow", "--until", "tomorrow"),
    ("workflow:pause", "slow", "--until", "2100-13-41T00:00"),
    ("workflow:pause", "slow", "--until", "2020-01-01T00:00"),
    ("workflow:pause", "slow", "--until", "9999-12-31T23:59-12:00"),
    ("workflow:pause", "slow", "--reason", "r" * 10_001),
    ("workflow:unpause",),
    ("workflow:unpause", ""),
    ("workflow:prune", "--days", "-1"),
    ("workflow:prune", "--days", "soon"),
    ("workflow:prune", "--days", "inf"),
    ("workflow:prune", "--days", "1e9", "--dry-run"),
    ("workflow:prune", "--batch-size", "0"),
    ("workflow:sweep", "--twice"),
    ("workflow:worker", "--concurrency", "0"),
    ("workflow:worker", "--concurrency", "x"),
    ("workflow:worker", "--processes", "-1"),
    ("workflow:worker", "--processes", "1.5"),
    ("workflow:worker", "--queue"),
    ("workflow:worker", "--queue", "tea", ""),
    ("workflow:worker", "--queue", "q" * 101),
    ("workflow:worker", "surplus"),
]


def told(arguments: tuple[str, ...]) -> str:
    return " ".join(ascii(part)[1:-1][:25] for part in arguments)


@pytest.mark.parametrize("arguments", REFUSED, ids=told)
def test_a_refusal_is_one_line_and_exit_status_1(manage, arguments):
    result = manage(*arguments)
    assert result.code == 1
    assert result.out == ""
    assert result.err.startswith("CommandError: ")
    assert result.err.endswith("\n")
    assert result.err.count("\n") == 1
    assert len(result.err) < 600
    assert result.err.rstrip("\n").isprintable()
    assert "Traceback" not in result.err
    assert not Run.objects.exists()
    assert not Event.objects.exists()


@pytest.mark.parametrize("arguments", REFUSED, ids=told)
@pytest.mark.django_db
def test_callers_in_python_get_the_same_refusal_as_an_exception(arguments):
    with pytest.raises(CommandError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    assert connection.is_usable()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("workflow:list", {"limit": 0}),
        ("workflow:list", {"limit": True}),
        ("workflow:list", {"status": "done"}),
        ("workflow:list", {"workflow": 5}),
        ("workflow:list", {"after": object()}),
        ("workflow:prune", {"days": "x", "dry_run": True}),
        ("workflow:prune", {"days": float("nan")}),
    ],
)
def test_options_given_in_python_are_checked_too(name, options):
    with pytest.raises(CommandError):
        call(name, **options)


@pytest.mark.django_db
def test_the_error_behind_a_refusal_is_kept():
    with pytest.raises(CommandError, match=str(NOBODY)) as caught:
        call("workflow:status", NOBODY)
    assert isinstance(caught.value.__cause__, RunNotFound)


def test_traceback_shows_where_it_came_from(manage):
    with pytest.raises(CommandError):
        manage("workflow:status", str(NOBODY), "--traceback")
    with pytest.raises(CommandError):
        manage("workflow:status", "--traceback")


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (states.COMPLETED, ("workflow:cancel",)),
        (states.CANCELLED, ("workflow:cancel",)),
        (states.COMPLETED, ("workflow:retry",)),
        (states.PENDING, ("workflow:retry",)),
        (states.PENDING, ("workflow:resume",)),
        (states.FAILED, ("workflow:resume",)),
    ],
)
def test_a_run_in_another_status_is_refused_by_name(manage, status, arguments):
    run_id = workflows.dispatch("commands-tea", {"tea": "sencha"}).run_id
    if status != states.PENDING:
        end(run_id, status)
    result = manage(*arguments, str(run_id))
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert status in result.err
    assert Run.objects.get(id=run_id).status == status


def test_an_unknown_node_is_refused_by_name(manage):
    run_id = workflows.dispatch("commands-tea", {"tea": "sencha"}).run_id
    end(run_id, states.FAILED)
    result = manage("workflow:retry", str(run_id), "--from", "commands-tea.nothing")
    assert result.code == 1
    assert "commands-tea.nothing" in result.err
    assert result.err.count("\n") == 1


def database_url() -> str:
    """The database of this test run, as a URL that another process can be given."""
    database = connection.settings_dict
    options = {
        name.lower(): database[name] for name in ("HOST", "PORT", "USER", "PASSWORD") if database[name]
    }
    return f"postgresql:///{quote(database['NAME'], safe='')}?{urlencode(options)}"


def in_a_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(REPOSITORY / "manage.py"), *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ("workflow:list",),
        ("workflow:status", str(NOBODY)),
        ("workflow:prune", "--dry-run"),
        ("workflow:sweep", "--once"),
    ],
    ids=told,
)
def test_a_database_that_cannot_be_reached_is_one_line(arguments):
    result = in_a_process(*arguments, DATABASE_URL="postgresql://nobody@127.0.0.1:1/nothing")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("CommandError: the database cannot be used: connection failed")


def test_missing_tables_are_one_line_that_says_what_to_do(manage):
    with override_settings(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE workflow_run RENAME TO workflow_run_away")
    try:
        result = manage("workflow:list")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE workflow_run_away RENAME TO workflow_run")
    assert (result.code, result.out) == (1, "")
    assert (
        result.err
        == "CommandError: the workflow tables are missing from the database: run manage.py migrate\n"
    )


@override_settings(WORKFLOW={"DATABASE": "flows"})
def test_missing_tables_of_another_database_say_which():
    missing = ProgrammingError("relation does not exist")
    missing.__cause__ = psycopg.errors.UndefinedTable()
    assert (
        database_trouble(missing)
        == "the workflow tables are missing from the database: run manage.py migrate --database flows"
    )


def test_a_wrong_database_alias_is_one_line(manage):
    with override_settings(WORKFLOW={"DATABASE": "elsewhere"}):
        result = manage("workflow:list")
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "elsewhere" in result.err


def test_a_fault_of_the_program_is_not_passed_off_as_a_refusal():
    assert database_trouble(RuntimeError("bug")) is None


def test_a_reader_that_leaves_early_sees_no_traceback():
    process = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "manage.py"), "workflow:list", "--limit", "1000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "DATABASE_URL": database_url()},
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors_seen = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 1
    assert errors_seen == b""


# list


@pytest.mark.django_db
class TestList:
    def test_newest_first_in_lines(self, tea):
        other = workflows.dispatch("commands-free", correlation_id="c-1").run_id
        lines = call("workflow:list").splitlines()
        assert lines[0].split() == ["RUN", "WORKFLOW", "STATUS", "CREATED", "TOOK", "CORRELATION", "ERROR"]
        assert [line.split()[0] for line in lines[1:]] == [str(other), str(tea)]
        assert "commands-free v1" in lines[1]
        assert "c-1" in lines[1]

    def test_nothing_is_said_to_be_nothing(self):
        assert call("workflow:list") == "No runs.\n"
        assert json.loads(call("workflow:list", "--json")) == {"items": [], "next": None}

    def test_filters(self, tea):
        free = workflows.dispatch("commands-free", correlation_id="c-1").run_id
        end(free, states.FAILED, error={"code": "ACTION_FAILED", "message": "m"})

        def found(*arguments: str) -> list[str]:
            return [item["id"] for item in json.loads(call("workflow:list", "--json", *arguments))["items"]]

        assert found() == [str(free), str(tea)]
        assert found("--workflow", "commands-tea") == [str(tea)]
        assert found("--workflow", "nothing") == []
        assert found("--status", "failed") == [str(free)]
        assert found("--correlation", "c-1") == [str(free)]
        assert found("--correlation", "c-1", "--status", "pending") == []

    def test_pages_follow_each_other(self):
        ids = [str(handle.run_id) for handle in workflows.dispatch_many("commands-free", [None] * 5)][::-1]
        seen: list[str] = []
        cursor: list[str] = []
        for size in (2, 2, 1):
            page = json.loads(call("workflow:list", "--json", "--limit", "2", *cursor))
            assert len(page["items"]) == size
            seen += [item["id"] for item in page["items"]]
            cursor = ["--after", page["next"]]
        assert page["next"] is None
        assert seen == sorted(ids, reverse=True)

    def test_a_page_that_is_not_the_last_names_its_cursor(self):
        workflows.dispatch_many("commands-free", [None] * 3)
        last = call("workflow:list", limit=2).splitlines()[-1]
        assert last.startswith("More: --after ")
        assert len(call("workflow:list", "--after", last.split()[-1]).splitlines()) == 2

    def test_an_item_is_a_run(self, tea):
        [item] = json.loads(call("workflow:list", json=True))["items"]
        assert {
            "id", "workflow", "version", "status", "state", "input", "error", "correlation_id",
            "created_at", "started_at", "finished_at",
        } <= set(item)  # fmt: skip
        assert item["input"] == {"tea": "sencha", "grams": 100, "api_token": None}


# status


@pytest.mark.django_db
class TestStatus:
    def test_the_tree_in_lines(self, tea):
        lines = call("workflow:status", tea).splitlines()
        assert lines[0] == f"run          {tea}"
        assert "status       pending" in lines
        assert [line.split()[0] for line in lines if line.endswith("pending")][1:] == [
            "commands-tea", "weigh", "weigh", "paid", "pack", "pack",
        ]  # fmt: skip

    def test_json_is_a_run_status(self, tea):
        text = call("workflow:status", str(tea), "--json")
        assert RunStatus.model_validate_json(text) == workflows.status(tea)
        assert text.isascii()

    def test_more_is_said_when_asked(self, tea):
        assert '"tea": "sencha"' not in call("workflow:status", tea)
        assert '"tea": "sencha"' in call("workflow:status", tea, verbosity=2)

    @pytest.mark.parametrize("arguments", [(), ("--force-color",)])
    def test_what_a_run_waits_for_is_said(self, tea, arguments):
        assert "waits for" not in call("workflow:status", tea, *arguments)
        park(tea)
        Node.objects.filter(run=tea, wait_event="tea.paid").update(
            wait_until=datetime(2026, 3, 5, 11, 59, 50, tzinfo=UTC)
        )
        shown = call("workflow:status", tea, *arguments)
        assert "waits for    tea.paid about sencha, until 2026-03-05 11:59:50 (commands-tea.paid)\n" in shown
        with override_settings(WORKFLOW={"REDACT": ["tea"]}):
            shown = call("workflow:status", tea, *arguments)
        assert "sencha" not in shown
        assert "tea.paid about ********" in shown

    def test_the_event_that_a_durable_step_waits_for_is_said(self):
        def pour(state: dict[str, Any], ctx: Any) -> None:
            ctx.step.wait_event("cooled", "tea.cooled\x1b", timeout=None)

        with registry.isolated():
            handle = workflows.dispatch(Workflow("commands-pour", stages=[Stage("pour", run=pour)]))
            drain(handle.run_id)
        shown = call("workflow:status", handle.run_id)
        assert "waits for    tea.cooled\\x1b (commands-pour.pour.pour#run, step cooled)\n" in shown
        workflows.cancel(handle.run_id)
        assert "waits for" not in call("workflow:status", handle.run_id)

    def test_of_many_waits_the_first_are_shown(self):
        waits = [Stage(f"w{number}", wait_for=WaitFor(f"tea.{number}")) for number in range(12)]
        with registry.isolated():
            handle = workflows.dispatch(Workflow("commands-many", stages=[parallel(waits)]))
            drain(handle.run_id)
        lines = call("workflow:status", handle.run_id).splitlines()
        assert sum(line.startswith("waits for") for line in lines) == 10
        assert lines[-1].strip() == "and for more"

    def test_any_way_of_writing_the_id_is_understood(self, tea):
        assert str(tea) in call("workflow:status", tea.hex.upper())

    def test_watching_a_run_that_is_over_shows_it_and_leaves(self, tea):
        end(tea, states.FAILED)
        out = call("workflow:status", tea, "--watch")
        assert "status       failed" in out
        lines = call("workflow:status", tea, "--watch", "--json").splitlines()
        assert len(lines) == 1
        assert json.loads(lines[0])["run"]["status"] == "failed"


SECRET = "S3CR3T-hunter2"


@pytest.mark.django_db
@pytest.mark.parametrize("arguments", [(), ("--json",), ("--force-color",)])
def test_secrets_are_masked_in_every_output(arguments):
    run_id = workflows.dispatch("commands-tea", {"tea": "sencha", "api_token": SECRET}).run_id
    end(
        run_id,
        states.FAILED,
        error={"code": "ACTION_FAILED", "message": f"refused {SECRET}", "traceback": f"x {SECRET}"},
    )
    Node.objects.filter(run=run_id).update(output={"API_TOKEN": SECRET, "note": f"with {SECRET}"})
    with override_settings(WORKFLOW={"REDACT": ["*token*"]}):
        shown = call("workflow:list", *arguments) + call("workflow:status", run_id, *arguments, verbosity=2)
    assert SECRET not in shown
    assert "sencha" in shown
    assert SECRET in call("workflow:status", run_id, "--json"), "what is stored is as it was"


@pytest.mark.django_db
def test_hostile_text_reaches_no_terminal():
    bad = "\x1b]0;owned\x07 [red]x[/red]\u202e\x9b"
    run_id = workflows.dispatch("commands-free", {"text": bad}, correlation_id=bad).run_id
    end(run_id, states.FAILED, error={"code": "ACTION_FAILED", "message": bad, "traceback": bad})
    for arguments in ((), ("--json",)):
        shown = call("workflow:list", *arguments) + call("workflow:status", run_id, *arguments, verbosity=2)
        assert all(character == "\n" or character.isprintable() for character in shown)
    coloured = call("workflow:status", run_id, "--force-color", verbosity=2)
    assert "\x1b]" not in coloured
    assert "[red]x[/red]" in coloured


# dispatch


@pytest.mark.django_db
class TestDispatch:
    def test_the_id_is_printed_alone(self):
        out = call("workflow:dispatch", "commands-tea", "--input", '{"tea": "oolong", "grams": 50}')
        run = Run.objects.get(id=out.strip())
        assert out == f"{run.id}\n"
        assert run.state == {"tea": "oolong", "grams": 50, "api_token": None}

    def test_every_option_arrives(self):
        call(
            "workflow:dispatch", "commands-free", "--input", "[1, 2]", "--context", '{"tenant": 7}',
            "--correlation-id", "c-1", "--idempotency-key", "k-1", "--queue", "slow", "--priority", "-5",
            "--delay", "3600",
        )  # fmt: skip
        run = Run.objects.get()
        assert (run.context, run.correlation_id, run.idempotency_key) == ({"tenant": 7}, "c-1", "k-1")
        assert (run.queue, run.priority, run.input) == ("slow", -5, [1, 2])
        job = run.jobs.get()
        assert timedelta(minutes=59) < job.available_at - run.created_at < timedelta(minutes=61)

    def test_python_values_are_taken_as_they_are(self):
        call("workflow:dispatch", "commands-free", input={"a": [1, None]}, context=[1])
        assert Run.objects.get().state == {"a": [1, None]}

    def test_the_input_can_come_from_standard_input(self, monkeypatch):
        monkeypatch.setattr(sys, "stdin", io.StringIO('{"tea": "assam"}'))
        call("workflow:dispatch", "commands-tea", "--input", "-")
        assert Run.objects.get().state["tea"] == "assam"

    def test_a_key_used_before_gives_the_first_run(self):
        first = call("workflow:dispatch", "commands-free", "--idempotency-key", "k")
        err = io.StringIO()
        assert call("workflow:dispatch", "commands-free", "--idempotency-key", "k", stderr=err) == first
        assert "used before" in err.getvalue()

    def test_it_takes_part_in_the_callers_transaction(self):
        with suppress(RuntimeError), transaction.atomic():
            call("workflow:dispatch", "commands-free")
            raise RuntimeError
        assert not Run.objects.exists()

    def test_waiting_without_end_inside_a_transaction_is_refused(self):
        with pytest.raises(CommandError, match="transaction"):
            call("workflow:dispatch", "commands-free", "--wait")

    def test_waiting_ends_at_the_timeout(self):
        out = io.StringIO()
        with pytest.raises(CommandError, match=r"not over after 0\.1 seconds"):
            call_command("workflow:dispatch", "commands-free", "--wait", "--timeout", "0.1", stdout=out)
        assert out.getvalue().strip() == str(Run.objects.get().id)


# retry, cancel, resume, publish


def test_retry_lets_a_failed_run_go_on(manage):
    run_id = workflows.dispatch("commands-tea", {"tea": "sencha"}).run_id
    end(run_id, states.FAILED, error={"code": "ACTION_FAILED", "message": "m"})
    assert manage("workflow:retry", str(run_id)) == (0, f"Run {run_id} goes on from its failure.\n", "")
    run = Run.objects.get(id=run_id)
    assert (run.status, run.error) == (states.RUNNING, None)


def test_retry_from_a_node(manage):
    run_id = workflows.dispatch("commands-tea", {"tea": "sencha"}).run_id
    end(run_id, states.FAILED)
    result = manage("workflow:retry", str(run_id), "--from", "commands-tea.weigh")
    assert result == (0, f"Run {run_id} goes on from commands-tea.weigh.\n", "")
    resumed = RunEvent.objects.filter(run=run_id).last()
    assert resumed is not None
    assert (resumed.name, resumed.data["from_node"]) == ("resumed", "commands-tea.weigh")
    assert resumed.data["by"].startswith("cli")


WHO = [("ada", "cli:ada"), ("a\nd\udcffa", "cli:a d\\udcffa"), ("n" * 300, "cli:" + "n" * 197 + "...")]


@pytest.mark.parametrize(("name", "by"), WHO, ids=["plain", "odd", "long"])
def test_the_history_says_who_dispatched_retried_resumed_and_cancelled(tea, monkeypatch, name, by):
    monkeypatch.setattr("getpass.getuser", lambda: name)
    dispatched = uuid.UUID(call("workflow:dispatch", "commands-tea", input={"tea": "sencha"}).strip())
    park(tea)
    call("workflow:resume", str(tea))
    call("workflow:cancel", str(tea))
    other = workflows.dispatch("commands-free").run_id
    end(other, states.FAILED)
    call("workflow:retry", str(other))
    entries = {
        (entry.run_id, entry.name): entry.data["by"] for entry in RunEvent.objects.exclude(name="waiting")
    }
    assert entries == {
        (dispatched, "log"): by, (tea, "resumed"): by, (tea, "cancelled"): by, (other, "resumed"): by,
    }  # fmt: skip


def test_a_user_whom_the_system_has_no_name_for_may_steer_too(tea, monkeypatch):
    def nameless() -> str:
        raise OSError("no username set in the environment")

    monkeypatch.setattr("getpass.getuser", nameless)
    call("workflow:cancel", str(tea))
    assert RunEvent.objects.get(run=tea).data["by"] == "cli"


def test_cancel_says_why_in_the_history(manage):
    run_id = workflows.dispatch("commands-tea", {"tea": "sencha"}).run_id
    assert manage("workflow:cancel", str(run_id), "--reason", "sold out") == (
        0,
        f"Run {run_id} is cancelled.\n",
        "",
    )
    run = Run.objects.get(id=run_id)
    assert run.status == states.CANCELLED
    assert not run.jobs.exists()
    cancelled = RunEvent.objects.get(run=run_id, name="cancelled")
    assert cancelled.data["reason"] == "sold out"
    assert cancelled.data["by"].startswith("cli")


@pytest.mark.parametrize("payload", [None, {"amount": 7}, False])
def test_resume_satisfies_the_wait(manage, payload):
    run_id = workflows.dispatch("commands-tea", {"tea": "sencha"}).run_id
    park(run_id)
    arguments = [] if payload is None else ["--payload", json.dumps(payload)]
    assert manage("workflow:resume", str(run_id), *arguments) == (0, f"Run {run_id} goes on.\n", "")
    assert Node.objects.get(run=run_id, path="commands-tea.paid").wait_outcome == {"payload": payload}


def test_publish_adds_an_event_once(manage):
    arguments = (
        "workflow:publish",
        "tea.paid",
        "--payload",
        "[1]",
        "--correlation",
        "o-1",
        "--event-id",
        "e-1",
    )
    assert manage(*arguments) == (0, "Published tea.paid.\n", "")
    assert manage(*arguments) == (0, "Event id e-1 was published before.\n", "")
    event = Event.objects.get()
    assert (event.type, event.payload, event.correlation, event.event_id) == ("tea.paid", [1], "o-1", "e-1")


# prune


@pytest.fixture
def old_and_new(db: None) -> dict[str, uuid.UUID]:
    """Two old finished runs, one that finished just now, one old that lives, and events of each kind."""
    handles = workflows.dispatch_many("commands-free", [None] * 4)
    ids = dict(zip(("old", "older", "new", "living"), (handle.run_id for handle in handles), strict=True))
    for name in ("old", "older", "new"):
        end(ids[name], states.FAILED)
    Run.objects.filter(id=ids["new"]).update(finished_at=Now() - timedelta(seconds=1))
    Run.objects.filter(id=ids["old"]).update(finished_at=Now() - timedelta(days=10))
    Run.objects.filter(id=ids["older"]).update(finished_at=Now() - timedelta(days=40))
    for name, age, correlation in (("a", 10, None), ("b", 40, None), ("c", 0, None), ("d", 40, "o-1")):
        workflows.publish(name, correlation=correlation)
        Event.objects.filter(type=name).update(at=Now() - timedelta(days=age))
    Run.objects.filter(id=ids["living"]).update(created_at=Now() - timedelta(days=50))
    return ids


def s(count: int) -> str:
    return "" if count == 1 else "s"


class TestPrune:
    def test_the_default_is_the_setting(self, old_and_new):
        with override_settings(WORKFLOW={"RETENTION_DAYS": 20}):
            assert call("workflow:prune") == "Dropped 1 run.\n"
        assert call("workflow:prune") == "Dropped 1 run.\n", "seven days, when nothing is set"
        assert set(Run.objects.values_list("id", flat=True)) == {old_and_new["new"], old_and_new["living"]}

    def test_days_can_be_given(self, old_and_new):
        assert call("workflow:prune", "--days", "30") == "Dropped 1 run.\n"
        assert call("workflow:prune", days=0.5, batch_size=1) == "Dropped 1 run.\n"
        assert call("workflow:prune", "--days", "0") == "Dropped 1 run.\n"
        assert list(Run.objects.values_list("id", flat=True)) == [old_and_new["living"]]

    @pytest.mark.parametrize(("days", "runs", "events"), [(30, 1, 1), (5, 2, 2), (50, 0, 0)])
    def test_a_dry_run_counts_what_would_go_and_drops_nothing(self, old_and_new, days, runs, events):
        before = (Run.objects.count(), Event.objects.count())
        counted = call("workflow:prune", "--days", str(days), "--dry-run")
        assert re.findall(r"\d+ \w+", counted) == [f"{runs} run{s(runs)}", f"{events} event{s(events)}"]
        assert (Run.objects.count(), Event.objects.count()) == before
        call("workflow:prune", "--days", str(days))
        assert (Run.objects.count(), Event.objects.count()) == (before[0] - runs, before[1] - events)

    def test_a_dry_run_leaves_out_what_still_waits_for_delivery(self, old_and_new, tea):
        park(tea)
        workflows.publish("tea.paid", correlation=None)
        Event.objects.filter(type="tea.paid").update(at=Now() - timedelta(days=40))
        assert call("workflow:prune", "--days", "30", "--dry-run") == "Would drop 1 run and 1 event.\n"
        call("workflow:prune", "--days", "30")
        assert Event.objects.filter(type="tea.paid").exists()


# Options, as Python gives them


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [("5", int, 5), (5, int, 5), (5.0, int, 5), (" 7 ", int, 7), ("0.5", float, 0.5), (None, int, None)],
)
def test_numbers_are_read(value, kind, expected):
    assert number(value, "--n", kind, 0, 10) == expected


@pytest.mark.parametrize("value", ["", "x", "5.5", 5.5, True, "11", -1, "inf", float("nan"), [], "1" * 5000])
def test_what_is_no_such_number_is_refused(value):
    with pytest.raises(CommandError, match="--n must be a whole number from 0 to 10"):
        number(value, "--n", int, 0, 10)


def test_json_is_read_once_and_python_values_are_not():
    assert json_argument('"text"', "--x") == "text"
    assert json_argument({"a": 1}, "--x") == {"a": 1}
    assert json_argument(None, "--x") is None
