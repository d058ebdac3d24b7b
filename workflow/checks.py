"""What ``manage.py check`` says about this app.

No check needs a database. ``check --deploy`` looks into one, if it can; see ``check_unserved``.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import Any, Final

from django.apps import apps
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004  Django's name for it
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, router
from django.utils.module_loading import import_string
from psycopg import IsolationLevel

from workflow import viewing
from workflow.conf import conf, validate
from workflow.database import migrate, not_applied, other_kind, other_kind_hint, unapplied
from workflow.registry import registry
from workflow.store.workers import Changed, Misfits, Unserved, changed_now, misfits_now, unserved_now
from workflow.texts import one_line

_STRICT_BY_DEFAULT: Final = re.compile(
    r"default_transaction_isolation\s*=\s*['\"]?\s*(?:repeatable|serializable)", re.IGNORECASE
)
"""In what is given to the server when a connection begins."""
TRANSPORTS: Final = ("workflow.transports.postgres", "workflow.transports.celery")
CONNECT_TIMEOUT: Final = 3
"""Seconds after which ``check --deploy`` takes a database that it was not told to look into for absent."""


@register("workflow")
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """``workflow.E001``: an unknown key, a wrong type or a value out of bounds in ``settings.WORKFLOW``."""
    found: list[CheckMessage] = []
    for key, rule in validate():
        place = key if key == "WORKFLOW" else f'WORKFLOW["{key}"]'
        found.append(Error(f"{place} {rule}.".replace("?.", "?"), id="workflow.E001"))
    return found


@register("workflow")
def check_database(**kwargs: Any) -> list[CheckMessage]:
    """``workflow.E002``: ``WORKFLOW["DATABASE"]`` is no alias. ``workflow.E003``: it is no PostgreSQL."""
    if {"WORKFLOW", "DATABASE"} & {key for key, _ in validate()}:
        return []
    alias = conf.DATABASE
    if alias not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        return [Error(f'WORKFLOW["DATABASE"] {alias!r} is not in DATABASES ({known}).', id="workflow.E002")]
    wrong = other_kind()
    return [] if wrong is None else [Error(wrong, hint=other_kind_hint(), id="workflow.E003")]


@register("workflow")
def check_routers(**kwargs: Any) -> list[CheckMessage]:
    """``workflow.E007``: ``migrate`` would make the tables in a ``default`` that is no PostgreSQL as well.
    ``workflow.W005``: what Django writes of the models goes to another database than ``WORKFLOW["DATABASE"]``, or
    a router raises when it is asked.
    """
    if check_settings() or check_database():
        return []
    found: list[CheckMessage] = []
    hint = (
        f'Let a router of DATABASE_ROUTERS send the app "workflow" to {conf.DATABASE!r}, migrations included.'
    )
    try:
        writes = router.db_for_write(apps.get_model("workflow", "Run"))
    except Exception as error:  # a router of tenants may raise outside of a request
        message = (
            f"A router of DATABASE_ROUTERS cannot tell where workflows go: {type(error).__name__}: {error}"
        )
        return [Warning(message, hint=hint, id="workflow.W005")]
    if writes != conf.DATABASE:
        message = f'Django writes workflows to the database {writes!r}, and WORKFLOW["DATABASE"] is {conf.DATABASE!r}.'
        found.append(Warning(message, hint=hint, id="workflow.W005"))
    default = connections[DEFAULT_DB_ALIAS]
    absent = default.settings_dict["ENGINE"] == "django.db.backends.dummy"
    if (
        conf.DATABASE != DEFAULT_DB_ALIAS
        and not absent
        and default.vendor != "postgresql"
        and router.allow_migrate(DEFAULT_DB_ALIAS, "workflow")
    ):
        message = (
            f"migrate makes the workflow tables in the database 'default' as well, which is {default.vendor}."
        )
        found.append(Error(message, hint=hint, id="workflow.E007"))
    return found


@register("workflow")
def check_isolation(**kwargs: Any) -> list[CheckMessage]:
    """``workflow.W004``: transactions on ``WORKFLOW["DATABASE"]`` are isolated more strictly than READ COMMITTED."""
    if check_settings() or check_database():
        return []
    options = connections.settings[conf.DATABASE].get("OPTIONS", {})
    level = options.get("isolation_level", IsolationLevel.READ_COMMITTED)
    strict = level in (IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE)
    if not strict and not _STRICT_BY_DEFAULT.search(str(options.get("options", ""))):
        return []
    return [
        Warning(
            f"OPTIONS of the database {conf.DATABASE!r} ask for more than READ COMMITTED: serialization failures will "
            f"spend attempts of atomic actions and fail commands.",
            hint='Leave READ COMMITTED in DATABASES, and give WORKFLOW["DATABASE"] an alias of its own if other code '
            "needs more.",
            id="workflow.W004",
        )
    ]


@register("workflow")
def check_transport(**kwargs: Any) -> list[CheckMessage]:
    """``workflow.E005``: ``WORKFLOW["TRANSPORT"]`` is no module with a ``Doorbell``."""
    if {"WORKFLOW", "TRANSPORT"} & {key for key, _ in validate()}:
        return []
    try:
        import_string(f"{conf.TRANSPORT}.Doorbell")
    except ImportError as error:
        meant = f"workflow.transports.{conf.TRANSPORT.rpartition('.')[2].lower()}"
        hint = f'; did you mean "{meant}"?' if meant in TRANSPORTS and meant != conf.TRANSPORT else "."
        return [
            Error(
                f'WORKFLOW["TRANSPORT"] {conf.TRANSPORT!r} cannot be used: {error}{hint}', id="workflow.E005"
            )
        ]
    return []


@register("workflow")
def check_can_view_run(**kwargs: Any) -> list[CheckMessage]:
    """``workflow.E006``: ``WORKFLOW["CAN_VIEW_RUN"]`` can't be imported, or is nothing that could be asked."""
    if {"WORKFLOW", "CAN_VIEW_RUN"} & {key for key, _ in validate()}:
        return []
    try:
        viewing.hook()
    except Exception as error:  # importing a project's module may raise anything
        return [Error(f'WORKFLOW["CAN_VIEW_RUN"] cannot be used: {error}.', id="workflow.E006")]
    return []


@register("workflow")
def check_definitions(**kwargs: Any) -> list[CheckMessage]:
    """``workflow.E004``: a definition that breaks a rule, or that its ``workflows.py`` could not make."""
    return [Error(str(error), obj=place, id="workflow.E004") for place, error in registry.faults]


@register("workflow", deploy=True)
def check_unserved(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """``workflow.W001``: live runs that no live worker serves. ``workflow.W002``: could not look for them.
    ``workflow.W003``: live runs whose tree is not that of this code's definition of their version, and those of a
    version that it takes on with which it cannot go on. ``workflow.W006``: migrations of this release are not applied.

    With ``--database`` and the alias of ``WORKFLOW["DATABASE"]`` it has to be found out, with that of another it
    is nobody's business. Without, it is found out if the database answers at once: Django's own checks leave
    databases alone then, yet ``check --deploy`` is where whoever deploys looks, and a build that has no
    database must pass.
    """
    if check_settings() or check_database() or (databases and conf.DATABASE not in databases):
        return []
    if databases and not _are_all(databases):
        return _found(conf.DATABASE)
    try:
        return _look(conf.DATABASE, asked=False)
    except Exception:
        return []  # not only DatabaseError: test runners forbid connections with exceptions of their own


@register(Tags.database, deploy=True)
def check_all_databases(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """``workflow.W002`` where all databases were asked for. From Django 6.1 on a check is given all of them without
    ``--database`` too; but one with this tag is run only with it.
    """
    if check_settings() or check_database() or not databases or not _are_all(databases):
        return []
    return [message for message in _found(conf.DATABASE) if message.id == "workflow.W002"]


def _are_all(databases: Sequence[str]) -> bool:
    return set(databases) == set(connections)


def _found(alias: str) -> list[CheckMessage]:
    try:
        return _look(alias, asked=True)
    except DatabaseError as error:
        reason = " ".join(str(error).split())
        return [Warning(f"Could not look for runs that no live worker serves: {reason}", id="workflow.W002")]


def _look(alias: str, asked: bool) -> list[CheckMessage]:
    connection = connections[alias]
    opened = connection.connection is None
    if opened and not asked:
        probe = connection.copy()
        options = {name: value for name, value in probe.settings_dict["OPTIONS"].items() if name != "pool"}
        probe.settings_dict["OPTIONS"] = {"connect_timeout": CONNECT_TIMEOUT, **options}
        probe.ensure_connection()
        probe.close()
    try:
        if missing := unapplied():  # what is there cannot be asked for what this release has in it
            text = not_applied(missing)
            hint = f"Run {migrate()}."
            return [Warning(f"{text[0].upper()}{text[1:]}.", hint=hint, id="workflow.W006")]
        definitions = registry.all()
        other: list[Changed | Misfits] = [*changed_now(definitions), *misfits_now(definitions)]
        unfit = {(runs.workflow, runs.version) for runs in other}
        return [*(_unserved(runs, unfit) for runs in unserved_now()), *map(_other_tree, other)]
    finally:
        if opened:
            connection.close()


def _unserved(runs: Unserved, unfit: Container[tuple[str, int]]) -> Warning:
    if runs.workflow not in {each.name for each in registry.all()}:
        hint = "This code has no workflow of that name: is its app in INSTALLED_APPS, with a workflows.py?"
    elif registry.serves(runs.workflow, runs.version) is None:
        hint = (
            f"This code does not serve it either: keep workers of the release that does, or give the workflow "
            f"compatible_versions=({runs.version},)."
        )
    elif (runs.workflow, runs.version) in unfit:
        hint = "This code has another tree for such runs: see workflow.W003 before you start a worker of it."
    elif runs.queue is not None:
        hint = f'Start a worker that takes the queue "{one_line(runs.queue, 100)}".'
    else:
        hint = "This code serves it: start a worker of it."
    return Warning(
        f"{str(runs)[0].upper()}{str(runs)[1:]}.", hint=hint, obj=runs.workflow, id="workflow.W001"
    )


def _other_tree(runs: Changed | Misfits) -> Warning:
    if isinstance(runs, Misfits):
        hint = (
            f"A worker of this code fails them (what compensates waits): take {runs.version} out of "
            f"compatible_versions=, and keep workers of the release that serves it until they are over."
        )
    else:
        hint = (
            "A worker of this code fails those that the tree does not fit (what compensates waits): give a changed one "
            "a version of its own."
        )
    return Warning(
        f"{runs}.",
        hint=hint,
        obj=runs.workflow,
        id="workflow.W003",
    )
