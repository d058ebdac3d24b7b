"""What every test shares: a clear word instead of a hundred tracebacks when there is no PostgreSQL."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import SyncToAsync
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.utils import OperationalError
from pytest_django import DjangoDbBlocker

from example_project.database import unavailable
from tests.support.workers import eventually

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell that starts us in the background has us ignore it, and so would all that tests start and then interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, django_db_blocker: DjangoDbBlocker
) -> None:
    """Runs before the test database is made. A missing PostgreSQL fails the run, it skips nothing."""
    with django_db_blocker.unblock():
        default = connections[DEFAULT_DB_ALIAS]
        probe = default.__class__({**default.settings_dict, "NAME": None}, alias="probe")  # "postgres"
        try:
            probe.ensure_connection()
        except OperationalError as error:
            reason = unavailable(error)
            if reason is None:
                raise
            pytest.exit(f"the tests need PostgreSQL: {reason}", returncode=1)
        finally:
            probe.close()


@pytest.fixture(autouse=True)
def _async_orm() -> Iterator[None]:
    """Async code uses the ORM in one thread of the process: no test hands its connections there to the next, whole or
    cut."""
    yield
    SyncToAsync.single_thread_executor.submit(connections.close_all).result(60)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """A server process takes a moment to see that its client is gone: as long the database cannot be dropped."""
    yield
    with django_db_blocker.unblock():
        eventually(lambda: not _others(), 10, lambda: f"somebody still uses the test database: {_others()}")


def _others() -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, application_name, state, query FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        return cursor.fetchall()
