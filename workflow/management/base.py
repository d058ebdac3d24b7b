"""What all `workflow:*` commands share: refusals on one line, reading arguments, the base class."""

from __future__ import annotations

import contextlib
import getpass
import json
import math
import os
import sys
from argparse import SUPPRESS
from collections.abc import Iterator
from typing import Any, Literal, NoReturn, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import InterfaceError, OperationalError, ProgrammingError, connections
from django.db.transaction import TransactionManagementError
from django.utils.connection import ConnectionDoesNotExist

from workflow.conf import conf
from workflow.database import migrate, other_kind, other_kind_hint, unmigrated
from workflow.errors import WorkflowError
from workflow.management.output import Output
from workflow.models import Worker
from workflow.terminal import one_line

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 and the number of SIGINT."""
_UNDEFINED_TABLE = "42P01"
_UNDEFINED = {_UNDEFINED_TABLE, "42703", "42883"}
"""A table, a column, a function: what a database lacks whose migrations are of another release."""
NONE_REGISTERED = "No workflow is registered at all: are the apps with your workflows.py in INSTALLED_APPS?"
Number = TypeVar("Number", int, float)
Checks = list[str] | tuple[str, ...] | Literal["__all__"]


class NotMigrated(Exception):
    """The database is that of an older release; the message is one line for people."""


def refusal(reason: object) -> CommandError:
    """A CommandError whose message is one printable line."""
    return CommandError(one_line(reason))


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Around a call of the manager: its ValueError and TypeError say that an argument was wrong."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise refusal(error) from error


def database_trouble(error: Exception) -> str | None:
    """What to tell the person at the keyboard when the database can't be used; None for any other error."""
    if isinstance(error, (OperationalError, InterfaceError)):
        return f"the database cannot be used: {error}"
    if isinstance(error, NotMigrated):
        return str(error)
    if isinstance(error, ProgrammingError) and (code := _sqlstate(error)) in _UNDEFINED:
        if (reason := unmigrated()) is not None:
            return reason
        if code == _UNDEFINED_TABLE:
            return f"the workflow tables are missing from the database: run {migrate()}"
    if isinstance(error, TransactionManagementError):
        return str(error)
    if isinstance(error, (ImproperlyConfigured, ConnectionDoesNotExist)):
        return f"the settings are wrong: {error}"
    return None


def _sqlstate(error: Exception) -> str:
    return getattr(error.__cause__, "sqlstate", None) or ""


def look_for_tables() -> None:
    """Raises what `database_trouble` explains if the workflow tables, or their whole database, are not there, or not
    as this release needs them.

    For commands that meet errors again and again: each of those would be told with a traceback.
    """
    connection = connections[conf.DATABASE]
    opened = connection.connection is None
    try:
        Worker.objects.using(conf.DATABASE).exists()
        if (reason := unmigrated()) is not None:
            raise NotMigrated(reason)
    finally:
        if opened:
            connection.close()


def operator() -> str:
    """Who is at the keyboard, for a run's history. A name that no column could hold keeps nobody from acting."""
    try:
        return f"cli:{one_line(getpass.getuser(), 200)}"
    except (OSError, KeyError):  # a user that the system has no name for, as in many containers
        return "cli"


def json_argument(value: Any, option: str) -> Any:
    """The value of an option that takes JSON; "-" reads standard input.

    A caller in Python may give plain data. Raises CommandError for what is not JSON; NaN and the
    infinities are not.
    """
    if not isinstance(value, str):
        return value
    text = sys.stdin.read() if value == "-" else value
    if value == "-" and not text.strip():
        raise refusal(f"{option} - was given nothing: standard input is empty")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else error
        hint = f"; read a file with {option} - < {value[1:]}" if value.startswith("@") else ""
        raise refusal(f"{option} is not valid JSON: {reason}{hint}") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def number(
    value: Any, option: str, kind: type[Number], minimum: float, maximum: float = math.inf
) -> Number | None:
    """The value of an option that takes a number between two bounds; None when it wasn't given."""
    if value is None:
        return None
    try:
        found = kind(value) if not isinstance(value, bool) else None
        if found is not None and kind is int and isinstance(value, float) and value != found:
            found = None
    except (ValueError, TypeError, OverflowError):
        found = None
    if found is None or not minimum <= found <= maximum or found == math.inf:
        word = "a whole number" if kind is int else "a number"
        bounds = f"of at least {minimum:,}" if math.isinf(maximum) else f"from {minimum:,} to {maximum:,.0f}"
        raise refusal(f"{option} must be {word} {bounds}, not {one_line(value, 60)!r}")
    return found


class WorkflowCommand(BaseCommand):
    """Base of the commands.

    A bad argument, an unknown run and a refusal of the manager are a CommandError for a caller in
    Python; on the command line one line on stderr and exit status 1. `--traceback` shows where it
    came from.
    """

    # Whoever looks at runs or stops one must not be held up by a fault elsewhere in the project.
    requires_system_checks: Checks = ()

    output: Output

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        # Makes the parser raise CommandError instead of printing its usage and exiting with 2.
        parser.called_from_command_line = False
        if not self.requires_system_checks:
            parser.add_argument("--skip-checks", action="store_true", help=SUPPRESS)
        return parser

    def run_from_argv(self, argv: list[str]) -> None:
        try:
            super().run_from_argv(argv)
        except CommandError as error:  # from the parser: the rest has been dealt with in there
            if "--traceback" in argv:
                raise
            self.stderr.write(f"CommandError: {one_line(str(error).removeprefix('Error: '))}")
            sys.exit(error.returncode)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # Whoever read the output has gone. Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except CommandError:
            raise
        except WorkflowError as error:
            raise refusal(error) from error
        except Exception as error:
            if (reason := database_trouble(error)) is None:
                raise
            raise refusal(reason) from error

    def handle(self, *args: Any, **options: Any) -> str | None:
        self.output = Output(
            self.stdout, force_color=bool(options["force_color"]), no_color=bool(options["no_color"])
        )
        if (wrong := other_kind()) is not None:  # before it makes something strange of the first statement
            raise refusal(f"{wrong} {other_kind_hint()}")
        self.run(**options)
        return None

    def run(self, **options: Any) -> None:
        """What the command does; `self.output` takes what it prints."""
        raise NotImplementedError
