"""How the commands refuse: one line, an exit status, and nothing done."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError
from django.db import ProgrammingError, connection, connections
from django.test import override_settings

from tests.edges.commands.conftest import NOBODY, call, end
from tests.support.workers import REPOSITORY, database_url
from workflow import RunNotFound, states, worker, workflows
from workflow.management.base import database_trouble
from workflow.models import Event, Run

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
    ("workflow:dispatch", "commands-free", "--queue", "#events"),
    ("workflow:list", "--limit", "9" * 400),
    ("workflow:prune", "--batch-size", "9" * 400),
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
    ("workflow:dispatch", "commands-free", "--wait", "--timeout", "1e10"),
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


def test_bounds_are_written_out(manage):
    found = manage("workflow:dispatch", "commands-free", "--priority", str(2**31)).err
    bounds = "from -2,147,483,648 to 2,147,483,647"
    assert found == f"CommandError: --priority must be a whole number {bounds}, not '2147483648'\n"


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
        ("workflow:worker", "--burst"),
        ("workflow:worker", "--burst", "--processes", "2"),
        ("workflow:worker", "--burst", "--max-jobs", "5"),
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


def test_a_file_is_read_from_standard_input_which_the_refusal_of_a_name_says(manage):
    result = manage("workflow:dispatch", "commands-free", "--input", "@order.json")
    assert result.code == 1
    assert result.err.endswith("; read a file with --input - < order.json\n")


def test_an_empty_standard_input_is_called_that(manage, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    result = manage("workflow:dispatch", "commands-free", "--input", "-")
    assert (result.code, result.err) == (
        1,
        "CommandError: --input - was given nothing: standard input is empty\n",
    )


def test_the_bounds_of_a_number_are_whole_where_they_are(manage):
    result = manage("workflow:dispatch", "commands-free", "--wait", "--timeout", "x")
    assert result.err == "CommandError: --timeout must be a number from 0 to 315,576,000, not 'x'\n"


def test_names_of_queues_that_are_run_together_are_warned_of(manage, monkeypatch):
    monkeypatch.setattr(worker, "refusal", lambda: "enough is seen")
    result = manage("workflow:worker", "--burst", "--queue", "reports,default", "slow")
    assert result.err.splitlines() == [
        "--queue: reports,default is one queue; names of several are separated by spaces",
        "CommandError: enough is seen",
    ]


@pytest.mark.parametrize(
    ("published", "said"),
    [
        ("tea.payd", 'no workflow here waits for "tea.payd"; did you mean "tea.paid"?\n'),
        ("tea.paid", ""),
        ("invoice.sent", ""),  # there may be others that wait for it
    ],
)
def test_an_event_that_is_nearly_one_waited_for_is_published_with_a_word(manage, published, said):
    result = manage("workflow:publish", published)
    assert (result.code, result.out, result.err) == (0, f"Published {published}.\n", said)


@pytest.fixture
def sqlite(monkeypatch):
    """The database that `startproject` gives a project."""
    entry = {**connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    monkeypatch.setitem(connections.settings, "light", entry)
    with override_settings(WORKFLOW={"DATABASE": "light"}):
        yield "Workflows need PostgreSQL; the database 'light' is sqlite. Set DATABASES[\"light\"]"
    del connections["light"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("workflow:dispatch", "commands-tea", "--input", '{"tea": "sencha"}'),
        ("workflow:list",),
        ("workflow:top", "--json"),
        ("workflow:status", str(NOBODY)),
        ("workflow:cancel", str(NOBODY)),
        ("workflow:publish", "tea.paid"),
        ("workflow:prune", "--dry-run"),
        ("workflow:pause", "--list"),
    ],
    ids=told,
)
def test_a_database_that_is_no_postgresql_is_named(manage, sqlite, arguments):
    result = manage(*arguments)
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert result.err.startswith(f"CommandError: {sqlite}")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: workflows.dispatch("commands-tea", {"tea": "sencha"}),
        lambda: workflows.status(NOBODY),
        lambda: workflows.list(),
        lambda: workflows.publish("tea.paid"),
    ],
)
def test_a_database_that_is_no_postgresql_is_named_to_callers_in_python(sqlite, ask):
    with pytest.raises(ImproperlyConfigured) as refused:
        ask()
    assert str(refused.value).startswith(sqlite)


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
