"""How `workflow:list` can be a command of Django's although no file is called so.

Django takes the names of an app's commands from `pkgutil.iter_modules([<app>/management/commands])`
and imports `<app>.management.commands.<name>`. Both ask the same thing for that folder's contents:
the finder which `sys.path_hooks` gives for its path. This module adds a hook for that one path. Its
finder offers each module `<name>` of `workflow.management.cli` as `workflow:<name>`, a name that no
file could bear on Windows. Nothing of Django is replaced, and no other path is touched.
"""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

PREFIX: Final = "workflow:"
# Plain strings and no pathlib: inside a zipped install these are no paths of the file system.
_HERE: Final = os.path.dirname(__file__)  # noqa: PTH120
_COMMANDS: Final = os.path.join(_HERE, "commands")  # noqa: PTH118
_MODULES: Final = os.path.join(_HERE, "cli")  # noqa: PTH118


def names() -> list[str]:
    """The commands' names, as typed behind manage.py."""
    return sorted(
        PREFIX + module.name
        for module in pkgutil.iter_modules([_MODULES])
        if not module.ispkg and not module.name.startswith("_")
    )


class CommandFinder:
    """A path entry finder (the import system's term) for the folder `workflow/management/commands`."""

    def __init__(self, path: str) -> None:
        """Raises ImportError for every other path, which is how a hook says that it isn't concerned."""
        if not _is_commands_folder(path):
            raise ImportError(f"{path} is not the folder of the workflow commands")

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """What `pkgutil.iter_modules` asks of a finder: (name, whether it is a package)."""
        for name in names():
            yield prefix + name, False

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """What the import system asks of a finder; None when there is no such module."""
        name = fullname.rpartition(".")[2]
        if name not in names():
            return None
        source = f"{__package__}.cli.{name.removeprefix(PREFIX)}"
        return importlib.util.spec_from_loader(fullname, _CommandLoader(source), origin=source)


class _CommandLoader(Loader):
    """Loads a module that holds the `Command` of `source`, and nothing else."""

    def __init__(self, source: str) -> None:
        self.source = source

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["Command"] = importlib.import_module(self.source).Command


def _is_commands_folder(path: str) -> bool:
    # Asked for each new entry of sys.path, so the cheap question comes first. The real path is
    # compared because a project may reach this package through a symbolic link.
    if os.path.basename(path) != "commands":  # noqa: PTH119
        return False
    return _real(path) == _real(_COMMANDS)


def _real(path: str) -> str:
    return os.path.normcase(os.path.realpath(path))


def install() -> None:
    """Makes the commands known to this process; a second call changes nothing."""
    if CommandFinder in sys.path_hooks:
        return
    sys.path_hooks.insert(0, CommandFinder)
    # Whoever looked into the folder before the hook was there has left the usual finder behind.
    for path in [path for path in sys.path_importer_cache if _is_commands_folder(path)]:
        del sys.path_importer_cache[path]
