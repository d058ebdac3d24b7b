"""What every test shares: a clear word instead of a hundred tracebacks when there is no PostgreSQL."""

import pytest
from django.db import connection
from django.db.utils import OperationalError
from pytest_django import DjangoDbBlocker

from example_project.database import unavailable


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, django_db_blocker: DjangoDbBlocker
) -> None:
    """Runs before the test database is made. A missing PostgreSQL fails the run, it skips nothing."""
    with django_db_blocker.unblock():
        try:
            with connection._nodb_cursor():
                pass
        except OperationalError as error:
            reason = unavailable(error)
            if reason is None:
                raise
            pytest.exit(f"the tests need PostgreSQL: {reason}", returncode=1)
