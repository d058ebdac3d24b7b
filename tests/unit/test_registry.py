"""The registry: names and versions, discovery in installed apps, and faults that are kept for the checks."""

import sys
import textwrap
from threading import Barrier, Thread

import pytest
from django.apps import apps
from django.test import override_settings
from pydantic import BaseModel

from workflow import Action, Pipeline, Stage, Workflow
from workflow.errors import VersionConflict, WorkflowInvalid, WorkflowUnknown
from workflow.registry import Registry


def run(state):
    return state


def make(name="order", **options):
    return Workflow(name, stages=[Stage("s", run=run)], **options)


def pipeline(name="order"):
    return Pipeline(name, stages=[Stage("s", run=run)])


@pytest.fixture
def registry():
    return Registry()


# --- names and versions ------------------------------------------------------------------------


def test_a_registered_workflow_is_found_by_name(registry):
    order = make()
    assert registry.register(order) is order
    assert registry.get("order") is order


def test_the_same_object_twice_is_nothing(registry):
    order = make()
    registry.register(order)
    registry.register(order)
    assert registry.all() == [order]


def test_another_definition_of_the_same_name_and_version_is_invalid(registry):
    order = registry.register(make())
    with pytest.raises(WorkflowInvalid, match=r'Workflow "order": version 1 is registered already'):
        registry.register(make())
    assert registry.get("order") is order


def test_the_same_name_at_another_version_is_a_conflict(registry):
    order = registry.register(make())
    with pytest.raises(VersionConflict, match=r"version 1 is registered already, so version 2"):
        registry.register(make(version=2))
    assert registry.get("order") is order


def test_all_is_in_order_of_names(registry):
    for name in ("b", "a", "c"):
        registry.register(make(name))
    assert [workflow.name for workflow in registry.all()] == ["a", "b", "c"]


@pytest.mark.parametrize("thing", [Stage("s", run=run), Action("a", run), run, None, "order", 5])
def test_nothing_else_can_be_registered(registry, thing):
    with pytest.raises(WorkflowInvalid, match="only a Workflow or a Pipeline"):
        registry.register(thing)


def test_a_schema_that_cannot_be_completed_is_a_fault_of_registering(registry):
    class Basket(BaseModel):
        item: "Nowhere"  # noqa: F821

    with pytest.raises(WorkflowInvalid, match=r'Workflow "order": pydantic .* schema of input=.*Nowhere'):
        registry.register(make(input=Basket))
    assert registry.all() == []


def test_an_unknown_name_is_answered_with_the_nearest_known(registry):
    registry.register(make("order-fulfillment"))
    with pytest.raises(WorkflowUnknown, match=r"'order-fulfilment'; did you mean \"order-fulfillment\"\?"):
        registry.get("order-fulfilment")
    with pytest.raises(
        WorkflowUnknown,
        match=r"'zzz'; registered are the Workflow objects at the top level of an app's workflows\.py$",
    ):
        registry.get("zzz")


@pytest.mark.parametrize("name", [None, 5, [], {"a": 1}, "\ud800", "x" * 10_000])
def test_a_name_of_any_kind_is_just_unknown(registry, name):
    with pytest.raises(WorkflowUnknown) as caught:
        registry.get(name)
    assert len(str(caught.value).encode()) < 200


def test_serves_answers_for_the_version_and_its_compatible_ones(registry):
    order = registry.register(make(version=3, compatible_versions=[1]))
    assert registry.serves("order", 3) is order
    assert registry.serves("order", 1) is order
    assert registry.serves("order", 2) is None
    assert registry.serves("other", 3) is None


def test_a_definition_is_registered_by_being_asked_for(registry):
    order = make()
    assert registry.as_workflow(order) is order
    assert registry.as_workflow("order") is order
    with pytest.raises(WorkflowInvalid, match="only a Workflow or a Pipeline"):
        registry.as_workflow(run)


def test_a_pipeline_is_a_workflow_of_its_own(registry):
    checkout = pipeline("checkout")
    workflow = registry.as_workflow(checkout)
    assert (workflow.name, workflow.version, workflow.pipelines) == ("checkout", 1, (checkout,))
    assert registry.as_workflow(checkout) is workflow
    assert registry.register(checkout) is workflow


def test_threads_that_register_one_pipeline_agree_on_its_workflow(registry):
    for _ in range(50):
        checkout = pipeline("checkout")
        start, got = Barrier(4), []

        def ask(start=start, got=got, checkout=checkout):
            start.wait()
            got.append(registry.as_workflow(checkout))

        threads = [Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 4
        assert len(set(map(id, got))) == 1
        registry.clear()


def test_threads_that_register_rivals_leave_one_and_tell_the_others(registry):
    rivals, start, refused = [make() for _ in range(4)], Barrier(4), []

    def register(rival):
        start.wait()
        try:
            registry.register(rival)
        except WorkflowInvalid:
            refused.append(rival)

    threads = [Thread(target=register, args=[rival]) for rival in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = registry.all()
    assert len(refused) == 3
    assert winner not in refused


def test_what_is_registered_in_isolation_is_forgotten(registry):
    order = registry.register(make())
    with registry.isolated() as inside:
        inside.register(make("other"))
        assert len(inside.all()) == 2
        inside.clear()
        assert inside.all() == []
    assert registry.all() == [order]


# --- discovery ---------------------------------------------------------------------------------

HEAD = """
from workflow import Pipeline, Stage, Workflow, parallel

def run(state):
    return state

"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install throw-away apps: ``install(name=source)``; one with None as source has no workflows.py."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def install_apps(**sources):
        for name, source in sources.items():
            package = tmp_path / name
            package.mkdir()
            (package / "__init__.py").touch()
            if source is not None:
                (package / "workflows.py").write_text(HEAD + textwrap.dedent(source))
        made.extend(sources)
        override = override_settings(INSTALLED_APPS=["django.contrib.contenttypes", *sources])
        override.enable()
        undo.append(override)

    undo = []
    yield install_apps
    for override in undo:
        override.disable()
    for module in [m for m in sys.modules if m.partition(".")[0] in made]:
        del sys.modules[module]


def registered(registry):
    return [workflow.name for workflow in registry.all()]


def test_module_level_workflows_and_pipelines_of_all_apps_are_found(registry, install):
    install(
        saga_one="""
            order = Workflow("order", version=4, stages=[Stage("s", run=run)])
            again = order
            hidden = [Workflow("hidden", stages=[Stage("s", run=run)])]
            stage = Stage("alone", run=run)
        """,
        saga_two="""
            from saga_one.workflows import order
            checkout = Pipeline("checkout", stages=[Stage("s", run=run)])
            flow = Workflow("flow", pipelines=[checkout])
        """,
        saga_three=None,
    )
    registry.autodiscover()
    assert registered(registry) == ["checkout", "flow", "order"]
    assert registry.get("order").version == 4
    assert registry.faults == []


def test_discovery_can_be_repeated(registry, install):
    install(saga_one='order = Workflow("order", stages=[Stage("s", run=run)])')
    registry.autodiscover()
    order = registry.get("order")
    registry.autodiscover()
    assert registry.all() == [order]
    assert registry.faults == []


@pytest.mark.parametrize("pipeline_first", [True, False])
def test_a_pipeline_named_like_a_workflow_is_not_registered_alone(registry, install, pipeline_first):
    sources = {
        "saga_one": 'part = Pipeline("checkout", stages=[Stage("s", run=run)])',
        "saga_two": 'whole = Workflow("checkout", version=2, stages=[Stage("s", run=run)])',
    }
    install(**(sources if pipeline_first else dict(reversed(sources.items()))))
    registry.autodiscover()
    assert registry.get("checkout").version == 2
    assert registry.faults == []


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (1, "version 1 is registered already, with another definition, that of saga_one.workflows"),
        (2, "version 1 is registered already by saga_one.workflows, so version 2 can't be as well"),
    ],
)
def test_of_two_definitions_of_one_name_the_other_module_is_told(registry, install, version, said):
    install(
        saga_one='order = Workflow("order", stages=[Stage("s", run=run)])',
        saga_two=f'order = Workflow("order", version={version}, stages=[Stage("s", run=run)])',
    )
    registry.autodiscover()
    ((place, error),) = registry.faults
    assert (place, str(error)) == ("saga_two.workflows", f'Workflow "order": {said}')


def test_two_pipelines_of_one_name_are_a_fault(registry, install):
    source = 'part = Pipeline("main", stages=[Stage("s", run=run)])'
    install(saga_one=source, saga_two=source)
    registry.autodiscover()
    ((place, error),) = registry.faults
    assert place == "saga_two.workflows"
    assert isinstance(error, WorkflowInvalid)
    registry.autodiscover()
    assert len(registry.faults) == 1


def test_faults_of_definitions_are_kept_and_the_other_apps_still_found(registry, install):
    install(
        saga_one='broken = Workflow("broken", stages=[])',
        saga_two='order = Workflow("order", stages=[Stage("s", run=run)])',
        saga_three='order = Workflow("order", version=2, stages=[Stage("s", run=run)])',
        saga_four='late = Workflow("late", input=list["Nowhere"], stages=[Stage("s", run=run)])',
    )
    registry.autodiscover()
    assert registered(registry) == ["order"]
    assert [(place, type(error)) for place, error in registry.faults] == [
        ("saga_one.workflows", WorkflowInvalid),
        ("saga_three.workflows", VersionConflict),
        ("saga_four.workflows", WorkflowInvalid),
    ]
    assert 'Workflow "broken": stages= is empty' in str(registry.faults[0][1])
    with pytest.raises(
        WorkflowUnknown, match=r"faults were found in saga_one.workflows, .*see manage.py check"
    ):
        registry.get("broken")


def test_a_fault_that_was_mended_is_gone_after_the_next_discovery(registry, install, tmp_path):
    install(saga_one='broken = Workflow("broken", stages=[])')
    registry.autodiscover()
    assert len(registry.faults) == 1
    source = HEAD + 'broken = Workflow("mended", stages=[Stage("s", run=run)])  # longer than before\n'
    (tmp_path / "saga_one" / "workflows.py").write_text(source)
    registry.autodiscover()
    assert registry.faults == []
    assert registered(registry) == ["mended"]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import no_such_module_at_all", ModuleNotFoundError),
        ("1 / 0", ZeroDivisionError),
        ("def broken(:", SyntaxError),
    ],
)
def test_other_exceptions_of_a_module_propagate(registry, install, source, error):
    install(saga_one=source)
    with pytest.raises(error):
        registry.autodiscover()


def test_the_line_of_a_fault_is_that_of_the_module_itself(registry, install):
    install(
        saga_one="""
            def make():
                return Workflow("order", stages=[Stage("pay", actions=[])])

            order = make()
        """
    )
    registry.autodiscover()
    ((_, error),) = registry.faults
    assert str(error) == 'Stage "pay": actions= is empty: at least one action is needed (workflows.py:9)'


def test_discovery_does_not_wake_lazy_objects(registry, install):
    install(
        saga_one="""
            from django.utils.functional import SimpleLazyObject
            def wake():
                raise AssertionError("asked the database while starting")
            lazy = SimpleLazyObject(wake)
            order = Workflow("order", stages=[Stage("s", run=run)])
        """
    )
    registry.autodiscover()
    assert registered(registry) == ["order"]


def test_a_module_may_register_by_hand_while_it_is_imported(install):
    from workflow.registry import registry as shared

    install(
        saga_one="""
            from workflow.registry import registry
            order = Workflow("saga-one-order", stages=[Stage("s", run=run)])
            registry.register(order)
            registry.register(Workflow("saga-one-inner", stages=[Stage("s", run=run)]))
        """
    )
    with shared.isolated():
        shared.clear()
        shared.autodiscover()
        assert registered(shared) == ["saga-one-inner", "saga-one-order"]
        assert shared.faults == []


def test_the_apps_of_this_test_run_have_no_faults():
    from workflow.registry import registry as shared

    assert apps.is_installed("workflow")
    assert shared.faults == []
