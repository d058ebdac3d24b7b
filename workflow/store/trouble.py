"""What a database error means: gone for now, worth another try, or a refusal of what it was given.

Whatever is none of these says nothing about the data: a plan that a migration has made void, a table that is not there
yet, a statement that somebody has cancelled, a bug.
"""

from __future__ import annotations

import re
from typing import Final

import psycopg

READ_ONLY: Final = "25006"
"""What a server says that was the primary until a moment ago: the next connection will reach the new one."""


_AWAY: Final = ("08", "57P")
"""What the codes of a database that is away begin with: connections that fail, a server that is shut down or starts."""
_AWAY_AT_ALL: Final = ("53000", "53100", "53300", "58000")
"""The same in full: it has no room for anybody, no disk left, no connection left, or a pooler has no server. Not that
one statement was cancelled (57014), had too little memory (53200), was past a limit (53400) or met a bad block (58030):
its neighbours may be well."""
_REFUSALS: Final = ("22", "23", "44", "54", "P0")
"""The classes of errors that are about what was to be stored: data, constraints, views, limits (JSON that is nested too
deeply), and what a trigger raises."""
_POSTGRESQLS: Final = (
    "00 01 02 03 08 09 0A 0B 0F 0L 0P 0Z 20 21 22 23 24 25 26 27 28 2B 2D 2F 34 38 39 3B 3D 3F 40 42 44 53 54"
    " 55 57 58 72 F0 HV P0 XX"
)
"""All classes that PostgreSQL's manual lists."""

_ANSWER: Final = re.compile(r" failed: FATAL:\s+(.+)")


def is_connection_lost(error: BaseException) -> bool:
    """Whether the database went away, as against refusing what it was given."""
    cause = driver_error(error)
    if isinstance(cause, psycopg.InterfaceError) or getattr(cause, "sqlstate", None) == READ_ONLY:
        return True
    if not isinstance(cause, psycopg.OperationalError):
        return False
    state = cause.sqlstate
    return state is None or state.startswith(_AWAY) or state in _AWAY_AT_ALL


def refused_by_server(error: BaseException) -> str | None:
    """What the server answered instead of letting anybody in (no such database, a wrong password), in one line; None
    for any other error.

    Such an error has no code: libpq hands on the text alone, with the severity before it. In a language in which that
    is another word the answer is not told from a server that is away.
    """
    cause = driver_error(error)
    if not isinstance(cause, psycopg.OperationalError) or cause.sqlstate is not None:
        return None
    found = _ANSWER.search(str(cause))
    return None if found is None else " ".join(found[1].split())


def is_refusal(error: BaseException) -> bool:
    """Whether it is about the data: what was refused now is refused for ever.

    A class that PostgreSQL does not have is somebody's own, by a RAISE in a trigger. Class 42 is no refusal, though a
    trigger that is broken raises it: whatever is missing or forbidden there says nothing about this boundary, and comes
    with the next migration.
    """
    cause = driver_error(error)
    if isinstance(cause, psycopg.DataError | psycopg.IntegrityError):
        return True
    state = getattr(cause, "sqlstate", None)
    return state is not None and (state.startswith(_REFUSALS) or state[:2] not in _POSTGRESQLS)


def is_passing(error: BaseException) -> bool:
    """A deadlock or a serialization failure: the same statements may succeed when tried again."""
    return isinstance(error, psycopg.Error) and error.sqlstate in ("40P01", "40001")


def is_in_the_way(error: BaseException) -> bool:
    """Whether it was another session, a migration's for example, that kept the statements from what they were to do."""
    return getattr(driver_error(error), "sqlstate", None) in ("40P01", "40001", "55P03")


def blames_statement(error: BaseException) -> bool:
    """Whether the database would not take what it was given, as against being away, or another session's lock."""
    return (
        isinstance(driver_error(error), psycopg.Error)
        and not is_connection_lost(error)
        and not is_in_the_way(error)
    )


def driver_error(error: BaseException) -> BaseException:
    """The driver's error behind that of Django."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, psycopg.Error):
        cause = cause.__cause__
    return cause or error


def is_zero_division(error: BaseException) -> bool:
    """A division by zero: how the guards of some statements undo all of what they are part of."""
    return isinstance(driver_error(error), psycopg.errors.DivisionByZero)
