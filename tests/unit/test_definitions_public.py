"""What ``from workflow import ...`` offers, and what importing it does not drag in."""

import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from types import ModuleType

import pytest

import workflow
from workflow import Action, Pipeline, Stage, WaitFor, Workflow, errors

NAMES = {"Workflow", "Pipeline", "Stage", "Action", "action", "parallel", "WaitFor", "workflows", "errors"}


def test_the_public_names_are_all_there():
    assert set(workflow.__all__) >= NAMES
    for name in set(workflow.__all__) - {"workflows"}:
        assert getattr(workflow, name) is not None


def test_every_error_of_the_contract_is_a_public_name():
    leaves = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert leaves - {"FailureCode"} <= set(workflow.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Workflows'"):
        _ = workflow.Workflows


def test_the_manager_is_fetched_when_it_is_first_asked_for(monkeypatch):
    manager = ModuleType("workflow.manager")
    manager.workflows = object()
    monkeypatch.setitem(sys.modules, "workflow.manager", manager)
    monkeypatch.delitem(vars(workflow), "workflows", raising=False)
    assert workflow.workflows is manager.workflows
    assert vars(workflow).pop("workflows") is manager.workflows  # no second look-up


def test_definitions_need_neither_settings_nor_models():
    code = (
        "import sys, workflow\n"
        "made = workflow.Workflow('w', stages=[workflow.Stage('s', run=lambda state: None)])\n"
        "assert len(made.tree.nodes) == 4\n"
        "loaded = {'workflow.models', 'workflow.manager', 'django.db', 'psycopg'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env={})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Workflow("z", stage=[]), 'Workflow "z" has no option stage=; did you mean "stages"?'),
        (lambda: Workflow(name="z", colour=1), 'Workflow "z" has no option colour='),
        (lambda: Pipeline("z", stage=[]), 'Pipeline "z" has no option stage=; did you mean "stages"?'),
        (lambda: Stage("z", action=[]), 'Stage "z" has no option action=; did you mean "actions"?'),
        (lambda: Stage("z", retries=3), 'Stage "z" has no option retries=; did you mean "attempts"?'),
        (
            lambda: Action("z", print, atempts=3),
            'Action "z" has no option atempts=; did you mean "attempts"?',
        ),
        (
            lambda: WaitFor("z.done", timout=3),
            'WaitFor "z.done" has no option timout=; did you mean "timeout"?',
        ),
        (lambda: Workflow(5, stage=[]), 'Workflow has no option stage=; did you mean "stages"?'),
    ],
)
def test_an_unknown_keyword_is_answered_with_the_nearest_known(make: Callable[[], object], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        make()
    assert str(caught.value) == said


def test_a_definition_tells_its_keywords_to_whoever_asks() -> None:
    assert list(signature(Workflow).parameters)[:4] == ["name", "version", "input", "stages"]
