"""The lists in docs/reference and the code name the same things: each of them once, and nothing else."""

from __future__ import annotations

import enum
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.test import override_settings

import workflow
from workflow import checks, conf, errors, states, testing
from workflow.context import Context
from workflow.definitions import Action, Pipeline, Stage, WaitFor, Workflow
from workflow.manager import Workflows
from workflow.models import RunEvent
from workflow.signals import Signal
from workflow.steps import Steps

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
LISTS = (
    "settings",
    "errors",
    "events",
    "statuses",
    "definitions",
    "context-and-steps",
    "manager",
    "testing",
)


def section(page: Path, heading: str) -> str:
    """The text between a heading of any level and the next one of its level or above."""
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,6}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page.name} has no section {heading!r}"
    return found[2]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows in a text, without the heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    # A "|" within backquotes parts no cells.
    cells = [
        [cell.strip() for cell in re.split(r"\|(?=(?:[^`]*`[^`]*`)*[^`]*$)", line)[1:-1]] for line in lines
    ]
    heads = {index - 1 for index, row in enumerate(lines) if re.fullmatch(r"[|\-]+", row)}
    return [
        row
        for index, row in enumerate(cells)
        if index not in heads and not re.fullmatch(r"[|\-]+", lines[index])
    ]


def column(text: str, index: int = 0) -> list[str]:
    """What stands in backquotes at the start of each row's cell."""
    found = [re.match(r"`([^`]+)`", row[index]) for row in rows(text)]
    return [match[1] for match in found if match is not None]


def page(name: str) -> Path:
    return REFERENCE / f"{name}.md"


def public(kind: type, *, skip: Iterable[str] = ()) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - set(skip)


# --- settings -------------------------------------------------------------------------------------


def shown_bounds(setting: conf.Setting) -> str:
    if setting.minimum is None:
        return ""
    if setting.unit == "seconds":
        return f"{setting.minimum:g} or more"
    return f"{setting.minimum:g} to {setting.maximum:.0f}"


SHOWN_DEFAULTS = {
    "HEARTBEAT_INTERVAL": "`min(60, STALE_LEASE_THRESHOLD / 3)`",
    "STUCK_THRESHOLD": "`max(3 * STALE_LEASE_THRESHOLD, 300)`",
}


def shown_default(setting: conf.Setting) -> str:
    if callable(setting.default):
        return SHOWN_DEFAULTS[setting.name]
    return f'`"{setting.default}"`' if isinstance(setting.default, str) else f"`{setting.default!r}`"


def test_settings_their_defaults_units_and_bounds() -> None:
    in_docs = {row[0]: row[1:4] for row in rows(section(page("settings"), "Settings"))}
    in_code = {
        f"`{setting.name}`": [shown_default(setting), setting.unit, shown_bounds(setting)]
        for setting in conf.SETTINGS
    }
    assert in_docs == in_code
    assert len(rows(section(page("settings"), "Settings"))) == len(conf.SETTINGS)


@pytest.mark.parametrize("threshold", [30, 3000])
def test_the_defaults_that_follow_from_another_setting_are_those_that_are_shown(threshold: float) -> None:
    with override_settings(WORKFLOW={"STALE_LEASE_THRESHOLD": threshold}):
        assert max(3 * threshold, 300) == conf.conf.STUCK_THRESHOLD
        assert min(60, threshold / 3) == conf.conf.HEARTBEAT_INTERVAL


def test_system_checks() -> None:
    used = re.findall(r'id="(workflow\.[EW]\d+)"', inspect.getsource(checks))
    assert column(section(page("settings"), "System checks")) == sorted(set(used))


# --- errors ---------------------------------------------------------------------------------------


def test_errors_that_calls_raise() -> None:
    text = section(page("errors"), "What calls raise")
    found = {
        kind.__name__: kind.code
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.WorkflowError)
    }
    assert dict(zip(column(text), column(text, 1), strict=True)) == found
    assert len(column(text)) == len(found)
    assert {name for name in found if not hasattr(workflow, name)} == set()


def test_outcomes_that_handlers_raise() -> None:
    found = [
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind)
        and issubclass(kind, Exception)
        and kind.__module__ == errors.__name__
        and not issubclass(kind, errors.WorkflowError)
    ]
    assert column(section(page("errors"), "What handlers raise, and get")) == found


def test_failure_codes() -> None:
    text = section(page("errors"), "What a failed run or node carries")
    assert column(text) == [code.value for code in errors.FailureCode]
    assert issubclass(errors.FailureCode, enum.StrEnum)


# --- events and statuses --------------------------------------------------------------------------


def test_history_events() -> None:
    names = column(section(page("events"), "Names"))
    assert sorted(names) == sorted(states.EVENTS)
    assert len(set(names)) == len(names)


def test_columns_of_the_history() -> None:
    fields = [field.name for field in RunEvent._meta.local_concrete_fields]
    assert column(section(page("events"), "Columns")) == fields


def test_statuses() -> None:
    assert tuple(column(section(page("statuses"), "Of a run"))) == states.RUN_STATUSES
    assert tuple(column(section(page("statuses"), "Of a node"))) == states.NODE_STATUSES


@pytest.mark.parametrize(
    ("heading", "live"), [("Of a run", states.RUN_LIVE), ("Of a node", states.NODE_LIVE)]
)
def test_which_statuses_are_over(heading: str, live: tuple[str, ...]) -> None:
    table = rows(section(page("statuses"), heading))
    assert {row[0].strip("`") for row in table if row[1] == "no"} == set(live)
    assert {row[1] for row in table} == {"yes", "no"}


# --- definitions, context, manager, testing -------------------------------------------------------


def shown_arguments(kind: Callable[..., Any], *, positional: Iterable[str] = ()) -> dict[str, str]:
    """The arguments of a constructor that the tables list, with their defaults as they are shown there."""
    shown = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in positional:
            continue
        default = parameter.default
        if default is inspect.Parameter.empty:
            shown[name] = "required"
        elif repr(default) == "<default>":  # of a stage's run=, the same as an action's
            shown[name] = str(inspect.signature(Action).parameters[name].default)
        elif isinstance(default, str):
            shown[name] = f'`"{default}"`'
        else:
            shown[name] = f"`{default!r}`" if default == () else repr(default)
    return shown


@pytest.mark.parametrize(
    ("heading", "kind", "positional"),
    [
        ("Stage", Stage, ["name"]),
        ("WaitFor", WaitFor, ["event"]),
        ("Pipeline", Pipeline, ["name"]),
        ("Workflow", Workflow, ["name"]),
    ],
)
def test_arguments_of_definitions(heading: str, kind: Callable[..., Any], positional: list[str]) -> None:
    table = rows(section(page("definitions"), heading))
    assert {row[0].strip("`"): row[1] for row in table} == shown_arguments(kind, positional=positional)
    assert len({row[0] for row in table}) == len(table)


def test_arguments_of_an_action() -> None:
    table = {row[0].strip("`"): row[1] for row in rows(section(page("definitions"), "action"))}
    assert table.pop("name") == "the function's name"
    assert table == shown_arguments(Action, positional=["name", "run"])
    given = inspect.signature(Action)
    assert set(table) <= set(given.parameters)


def test_what_a_handler_finds_in_its_context() -> None:
    attributes = {"path", "workflow", "attempt", "state", "context", "correlation_id"}
    attributes |= {"idempotency_key", "signal"}
    source = inspect.getsource(Context.__init__)
    assert set(re.findall(r"self\.([a-z]\w*) = ", source)) == attributes
    assert set(column(section(page("context-and-steps"), "ctx"))) == attributes | public(Context)


def test_what_a_handler_finds_in_its_signal() -> None:
    engines = {"abort"}
    assert set(column(section(page("context-and-steps"), "ctx.signal"))) == {
        "reason",
        *public(Signal, skip=engines),
    }


def test_durable_steps_and_their_twins() -> None:
    table = rows(section(page("context-and-steps"), "ctx.step"))
    plain, twins = ({row[index].strip("`") for row in table} for index in (0, 1))
    assert plain | twins == public(Steps)
    assert all(iscoroutinefunction(getattr(Steps, name)) for name in twins)
    assert not any(iscoroutinefunction(getattr(Steps, name)) for name in plain)


@pytest.mark.parametrize("name", ["run", "sleep", "wait_for", "wait_event"])
def test_signatures_of_durable_steps(name: str) -> None:
    table = {row[0].strip("`"): row[2] for row in rows(section(page("context-and-steps"), "ctx.step"))}
    assert f"`{bare_signature(getattr(Steps, name), name)}`" in table[name]


def bare_signature(function: Callable[..., Any], name: str) -> str:
    """A method's signature without ``self`` and annotations, strings in double quotes."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    return f"{name}{text}".replace("'", '"')


def test_calls_of_the_manager_with_their_signatures_and_twins() -> None:
    table = rows(section(page("manager"), "The manager"))
    calls = {row[0].strip("`").partition("(")[0]: row[0].strip("`") for row in table}
    twins = {row[1].strip("`") for row in table if row[1]}
    assert set(calls) | twins == public(Workflows)
    for name, shown in calls.items():
        assert shown == bare_signature(getattr(Workflows, name), name)


def test_what_workflow_testing_offers() -> None:
    text = section(page("testing"), "workflow.testing")
    assert sorted(column(text)) == sorted(testing.__all__)
    for row in rows(text):
        name = row[0].strip("`")
        assert f"`{bare_signature(getattr(testing, name), name)}`" in row[1]


def test_every_public_name_stands_in_the_reference() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    assert [name for name in workflow.__all__ if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("name", LISTS)
def test_nothing_is_listed_twice(name: str) -> None:
    for heading in re.findall(r"^#+ (.*)$", page(name).read_text(encoding="utf-8"), re.MULTILINE):
        first = [row[0] for row in rows(section(page(name), heading))]
        assert sorted(first) == sorted(set(first)), heading


# --- the state machine ----------------------------------------------------------------------------


def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_state_machine", DOCS / "make_state_machine.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("heading", "letter", "edges"), [("Runs", "R", states.RUN_EDGES), ("Nodes", "N", states.NODE_EDGES)]
)
def test_every_edge_of_the_state_machine_is_told_once(heading: str, letter: str, edges: Any) -> None:
    table = rows(section(DOCS / "state-machine.md", heading))
    told = []
    for row in table:
        assert len(row) == 4, row
        assert all(row[2:]), row
        told.append((row[0], *re.fullmatch(r"`(\w+)` → `(\w+)`", row[1]).groups()))  # type: ignore[union-attr]
    assert told == drawing().numbered(letter, edges)


def test_the_diagrams_are_drawn_from_the_tables() -> None:
    text = (DOCS / "state-machine.md").read_text(encoding="utf-8")
    assert drawing().redrawn(text) == text, "run python docs/make_state_machine.py"
    assert text.count("```mermaid") == 2


def test_history_names_in_the_state_machine_exist() -> None:
    for heading in ("Runs", "Nodes"):
        for row in rows(section(DOCS / "state-machine.md", heading)):
            assert set(re.findall(r"`([\w.]+)`", row[3])) <= set(states.EVENTS), row
