"""Which PostgreSQL the example project uses: the one in ``DATABASE_URL``, else the embedded one.

The embedded server starts with the first connection and stays up between commands, so that a look at a run
right after ``make demo`` finds it. ``make stop`` or ``python -m example_project.database stop`` ends it,
and so does removing the checkout: PostgreSQL notices within a minute that its folder is gone.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.db.utils import OperationalError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from example_project.embedded import DATABASE_NAME, SUPERUSER, InUse, Unavailable, embedded


def from_environment() -> dict[str, Any]:
    """The entry for ``DATABASES``. Connects to nothing; a ``DATABASE_URL`` that cannot be right raises
    ``ImproperlyConfigured``."""
    url = os.environ.get("DATABASE_URL", "").strip()
    if url:
        entry = from_url(url)
    else:
        entry = {
            "ENGINE": "example_project.postgres",
            "NAME": DATABASE_NAME,
            "USER": SUPERUSER,
            "HOST": str(embedded.socket_folder),
        }
    # Concurrent test runs on one server need a database each.
    if test_name := os.environ.get("TEST_DATABASE_NAME"):
        entry["TEST"] = {"NAME": test_name}
    return entry


def from_url(url: str) -> dict[str, Any]:
    """``postgresql://user:password@host:port/name?option=value`` as an entry for ``DATABASES``.

    libpq's own parser reads it, so percent-encoding, sockets (``?host=/run/postgresql``), several hosts and
    every connection option mean here what they mean to psql. The message never repeats the URL: it may hold a
    password.
    """
    problem = None
    params: dict[str, Any] = {}
    if not url.startswith(("postgresql://", "postgres://")):
        problem = "is no postgresql:// URL"
    else:
        try:
            params = dict(conninfo_to_dict(url))
        except psycopg.ProgrammingError:
            problem = "cannot be read: percent-encode special characters in its user, password and name"
        else:
            if not params.get("dbname"):
                problem = "names no database"
    if problem:
        raise ImproperlyConfigured(f"DATABASE_URL {problem} (postgresql://user:password@host:5432/name).")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": params.pop("dbname"),
        "USER": params.pop("user", ""),
        "PASSWORD": params.pop("password", ""),
        "HOST": params.pop("host", ""),
        "PORT": params.pop("port", ""),
        "OPTIONS": params,
    }


def unavailable(error: BaseException) -> str | None:
    """One line that tells what to do when ``error`` says that no database can be had; None for anything
    else.
    """
    if isinstance(error, (Unavailable, ImproperlyConfigured)):
        return _one_line(error)
    cause = error.__cause__
    if isinstance(error, OperationalError) and isinstance(cause, psycopg.OperationalError):
        text = _one_line(cause)
        # psycopg has no class for "could not connect"; a server that goes away later must keep its traceback.
        if text.startswith(
            ("connection failed", "connection timeout", "failed to resolve", "connection is bad")
        ):
            hint = "mend DATABASE_URL, or unset it to use the embedded PostgreSQL"
            return f"no PostgreSQL could be reached ({text}); {hint}"
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def main(arguments: list[str] | None = None) -> int:
    """``start | stop [--force] | status | url`` for the embedded server; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m example_project.database", description=main.__doc__)
    parser.add_argument("command", choices=["start", "stop", "status", "url"])
    parser.add_argument("--force", action="store_true", help="stop also while others are connected")
    options = parser.parse_args(arguments)
    try:
        match options.command:
            case "start":
                embedded.ensure_running()
            case "stop":
                embedded.stop(force=options.force)
            case "status":
                print("running" if embedded.running() else "stopped")
            case "url":
                print(make_conninfo(host=str(embedded.socket_folder), user=SUPERUSER, dbname=DATABASE_NAME))
    except (Unavailable, InUse) as error:
        print(_one_line(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
