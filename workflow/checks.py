"""What ``manage.py check`` says about this app. Nothing here opens a connection."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, register
from django.db import connections
from django.utils.module_loading import import_string

from workflow.conf import conf, validate
from workflow.registry import registry


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
    vendor = connections[alias].vendor
    if vendor != "postgresql":
        return [Error(f"Workflows need PostgreSQL; the database {alias!r} is {vendor}.", id="workflow.E003")]
    return []


@register("workflow")
def check_transport(**kwargs: Any) -> list[CheckMessage]:
    """``workflow.E005``: ``WORKFLOW["TRANSPORT"]`` is no module with a ``Doorbell``."""
    if {"WORKFLOW", "TRANSPORT"} & {key for key, _ in validate()}:
        return []
    try:
        import_string(f"{conf.TRANSPORT}.Doorbell")
    except ImportError as error:
        return [
            Error(f'WORKFLOW["TRANSPORT"] {conf.TRANSPORT!r} cannot be used: {error}.', id="workflow.E005")
        ]
    return []


@register("workflow")
def check_definitions(**kwargs: Any) -> list[CheckMessage]:
    """``workflow.E004``: a definition that breaks a rule, or that its ``workflows.py`` could not make."""
    return [Error(str(error), obj=place, id="workflow.E004") for place, error in registry.faults]
