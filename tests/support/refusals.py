"""Triggers as a project may have them on the tables of the engine: they refuse some rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def refusing(event: str, table: str, condition: str) -> Iterator[None]:
    """Meanwhile every `UPDATE` or `DELETE` (`event`) of a row that meets the condition (on OLD, or NEW) raises."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF {condition} THEN RAISE EXCEPTION 'the project says no'; END IF;
                RETURN coalesce(NEW, OLD);
            END $$;
            CREATE TRIGGER refuses BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION refuses()
            """
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TRIGGER refuses ON {table}; DROP FUNCTION refuses()")
