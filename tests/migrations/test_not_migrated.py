"""What is said of a database that is that of an older release, or of none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command

from tests.migrations.test_migrations import migrate, names
from tests.support.cluster import Cluster
from workflow import Stage, Workflow, workflows
from workflow.registry import registry

NOBODY = "01997a5e-6c00-7d41-9b1e-4a5c2f300000"
COMMANDS: list[tuple[str, ...]] = [
    ("workflow:dispatch", "early"),
    ("workflow:list",),
    ("workflow:status", NOBODY),
    ("workflow:top", "--json"),
    ("workflow:retry", NOBODY),
    ("workflow:cancel", NOBODY),
    ("workflow:resume", NOBODY),
    ("workflow:pause", "--list"),
    ("workflow:unpause", "emails"),
    ("workflow:publish", "bird.caught"),
    ("workflow:prune", "--dry-run"),
    ("workflow:sweep", "--once"),
    ("workflow:worker", "--burst"),
    ("workflow:worker", "--check"),
]


@pytest.fixture(scope="module")
def early(server: Cluster) -> Iterator[None]:
    """The database as it was one migration ago, and a workflow to dispatch."""
    migrate(names()[-2])
    with registry.isolated():
        workflows.register(Workflow("early", stages=[Stage("bird", run=lambda state: None)]))
        yield
    migrate(names()[-1])


@pytest.fixture
def empty(early: None) -> Iterator[None]:
    migrate("zero")
    yield
    migrate(names()[-2])


def said_by_check(**options: Any) -> list[tuple[str, str, str]]:
    """What `check --deploy` has to say of workflows."""
    messages = run_checks(include_deployment_checks=True, **options)
    return [(one.id, one.msg, one.hint or "") for one in messages if (one.id or "").startswith("workflow.")]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_without_any_table_each_command_says_what_to_run(empty: None, arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError) as refused:
        call_command(*arguments)
    first = ", ".join(names()[:3])
    assert (
        str(refused.value) == f"migrations of workflow are not applied ({first}, ...): run manage.py migrate"
    )


@pytest.mark.parametrize(
    "arguments",
    [("workflow:dispatch", "early"), ("workflow:sweep", "--once"), ("workflow:worker", "--burst")],
    ids=" ".join,
)
def test_tables_of_an_older_release_are_told_from_a_fault(early: None, arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError) as refused:
        call_command(*arguments)
    assert str(refused.value) == (
        f"migrations of workflow are not applied ({names()[-1]}): run manage.py migrate"
    )


@pytest.mark.parametrize("databases", [None, ["default"]], ids=["unasked", "asked"])
def test_the_check_before_a_deployment_names_the_migrations(early: None, databases: list[str] | None) -> None:
    assert said_by_check(databases=databases) == [
        (
            "workflow.W006",
            f"Migrations of workflow are not applied ({names()[-1]}).",
            "Run manage.py migrate.",
        )
    ]


def test_the_check_of_an_empty_database_is_one_warning_too(empty: None) -> None:
    [(code, message, _)] = said_by_check(databases=["default"])
    assert code == "workflow.W006"
    assert message.startswith("Migrations of workflow are not applied (0001_initial, ")
