"""The example project's settings and manage.py, as somebody meets them who has just checked it out."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.contrib.staticfiles import finders
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.db.utils import OperationalError
from django.test import Client

from example_project import database
from example_project.embedded import Unavailable

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "postgresql://me:s3cret@127.0.0.1:1/shop"


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql://me:secret@db.example:5433/shop",
            {
                "NAME": "shop",
                "USER": "me",
                "PASSWORD": "secret",
                "HOST": "db.example",
                "PORT": "5433",
                "OPTIONS": {},
            },
        ),
        (
            "postgres:///shop",
            {"NAME": "shop", "USER": "", "PASSWORD": "", "HOST": "", "PORT": "", "OPTIONS": {}},
        ),
        (
            "postgresql://m%40e:p%2F%3A%25%23w%20d@db/my%20shop",
            {"NAME": "my shop", "USER": "m@e", "PASSWORD": "p/:%#w d", "HOST": "db"},
        ),
        ("postgresql://%2Frun%2Fpostgresql/shop", {"HOST": "/run/postgresql", "NAME": "shop"}),
        ("postgresql:///shop?host=/run/postgresql&port=6432", {"HOST": "/run/postgresql", "PORT": "6432"}),
        ("postgresql://[::1]:5432/shop", {"HOST": "::1", "PORT": "5432"}),
        ("postgresql://a:1,b:2/shop", {"HOST": "a,b", "PORT": "1,2"}),
        (
            "postgresql://db/shop?sslmode=require&connect_timeout=3&options=-c%20lock_timeout%3D5s",
            {"OPTIONS": {"sslmode": "require", "connect_timeout": "3", "options": "-c lock_timeout=5s"}},
        ),
    ],
)
def test_a_database_url_means_what_it_means_to_psql(url: str, expected: dict[str, Any]) -> None:
    entry = database.from_url(url)
    assert entry["ENGINE"] == "django.db.backends.postgresql"
    assert {key: entry[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://me:s3cret@db/shop", "is no postgresql:// URL"),
        ("shop", "is no postgresql:// URL"),
        ("postgresql://me:s3cret@db:5432", "names no database"),
        ("postgresql://me:s3cret@db/shop?nonsense=1", "cannot be read"),
        ("postgresql://me:s3cret%zz@db/shop", "cannot be read"),
        ("postgresql://me:s3cret@[::1/shop", "cannot be read"),
    ],
)
def test_a_database_url_that_cannot_be_right_is_refused_without_repeating_it(url: str, problem: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=problem) as caught:
        database.from_url(url)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_without_a_url_the_embedded_server_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("TEST_DATABASE_NAME", "test_of_mine")
    entry = database.from_environment()
    assert entry["ENGINE"] == "example_project.postgres"
    assert entry["TEST"] == {"NAME": "test_of_mine"}


def test_the_url_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", f" {NOWHERE} ")
    assert database.from_environment()["PORT"] == "1"


@pytest.mark.parametrize("command", ["help", "check"])
@pytest.mark.parametrize("url", [NOWHERE, ""])
def test_help_and_check_need_no_database(command: str, url: str) -> None:
    # The embedded server is made to fail if anything so much as asks for it.
    code = f"""
import sys
from example_project.embedded import EmbeddedPostgres
def refuse(self):
    sys.exit("the embedded server was asked for")
EmbeddedPostgres.ensure_running = refuse
sys.argv = ["manage.py", {command!r}]
import manage
manage.main()
"""
    done = python("-c", code, DATABASE_URL=url)
    assert done.returncode == 0, done.stderr
    if command == "help":
        assert "workflow:worker" in done.stdout


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (NOWHERE, "manage.py: no PostgreSQL could be reached (connection failed: "),
        ("postgresql://no.such.host.invalid/shop", "manage.py: no PostgreSQL could be reached ("),
        ("mysql://me:s3cret@db/shop", "manage.py: DATABASE_URL is no postgresql:// URL"),
    ],
)
def test_a_database_that_cannot_be_reached_is_one_line_on_stderr(url: str, says: str) -> None:
    done = python("manage.py", "migrate", DATABASE_URL=url)
    assert done.returncode == 1
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1
    assert "s3cret" not in done.stderr
    assert "DATABASE_URL" in done.stderr


def test_the_tests_end_with_one_line_when_there_is_no_database() -> None:
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/edges/test_example_project.py", "-k",
                  "a_query_that_fails", DATABASE_URL=NOWHERE)  # fmt: skip
    assert done.returncode == 1
    assert "Exit: the tests need PostgreSQL: no PostgreSQL could be reached" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.django_db
def test_a_query_that_fails_keeps_its_traceback() -> None:
    with pytest.raises(OperationalError) as caught, connection.cursor() as cursor:
        cursor.execute("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '57014'; END $$")
    assert database.unavailable(caught.value) is None


def test_only_a_missing_database_is_told_in_one_line() -> None:
    assert database.unavailable(Unavailable("none\nhere")) == "none here"
    assert database.unavailable(ValueError("connection failed")) is None
    gone = OperationalError("x")
    gone.__cause__ = psycopg.OperationalError(
        "consuming input failed: server closed the connection unexpectedly"
    )
    assert database.unavailable(gone) is None


def test_the_server_can_be_looked_after_by_hand() -> None:
    assert python("-m", "example_project.database", "start").returncode == 0
    assert python("-m", "example_project.database", "status").stdout == "running\n"
    url = python("-m", "example_project.database", "url").stdout.strip()
    with psycopg.connect(url) as ours:
        assert ours.execute("SELECT current_database()").fetchone() == ("django_saga",)
        refused = python("-m", "example_project.database", "stop")
    assert refused.returncode == 1
    assert "was left running" in refused.stderr
    assert python("-m", "example_project.database", "status").stdout == "running\n"


def test_browsers_find_an_icon_on_pages_that_name_none() -> None:
    answer = Client().get("/favicon.ico")
    assert (answer.status_code, answer["Location"]) == (302, "/static/workflow/dashboard/icon.svg")
    assert finders.find("workflow/dashboard/icon.svg")
