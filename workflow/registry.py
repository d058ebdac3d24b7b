"""Which workflows this process knows, by name: found in the apps' ``workflows.py``, or registered by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from os.path import relpath
from threading import Lock
from traceback import walk_tb
from types import ModuleType
from typing import Any

from django.apps import AppConfig, apps
from django.utils.module_loading import module_has_submodule

from workflow.definitions import Pipeline, Workflow
from workflow.definitions.rules import did_you_mean, fault, quote, show
from workflow.errors import VersionConflict, WorkflowInvalid, WorkflowUnknown

Fault = tuple[str, WorkflowInvalid | VersionConflict]

_MODULE = "workflows"


class Registry:
    """Workflows by name, one version each. Safe to share between threads.

    ``faults`` is what the last autodiscovery found wrong, as (module, error), for ``manage.py check``.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_name: dict[str, Workflow] = {}
        self._standalone: set[str] = set()  # names that stand for a pipeline on its own
        self._modules: dict[str, str] = {}
        """Where autodiscovery has found which name first."""
        self.faults: list[Fault] = []

    def register(self, definition: Workflow | Pipeline) -> Workflow:
        """Make a workflow known under its name, or a pipeline as a workflow of its own. Returns the workflow.

        The same object again is nothing. Raises ``WorkflowInvalid`` if another definition has this name and
        version or a schema can't be completed, ``VersionConflict`` if the name is taken at another version.
        """
        workflow = _to_workflow(definition)
        if self._by_name.get(workflow.name) is workflow:
            return workflow
        _ = workflow.tree  # compiled now, so that no dispatch meets a fault or waits for it
        with self._lock:
            known = self._by_name.setdefault(workflow.name, workflow)
            if known is workflow and isinstance(definition, Pipeline):
                self._standalone.add(workflow.name)
        if known is not workflow:
            raise _clash(known, workflow, self._modules.get(workflow.name))
        return workflow

    def get(self, name: str) -> Workflow:
        """The workflow of that name, or ``WorkflowUnknown``."""
        workflow = self._by_name.get(name) if isinstance(name, str) else None
        if workflow is None:
            hint = did_you_mean(name, list(self._by_name))
            broken = ", ".join(dict.fromkeys(place for place, _ in self.faults))
            if broken:
                hint += f" (faults were found in {broken}: see manage.py check)"
            elif self._by_name and not hint:
                hint = f"; registered are the Workflow objects at the top level of an app's {_MODULE}.py"
            # The cause is what one of them raised, for whoever sees no more than this.
            cause = self.faults[0][1] if self.faults else None
            raise WorkflowUnknown(f"no workflow is registered as {show(name)}{hint}") from cause
        return workflow

    def find(self, name: str) -> Workflow | None:
        """The workflow of that name, or None."""
        return self._by_name.get(name)

    def serves(self, name: str, version: int) -> Workflow | None:
        """The workflow of that name if runs of that version may go on under it, else None."""
        workflow = self._by_name.get(name)
        return workflow if workflow is not None and workflow.serves(version) else None

    def all(self) -> list[Workflow]:
        """All workflows, by name."""
        with self._lock:
            return sorted(self._by_name.values(), key=lambda workflow: workflow.name)

    def as_workflow(self, name_or_definition: str | Workflow | Pipeline) -> Workflow:
        """What ``dispatch`` was given, as a workflow: looked up by name, or registered here and now."""
        if isinstance(name_or_definition, str):
            return self.get(name_or_definition)
        return self.register(name_or_definition)

    def autodiscover(self) -> None:
        """Import each installed app's ``workflows.py`` and register its module-level definitions.

        What is wrong with definitions goes to ``faults``, with the module's line; others propagate, as from an
        ``admin.py``. Workflows of all modules come first, and a pipeline whose name is a workflow's is not
        registered on its own: the name would stand for two things. Can be called again.
        """
        faults: list[Fault] = []
        modules: list[ModuleType] = []
        for app in apps.get_app_configs():
            try:
                modules.extend(_import_workflows(app))
            except (WorkflowInvalid, VersionConflict) as error:
                place = f"{app.name}.{_MODULE}"
                faults.append((place, _at_import(place, app.path, error)))
        for kind in (Workflow, Pipeline):
            for module, definition in _definitions(modules, kind):
                try:
                    self._register_found(definition)
                    self._modules.setdefault(definition.name, module.__name__)
                except (WorkflowInvalid, VersionConflict) as error:
                    faults.append((module.__name__, error))
        self.faults = faults

    def clear(self) -> None:
        """Forget everything. For tests."""
        with self._lock:
            self._by_name.clear()
            self._standalone.clear()
            self._modules.clear()
            self.faults = []

    @contextmanager
    def isolated(self) -> Iterator[Registry]:
        """For tests: begin with what is registered, and on leaving forget what was changed since."""
        with self._lock:
            kept = dict(self._by_name), set(self._standalone), dict(self._modules), list(self.faults)
        try:
            yield self
        finally:
            with self._lock:
                self._by_name, self._standalone, self._modules, self.faults = kept

    def _register_found(self, definition: Workflow | Pipeline) -> None:
        if isinstance(definition, Pipeline):
            name = definition.name
            if name in self._by_name and name not in self._standalone:
                return
        self.register(definition)


def _to_workflow(definition: Any) -> Workflow:
    if isinstance(definition, Workflow):
        return definition
    if isinstance(definition, Pipeline):
        return definition.as_workflow()
    rule = f"only a Workflow or a Pipeline can be registered and dispatched, not {show(definition)}"
    raise WorkflowInvalid(rule)


def _clash(known: Workflow, other: Workflow, module: str | None) -> WorkflowInvalid | VersionConflict:
    """``module``: where the known one was found, if it was found in one."""
    place = f"Workflow {quote(known.name)}"
    if known.version == other.version:
        where = "" if module is None else f", that of {module}"
        return fault(place, f"version {known.version} is registered already, with another definition{where}")
    where = "" if module is None else f" by {module}"
    rule = (
        f"version {known.version} is registered already{where}, so version {other.version} can't be as well"
    )
    return VersionConflict(f"{place}: {rule}")


def _definitions(
    modules: list[ModuleType], kind: type[Workflow] | type[Pipeline]
) -> Iterator[tuple[ModuleType, Workflow | Pipeline]]:
    for module in modules:
        for value in list(vars(module).values()):
            # type(), not isinstance(): that asks lazy objects for their class, and so would wake them.
            if issubclass(type(value), kind):
                yield module, value


def _at_import(
    place: str, folder: str, error: WorkflowInvalid | VersionConflict
) -> WorkflowInvalid | VersionConflict:
    """The fault of a module that raised ``error``, its cause; ends with the module's line, if one is known."""
    lines = [
        f" ({relpath(frame.f_code.co_filename, folder)}:{line})"
        for frame, line in walk_tb(error.__traceback__)
        if f"{frame.f_globals.get('__name__')}.".startswith(f"{place}.")
    ]
    kind = VersionConflict if isinstance(error, VersionConflict) else WorkflowInvalid
    found = kind(f"{error}{lines[-1] if lines else ''}")
    found.__cause__ = error
    return found


def _import_workflows(app: AppConfig) -> list[ModuleType]:
    try:
        return [import_module(f"{app.name}.{_MODULE}")]
    except ImportError:
        if module_has_submodule(app.module, _MODULE):
            raise
        return []


registry = Registry()
