"""A server of the tests' own: what migrates back and forth must not be the test database that others share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import DjangoDbBlocker

from tests.support.cluster import Cluster, cluster
from tests.support.crash import prepare, registered
from tests.support.workers import Launcher


@pytest.fixture(scope="module")
def server(django_db_blocker: DjangoDbBlocker) -> Iterator[Cluster]:
    """Migrated to the latest; Django's default database is on it."""
    with django_db_blocker.unblock(), cluster() as made:
        yield made


@pytest.fixture
def workers_there(server: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Starts workers on that server."""
    with registered(), Launcher(tmp_path_factory.mktemp("workers"), prepare()) as made:
        try:
            yield made
        finally:
            made.end_all()
