import subprocess
import sys
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings
from psycopg import IsolationLevel

from workflow import Stage, Workflow, WorkflowInvalid
from workflow.checks import (
    check_can_view_run,
    check_database,
    check_definitions,
    check_isolation,
    check_routers,
    check_settings,
    check_transport,
)
from workflow.registry import registry


def found(check: Any, **given: Any) -> list[tuple[str, str]]:
    with override_settings(WORKFLOW=given):
        return [(message.id or "", message.msg) for message in check()]


def test_the_project_as_it_is_passes() -> None:
    assert list(run_checks(tags=["workflow"])) == []


def test_an_unknown_setting_is_an_error_that_names_the_closest() -> None:
    assert found(check_settings, CONCURENCY=5) == [
        ("workflow.E001", 'WORKFLOW["CONCURENCY"] is no setting of WORKFLOW; did you mean CONCURRENCY?')
    ]


def test_every_wrong_setting_is_reported_at_once() -> None:
    assert found(check_settings, CONCURRENCY="8", POLL_INTERVAL=0, NONSENSE=1) == [
        ("workflow.E001", "WORKFLOW[\"CONCURRENCY\"] must be a whole number, not the str '8'."),
        ("workflow.E001", 'WORKFLOW["POLL_INTERVAL"] must be at least 0.01 seconds, not 0.'),
        ("workflow.E001", 'WORKFLOW["NONSENSE"] is no setting of WORKFLOW.'),
    ]


def test_heartbeats_too_rare_for_the_lease_are_an_error() -> None:
    [(_, message)] = found(check_settings, HEARTBEAT_INTERVAL=60, STALE_LEASE_THRESHOLD=60)
    assert message == (
        'WORKFLOW["HEARTBEAT_INTERVAL"] must be below half of STALE_LEASE_THRESHOLD, 30 seconds, not 60.'
    )


@override_settings(WORKFLOW=None)
def test_a_setting_that_is_no_dict_is_one_error() -> None:
    assert [message.msg for message in check_settings()] == ["WORKFLOW must be a dict, not None."]
    assert check_database() == []


def test_an_alias_that_does_not_exist_is_an_error() -> None:
    assert found(check_database, DATABASE="orders") == [
        ("workflow.E002", "WORKFLOW[\"DATABASE\"] 'orders' is not in DATABASES (default).")
    ]


def test_an_alias_of_the_wrong_type_is_reported_once() -> None:
    assert found(check_database, DATABASE=5) == []
    assert len(found(check_settings, DATABASE=5)) == 1


def test_a_database_that_is_no_postgresql_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import connections

    entry = {**connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    monkeypatch.setitem(connections.settings, "light", entry)
    try:
        assert found(check_database, DATABASE="light") == [
            ("workflow.E003", "Workflows need PostgreSQL; the database 'light' is sqlite.")
        ]
        with override_settings(WORKFLOW={"DATABASE": "light"}):
            hint = check_database()[0].hint or ""
        assert 'Set DATABASES["light"]["ENGINE"] to "django.db.backends.postgresql"' in hint
        assert 'WORKFLOW["DATABASE"]' in hint
    finally:
        del connections["light"]


class ToFlows:
    """As docs/reference/settings.md has it."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "flows" if model._meta.app_label == "workflow" else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == "flows" if app_label == "workflow" else None


class ToFlowsOnceMigrated:
    """It says nothing about migrations."""

    db_for_write = ToFlows.db_for_write


class OfTenants:
    """It knows the tenant from the request, of which there is none."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        raise LookupError("no tenant")


def test_a_router_that_raises_is_told_and_stops_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import connections, router

    monkeypatch.setitem(connections.settings, "flows", {**connections.settings["default"]})
    monkeypatch.setattr(router, "routers", [OfTenants()])
    message = "A router of DATABASE_ROUTERS cannot tell where workflows go: LookupError: no tenant"
    assert found(check_routers, DATABASE="flows") == [("workflow.W005", message)]


LIGHT = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


@pytest.mark.parametrize(
    ("routers", "default", "expected"),
    [
        ([ToFlows()], LIGHT, []),
        ([ToFlows()], {}, []),
        ([ToFlowsOnceMigrated()], {}, []),
        ([ToFlowsOnceMigrated()], LIGHT, ["workflow.E007"]),
        ([ToFlowsOnceMigrated()], {"ENGINE": "django.db.backends.dummy"}, []),
        ([], {}, ["workflow.W005"]),
        ([], LIGHT, ["workflow.W005", "workflow.E007"]),
    ],
)
def test_another_database_without_a_router_is_told_before_migrate_fails(
    monkeypatch: pytest.MonkeyPatch, routers: list[Any], default: dict[str, Any], expected: list[str]
) -> None:
    from django.db import connections, router

    ours = connections.settings["default"]
    monkeypatch.setitem(connections.settings, "flows", {**ours})
    monkeypatch.setitem(connections.settings, "default", {**ours, **default})
    monkeypatch.setattr(router, "routers", routers)
    before = connections["default"]
    del connections["default"]
    try:
        found_now = found(check_routers, DATABASE="flows")
        assert [message_id for message_id, _ in found_now] == expected
        if len(found_now) == 2:
            assert [message for _, message in found_now] == [
                "Django writes workflows to the database 'default', and WORKFLOW[\"DATABASE\"] is 'flows'.",
                "migrate makes the workflow tables in the database 'default' as well, which is sqlite.",
            ]
        with override_settings(WORKFLOW={"DATABASE": "flows"}):
            assert all("DATABASE_ROUTERS" in (message.hint or "") for message in check_routers())
    finally:
        del connections["flows"]
        connections["default"] = before


@pytest.mark.parametrize(
    ("options", "strict"),
    [
        ({}, False),
        ({"isolation_level": IsolationLevel.READ_COMMITTED}, False),
        ({"isolation_level": IsolationLevel.READ_UNCOMMITTED}, False),
        ({"isolation_level": IsolationLevel.REPEATABLE_READ}, True),
        ({"isolation_level": IsolationLevel.SERIALIZABLE}, True),
        ({"isolation_level": int(IsolationLevel.SERIALIZABLE)}, True),
        ({"options": "-c statement_timeout=5s -c default_transaction_isolation=serializable"}, True),
        ({"options": r"-c default_transaction_isolation=REPEATABLE\ READ"}, True),
        ({"options": r"-c default_transaction_isolation=read\ committed"}, False),
    ],
)
def test_stricter_isolation_than_read_committed_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], strict: bool
) -> None:
    from django.db import connections

    monkeypatch.setitem(
        connections.settings, "flows", {**connections.settings["default"], "OPTIONS": options}
    )
    try:
        messages = found(check_isolation, DATABASE="flows")
        assert [message_id for message_id, _ in messages] == (["workflow.W004"] if strict else [])
        assert found(check_isolation) == [], "what other databases do is nobody's business"
    finally:
        del connections["flows"]


@pytest.mark.parametrize(
    ("transport", "why"),
    [
        ("workflow.transports.pigeon", "No module named 'workflow.transports.pigeon'"),
        ("workflow.errors", 'Module "workflow.errors" does not define a "Doorbell" attribute/class'),
        ("nonsense", "No module named 'nonsense'"),
    ],
)
def test_a_transport_that_is_no_such_module_is_an_error(transport: str, why: str) -> None:
    assert found(check_transport, TRANSPORT=transport) == [
        ("workflow.E005", f'WORKFLOW["TRANSPORT"] {transport!r} cannot be used: {why}.')
    ]


def test_the_transports_of_the_package_pass() -> None:
    assert found(check_transport, TRANSPORT="workflow.transports.postgres") == []
    assert found(check_transport, TRANSPORT="workflow.transports.celery") == []
    assert found(check_transport, TRANSPORT=None) == []


def test_a_faulty_definition_is_an_error_with_its_module() -> None:
    with pytest.raises(WorkflowInvalid) as caught:
        Workflow("order", stages=[Stage("pay", actions=[])])
    with registry.isolated():
        registry.faults = [("shop.workflows", caught.value)]
        [message] = check_definitions()
    assert (message.id, message.obj, message.msg) == ("workflow.E004", "shop.workflows", str(caught.value))


@override_settings(WORKFLOW={"THREADS": 0})
def test_manage_py_check_fails_on_any_of_these() -> None:
    with pytest.raises(
        SystemCheckError, match=r"\(workflow\.E001\) WORKFLOW\[\"THREADS\"\] must be at least 1, not 0"
    ):
        call_command("check")


WITHOUT_PGTRIGGER = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["workflow"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}},
)
django.setup()
"""


def test_a_project_without_pgtrigger_is_told_to_add_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PGTRIGGER], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "django.core.exceptions.ImproperlyConfigured: "
        'Add "pgtrigger" to INSTALLED_APPS: the app "workflow" needs it.'
    )


@pytest.mark.parametrize(
    "wanted", ["from workflow import workflows; workflows.dispatch('order')", "import workflow.api.urls"]
)
def test_a_project_without_the_app_itself_is_told_to_add_it(wanted: str) -> None:
    program = WITHOUT_PGTRIGGER.replace('["workflow"]', '["django.contrib.contenttypes"]') + wanted
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        'django.core.exceptions.ImproperlyConfigured: Add "workflow" and "pgtrigger" to INSTALLED_APPS.'
    )


@pytest.mark.parametrize("short", ["celery", "transports.celery", "Postgres"])
def test_a_transport_named_without_its_package_is_answered_with_the_whole_name(short: str) -> None:
    [(code, message)] = found(check_transport, TRANSPORT=short)
    assert code == "workflow.E005"
    whole = f"workflow.transports.{short.rpartition('.')[2].lower()}"
    assert message.endswith(f'; did you mean "{whole}"?')


async def asynchronous(user: Any, run: Any) -> bool:
    return True


@pytest.mark.parametrize("given", [None, "operator.eq", max])
def test_a_hook_that_can_be_asked_passes(given: Any) -> None:
    assert found(check_can_view_run, CAN_VIEW_RUN=given) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("no_such_shop.permissions.can_view", "No module named 'no_such_shop'"),
        ("operator.no_such_function", "no_such_function"),
        ("math.pi", "can't be called"),
        (asynchronous, "must be a plain function"),
    ],
)
def test_a_hook_that_cannot_be_asked_is_an_error(given: Any, reason: str) -> None:
    [(code, message)] = found(check_can_view_run, CAN_VIEW_RUN=given)
    assert code == "workflow.E006"
    assert message.startswith('WORKFLOW["CAN_VIEW_RUN"] cannot be used: ')
    assert reason in message


def test_a_hook_of_the_wrong_type_is_reported_once() -> None:
    assert found(check_can_view_run, CAN_VIEW_RUN=7) == []
    assert [code for code, _ in found(check_settings, CAN_VIEW_RUN=7)] == ["workflow.E001"]
