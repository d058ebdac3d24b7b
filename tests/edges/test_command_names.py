"""Commands whose names no file bears: stock Django finds, lists and loads them, and no other app notices."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from django.apps import apps
from django.core.management import BaseCommand, find_commands, get_commands, load_command_class
from django.utils import autoreload

import workflow.management
from workflow.management import finder

COMMANDS = {
    f"workflow:{name}"
    for name in (
        "worker", "sweep", "list", "status", "top", "dispatch", "retry", "cancel", "resume", "publish", "prune",
        "pause", "unpause",
    )
}  # fmt: skip
PACKAGE = Path(workflow.__file__).parent
REPOSITORY = PACKAGE.parent

# A database that nobody could reach: whatever works with these settings needs none.
SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "pgtrigger", "workflow", "neighbour"]
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "HOST": "/nowhere", "NAME": "none"}}
USE_TZ = True
"""
NEIGHBOUR = """
from django.core.management.base import BaseCommand
class Command(BaseCommand):
    def handle(self, *args, **options):
        self.stdout.write("here is next door")
"""

Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder as `startproject` makes it, its manage.py untouched, with `workflow` and a neighbour."""
    subprocess.run(
        [sys.executable, "-m", "django", "startproject", "shopfront", str(tmp_path)], check=True, cwd=tmp_path
    )
    (tmp_path / "shopfront" / "settings.py").write_text(SETTINGS)
    commands = tmp_path / "neighbour" / "management" / "commands"
    commands.mkdir(parents=True)
    for folder in (commands, commands.parent, commands.parent.parent):
        (folder / "__init__.py").touch()
    (commands / "nextdoor.py").write_text(NEIGHBOUR)
    return tmp_path


@pytest.fixture
def python(project: Path) -> Python:
    """`python("manage.py", "help")`: a Python in the project's folder; `path` goes before the repository."""

    def run(*arguments: str, path: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        unwanted = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "DJANGO_COLORS")
        clean = {name: value for name, value in os.environ.items() if name not in unwanted}
        search = os.pathsep.join(part for part in (path, str(REPOSITORY)) if part)
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=project, env={**clean, "PYTHONPATH": search, "NO_COLOR": "1", **environment},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    return run


def section(help_text: str, app: str) -> set[str]:
    """The commands that `manage.py help` lists under [app]."""
    found = re.search(rf"^\[{app}\]\n((?:    .+\n?)*)", help_text, re.MULTILINE)
    return set(found[1].split()) if found else set()


def test_stock_manage_py_lists_exactly_the_commands(python):
    result = python("manage.py", "help")
    assert result.returncode == 0, result.stderr
    assert section(result.stdout, "workflow") == COMMANDS
    assert section(result.stdout, "neighbour") == {"nextdoor"}
    assert section(result.stdout, "auth") == {"changepassword", "createsuperuser"}
    names = python("manage.py", "help", "--commands").stdout.split()
    assert set(names) >= COMMANDS
    assert len(names) == len(set(names))


def test_python_m_django_lists_them_too(python):
    result = python("-m", "django", "help", DJANGO_SETTINGS_MODULE="shopfront.settings")
    assert section(result.stdout, "workflow") == COMMANDS


def test_without_settings_django_lists_its_own_commands_alone(python):
    result = python("-m", "django", "help")
    assert result.returncode == 0
    assert not section(result.stdout, "workflow")
    assert "runserver" in section(result.stdout, "django")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself_without_a_database(python, name):
    result = python("manage.py", name, "--help")
    assert result.returncode == 0, result.stderr
    assert f"usage: manage.py {name}" in result.stdout
    assert python("manage.py", "help", name).stdout == result.stdout


def test_a_command_of_another_app_still_runs(python):
    assert python("manage.py", "nextdoor").stdout == "here is next door\n"


def test_a_name_mistyped_is_answered_with_the_right_one(python):
    result = python("manage.py", "workflow:lst")
    assert result.returncode == 1
    assert "Did you mean workflow:list?" in result.stderr


@pytest.mark.parametrize(
    "name", ["_base", "commands", "finder", "list", "workflow:", "workflow:_base", "workflow:list.x"]
)
def test_modules_that_are_no_commands_are_none(python, name):
    assert python("manage.py", name).returncode == 1


def test_shells_can_complete_the_names(python):
    result = python(
        "manage.py", DJANGO_AUTO_COMPLETE="1", COMP_WORDS="manage.py workflow:", COMP_CWORD="1",
        DJANGO_SETTINGS_MODULE="shopfront.settings",
    )  # fmt: skip
    assert set(result.stdout.split()) == COMMANDS
    options = python(
        "manage.py", DJANGO_AUTO_COMPLETE="1", COMP_WORDS="manage.py workflow:prune --d", COMP_CWORD="2",
        DJANGO_SETTINGS_MODULE="shopfront.settings",
    )  # fmt: skip
    assert options.stdout.split() == ["--days=", "--dry-run"]


def test_the_names_are_known_as_soon_as_apps_are_before_any_is_ready(python, project):
    (project / "neighbour" / "apps.py").write_text(
        textwrap.dedent("""
        from django.apps import AppConfig
        class NeighbourConfig(AppConfig):
            name = "neighbour"
            def import_models(self):
                from django.core.management import get_commands
                print(sum(app == "workflow" for app in get_commands().values()))
                super().import_models()
        """)
    )
    first = SETTINGS.replace('["django', '["neighbour", "django').replace(', "neighbour"]', "]")
    (project / "shopfront" / "settings.py").write_text(first)
    assert python("manage.py", "nextdoor").stdout.splitlines() == [str(len(COMMANDS)), "here is next door"]


def test_looking_into_the_folder_too_early_spoils_nothing(python):
    code = f"""
    import pkgutil, sys
    folder = {str(PACKAGE / "management" / "commands")!r}
    assert [module.name for module in pkgutil.iter_modules([folder])] == []
    import django
    django.setup()
    from django.core.management import call_command, get_commands
    assert "workflow:list" in get_commands()
    assert folder in sys.path_importer_cache
    import importlib
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()
    from django.core.management import load_command_class
    print(load_command_class("workflow", "workflow:prune").help)
    """
    result = python("-c", textwrap.dedent(code), DJANGO_SETTINGS_MODULE="shopfront.settings")
    assert result.stdout.startswith("Drops runs"), result.stderr


def test_an_install_in_a_zip_file_works(python, project):
    archive = project / "packed.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in PACKAGE.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                packed.write(file, file.relative_to(REPOSITORY))
    code = """
    import django, workflow
    assert "packed.zip" in workflow.__file__
    django.setup()
    from django.core.management import get_commands
    print(*sorted(name for name, app in get_commands().items() if app == "workflow"))
    import importlib
    module = importlib.import_module("workflow.management.commands.workflow:retry")
    assert module.Command.help
    """
    result = python(
        "-c", textwrap.dedent(code), path=str(archive), DJANGO_SETTINGS_MODULE="shopfront.settings"
    )
    assert set(result.stdout.split()) == COMMANDS, result.stderr


def test_a_package_reached_through_a_symbolic_link_works(python, project):
    (project / "linked").mkdir()
    (project / "linked" / "workflow").symlink_to(PACKAGE, target_is_directory=True)
    result = python("manage.py", "help", path=str(project / "linked"))
    assert section(result.stdout, "workflow") == COMMANDS


# In this process


def test_django_knows_the_commands():
    assert (
        {name for name, app in get_commands().items() if app == "workflow"} == COMMANDS == set(finder.names())
    )


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_django_loads_each_command_from_its_file(name):
    command = load_command_class("workflow", name)
    assert type(command).__module__ == f"workflow.management.cli.{name.removeprefix('workflow:')}"
    assert command.help


def test_other_apps_commands_are_found_as_before():
    for config in apps.get_app_configs():
        if config.name == "workflow":
            continue
        folder = Path(config.path) / "management" / "commands"
        files = {file.stem for file in folder.glob("[!_]*.py")}
        assert set(find_commands(str(folder.parent))) == files, config.name


def test_what_does_not_exist_cannot_be_imported():
    with pytest.raises(ModuleNotFoundError, match="workflow:nothing"):
        importlib.import_module("workflow.management.commands.workflow:nothing")


def test_the_hook_is_there_once_and_answers_for_one_folder():
    finder.install()
    assert sys.path_hooks.count(finder.CommandFinder) == 1
    for path in ("", ".", "commands", str(PACKAGE / "management"), str(PACKAGE / "management" / "cli")):
        with pytest.raises(ImportError):
            finder.CommandFinder(path)
    answering = finder.CommandFinder(str(PACKAGE / "management" / ".." / "management" / "commands"))
    assert {name for name, _ in answering.iter_modules()} == COMMANDS
    assert {name for name, _ in answering.iter_modules("x.")} == {f"x.{name}" for name in COMMANDS}


def test_walking_the_package_and_autoreload_cope_with_the_names():
    walked = pkgutil.walk_packages(workflow.management.__path__, "workflow.management.", onerror=pytest.fail)
    assert {f"workflow.management.commands.{name}" for name in COMMANDS} <= {module.name for module in walked}
    load_command_class("workflow", "workflow:list")
    assert PACKAGE / "management" / "cli" / "list.py" in autoreload.iter_all_python_module_files()


def test_windows_can_check_the_repository_out():
    """No name holds a character that Windows forbids, or differs from another's by case alone."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    files = (
        listed.stdout.split("\0")[:-1]
        if listed.returncode == 0
        else [str(file.relative_to(REPOSITORY)) for file in PACKAGE.rglob("*")]
    )
    assert len(files) > 20
    assert not [file for file in files if re.search(r'[<>:"|?*\\\x00-\x1f]|[ .](/|$)', file)]
    assert len({file.lower() for file in files}) == len(files)


# The reference


def own_options(name: str) -> set[str]:
    """The options of a command that not every command of Django's has."""
    parser = load_command_class("workflow", name).create_parser("manage.py", name)
    common = BaseCommand().create_parser("manage.py", "x")._option_string_actions
    return set(parser._option_string_actions) - set(common)


def test_the_reference_names_every_command_and_option_and_no_other():
    text = (REPOSITORY / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (workflow:\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(sections) == COMMANDS == set(re.findall(r"\[`(workflow:\w+)`\]\(#", text))
    for name, section_text in sections.items():
        usage = re.search(r"^    workflow:.*(?:\n      +.*)*", section_text, re.MULTILINE)
        assert usage is not None, name
        assert set(re.findall(r"--[a-z-]+", usage[0])) == own_options(name), name
