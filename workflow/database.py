"""What `WORKFLOW["DATABASE"]` must be before anything works on it: a PostgreSQL, migrated to this release."""

from __future__ import annotations

import pkgutil

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.migrations.recorder import MigrationRecorder
from django.utils.connection import ConnectionDoesNotExist

from workflow import migrations
from workflow.conf import conf


def other_kind() -> str | None:
    """What is wrong with a database that is no PostgreSQL, None with one that is. Raises for an unknown alias."""
    vendor = connections[conf.DATABASE].vendor
    if vendor == "postgresql":
        return None
    return f"Workflows need PostgreSQL; the database {conf.DATABASE!r} is {vendor}."


def other_kind_hint() -> str:
    """What to do about it."""
    return (
        f'Set DATABASES["{conf.DATABASE}"]["ENGINE"] to "django.db.backends.postgresql", or '
        'WORKFLOW["DATABASE"] to the alias of a PostgreSQL.'
    )


def postgresql() -> str:
    """The alias of the database to work on. Raises ``ImproperlyConfigured`` where that is no PostgreSQL: it would
    fail with whatever it makes of the first statement.
    """
    if (wrong := other_kind()) is not None:
        raise ImproperlyConfigured(f"{wrong} {other_kind_hint()}")
    return conf.DATABASE


def unapplied() -> list[str]:
    """The migrations of this release that the database does not have, in order."""
    if "workflow" in settings.MIGRATION_MODULES:  # moved, or switched off by a test run: not ours to judge
        return []
    connection = connections[conf.DATABASE]
    opened = connection.connection is None
    try:
        applied = {
            name for app, name in MigrationRecorder(connection).applied_migrations() if app == "workflow"
        }
    finally:
        if opened:
            connection.close()
    known = [module.name for module in pkgutil.iter_modules(migrations.__path__)]
    return sorted(name for name in known if not name.startswith("_") and name not in applied)


def unmigrated() -> str | None:
    """Which migrations are missing and what to do, in one line. None when none is, and when the database cannot be
    asked: that is said by whoever needs it next.
    """
    try:
        missing = unapplied()
    except (Error, ConnectionDoesNotExist):
        return None
    return f"{not_applied(missing)}: run {migrate()}" if missing else None


def not_applied(missing: list[str]) -> str:
    """The beginning of a sentence about them."""
    some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
    return f"migrations of workflow are not applied ({some})"


def migrate() -> str:
    """The command that applies them."""
    return "manage.py migrate" + ("" if conf.DATABASE == DEFAULT_DB_ALIAS else f" --database {conf.DATABASE}")
