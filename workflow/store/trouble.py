"""What a database error means: gone for now, worth another try, or a refusal of what it was given."""

from __future__ import annotations

from typing import Final

import psycopg

READ_ONLY: Final = "25006"
"""What a server says that was the primary until a moment ago: the next connection will reach the new one."""


def is_connection_lost(error: BaseException) -> bool:
    """Whether the database went away, as against refusing what it was given."""
    cause = driver_error(error)
    if isinstance(cause, psycopg.InterfaceError) or getattr(cause, "sqlstate", None) == READ_ONLY:
        return True
    if not isinstance(cause, psycopg.OperationalError):
        return False
    state = cause.sqlstate
    return state is None or state[:2] in ("08", "57", "53", "58")


def is_passing(error: BaseException) -> bool:
    """A deadlock or a serialization failure: the same statements may succeed when tried again."""
    return isinstance(error, psycopg.Error) and error.sqlstate in ("40P01", "40001")


def is_in_the_way(error: BaseException) -> bool:
    """Whether it was another session, a migration's for example, that kept the statements from what they were to do."""
    return getattr(driver_error(error), "sqlstate", None) in ("40P01", "40001", "55P03")


def driver_error(error: BaseException) -> BaseException:
    """The driver's error behind that of Django."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, psycopg.Error):
        cause = cause.__cause__
    return cause or error


def is_zero_division(error: BaseException) -> bool:
    """A division by zero: how the guards of some statements undo all of what they are part of."""
    return isinstance(driver_error(error), psycopg.errors.DivisionByZero)
