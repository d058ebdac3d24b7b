"""Stages, waits, groups, pipelines, workflows: what may stand in what, and in which order it runs."""

import math
import re
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from workflow import Action, Pipeline, Stage, WaitFor, Workflow, action, parallel
from workflow.definitions import rules
from workflow.errors import WorkflowInvalid

# A busy machine is no fault of the code.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run(state):
    return state


async def run_async(state):
    return state


def undo(state): ...


def act(name):
    return Action(name, run)


def stage(name, *actions):
    return Stage(name, actions=list(actions) or [act("a")])


def names(groups):
    return [[member.name for member in group] for group in groups]


# --- groups ------------------------------------------------------------------------------------


a, b, c, d = map(act, "abcd")


@pytest.mark.parametrize(
    ("actions", "groups"),
    [
        ([a], [["a"]]),
        ((a, b), [["a"], ["b"]]),
        ([a, [b, [c]], d], [["a"], ["b"], ["c"], ["d"]]),
        ([[], a], [["a"]]),
        (parallel(a, b), [["a", "b"]]),
        (parallel([a, b]), [["a", "b"]]),
        (parallel(x for x in (a, b)), [["a", "b"]]),
        (parallel(a), [["a"]]),
        ([a, parallel(b, c), d], [["a"], ["b", "c"], ["d"]]),
        ([parallel(a, b), parallel(c, d)], [["a", "b"], ["c", "d"]]),
        ([a, [parallel(b, c), d]], [["a"], ["b", "c"], ["d"]]),
        (parallel(a, parallel(b, parallel([c, d]))), [["a", "b", "c", "d"]]),
        (parallel([parallel(a, b), c]), [["a", "b", "c"]]),
        ((x for x in (a, b)), [["a"], ["b"]]),
    ],
)
def test_lists_are_in_order_and_groups_run_together(actions, groups):
    assert names(Stage("s", actions=actions).items) == groups


def test_stages_group_as_actions_do():
    s, t, u = stage("s"), stage("t"), stage("u")
    assert names(Pipeline("p", stages=[s, parallel(t, u)]).items) == [["s"], ["t", "u"]]
    (pipeline,) = Workflow("w", stages=parallel([s, t])).pipelines
    assert names(pipeline.items) == [["s", "t"]]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ((), "the group is empty"),
        (([],), "the group is empty"),
        ((a, [b, c]), "one by one or as one list"),
        (([a, [b]],), "one by one or as one list"),
        (([a], [b]), "one by one or as one list"),
        ((a, run), r"run is a bare function, wrap it in @action"),
        ((run,), "wrap it in @action"),
        ((a, None), "None is neither an action nor a stage"),
        (
            (a, WaitFor("e")),
            "<WaitFor e> is neither an action nor a stage; a WaitFor goes into wait_for= of a stage",
        ),
        ((WaitFor("e"), WaitFor("e")), "a WaitFor goes into wait_for= of a stage"),
        ((a, BaseModel), "BaseModel'> is neither an action nor a stage"),
        (("ab",), "'ab' is neither"),
    ],
)
def test_groups_that_cannot_be_right(members, message):
    with pytest.raises(WorkflowInvalid, match=rf"^parallel\(\.\.\.\): .*{message}"):
        parallel(*members)


def endless():
    items = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([], "actions= is empty: at least one action is needed"),
        ([[], ()], "actions= is empty"),
        ([a, run], r"actions= takes actions: run is a bare function, wrap it in @action"),
        ([lambda state: None], "wrap it in @action"),
        ([stage("x")], 'actions= takes actions: "x" is a stage; a stage goes into the stages='),
        (parallel(stage("x")), '"x" is a stage'),
        (["a"], "actions= takes actions: 'a' is no action$"),
        ([None], "None is no action"),
        ([BaseModel], "BaseModel'> is no action"),
        (
            [WaitFor("e")],
            "actions= takes actions: <WaitFor e> is no action; a WaitFor goes into wait_for= of a stage$",
        ),
        (a, "actions= takes a list, not <Action a>"),
        ("abc", "actions= takes a list, not 'abc'"),
        ({"a": a}, "actions= takes a list"),
        ({a, b}, "actions= takes a list"),
        (run, "actions= takes a list"),
        (5, "actions= takes a list, not 5"),
        ([a, act("a")], 'two actions are named "a"'),
        ([a, b, a], 'two actions are named "a"'),
        ([a, parallel(b, act("a"))], 'two actions are named "a"'),
        (parallel(a, a), 'two actions are named "a"'),
        (endless(), "nests lists more than 100 deep"),
    ],
)
def test_actions_that_cannot_be_right(actions, message):
    with pytest.raises(WorkflowInvalid, match=f'^Stage "s": .*{message}'):
        Stage("s", actions=actions)


# --- stages and waits --------------------------------------------------------------------------


def test_a_stage_of_its_own_has_an_implicit_action_with_its_options():
    made = Stage(
        "ship",
        run=run_async,
        attempts=7,
        backoff=2,
        timeout=timedelta(minutes=1),
        compensate=undo,
        via="queue",
    )
    ((action,),) = made.items
    assert (action.name, action.implicit, action.run) == ("ship#run", True, run_async)
    assert (action.attempts, action.backoff, action.timeout) == (7, 2.0, 60.0)
    assert action.compensate_handler.fn is undo
    assert action.run_handler.is_async
    assert (action.via, made.via) == ("inline", "queue")
    assert action.atomic is False
    assert (action.when_handler, action.precheck_handler, action.input_adapter, action.output_adapter) == (
        None,
    ) * 4


def test_an_implicit_action_has_the_defaults_of_an_action():
    ((action,),) = Stage("ship", run=run).items
    plain = Action("plain", run)
    for option in (
        "attempts",
        "backoff",
        "timeout",
        "via",
        "compensate_handler",
        "compensate_attempts",
        "atomic",
    ):
        assert getattr(action, option) == getattr(plain, option), option


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, "none of them"),
        ({"actions": [a], "run": run}, "actions= and run="),
        ({"run": run, "wait_for": WaitFor("e")}, "run= and wait_for="),
        ({"actions": [a], "run": run, "wait_for": WaitFor("e")}, "actions= and run= and wait_for="),
    ],
)
def test_a_stage_has_exactly_one_body(options, found):
    with pytest.raises(WorkflowInvalid, match=f'Stage "s": takes exactly one of .*, and was given {found}'):
        Stage("s", **options)


@pytest.mark.parametrize(
    ("option", "value"), [("attempts", 3), ("backoff", None), ("timeout", 300), ("compensate", undo)]
)
def test_options_of_run_go_with_run_alone(option, value):
    with pytest.raises(
        WorkflowInvalid, match=f'Stage "s": {option}= can only be given with run=: each action'
    ):
        Stage("s", actions=[a], **{option: value})
    with pytest.raises(WorkflowInvalid, match=f'Stage "s": {option}= can only be given with run=: a wait'):
        Stage("s", wait_for=WaitFor("e"), **{option: value})
    Stage("s", run=run, **{option: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"run": 5}, "run= must be a function"),
        ({"run": a}, "run= takes a function, not <Action a>"),
        ({"run": run, "attempts": 0}, "attempts="),
        ({"run": run, "timeout": -1}, "timeout="),
        ({"run": run, "backoff": math.nan}, "backoff="),
        ({"run": run, "compensate": 5}, "compensate="),
        ({"run": run, "via": "thread"}, "via="),
        ({"run": run, "output": 5}, "can't build a schema from output="),
        ({"wait_for": "payment.succeeded"}, r"wait_for= takes a WaitFor\(...\)"),
    ],
)
def test_stage_options_that_cannot_be_right(options, message):
    with pytest.raises(WorkflowInvalid, match=f'^Stage "s": .*{message}'):
        Stage("s", **options)


def test_a_stage_checks_the_merge_of_its_outputs():
    class Merged(BaseModel):
        total: int

    made = Stage("s", actions=[a], output=Merged)
    assert made.output is Merged
    assert made.output_adapter.validate_python({"total": 3}) == Merged(total=3)


def test_a_wait_keeps_what_it_was_given():
    wait = WaitFor("payment.succeeded")
    assert (wait.event, wait.timeout, wait.pick, wait.correlate) == (
        "payment.succeeded",
        86_400.0,
        None,
        None,
    )
    assert (wait.pick_handler, wait.correlate_handler) == (None, None)
    assert WaitFor("e", timeout=timedelta(hours=1)).timeout == 3600.0
    assert WaitFor("e", timeout=None).timeout is None
    by_key = WaitFor("e", correlate="order_id")
    assert (by_key.correlate, by_key.correlate_handler) == ("order_id", None)
    assert WaitFor("e", correlate=run).correlate_handler.fn is run
    assert Stage("s", wait_for=wait).wait_for is wait
    assert Stage("s", wait_for=wait).items == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"event": ""}, "event must be a string that is not empty"),
        ({"event": None}, "event must be a string"),
        ({"event": 5}, "event must be a string"),
        ({"event": "a\x00"}, "event holds a control character"),
        ({"event": "\udcff"}, "event holds a control character or a lone surrogate"),
        ({"event": "e" * 256}, "event has at most 255 characters, this has 256"),
        ({"event": "e", "timeout": 0}, "timeout= must be more than 0"),
        ({"event": "e", "timeout": True}, "timeout="),
        ({"event": "e", "pick": 5}, "pick= must be a function"),
        ({"event": "e", "correlate": ""}, "correlate= must be a string that is not empty"),
        ({"event": "e", "correlate": 5}, "correlate= must be a state key or a function"),
        ({"event": "e", "correlate": run_async}, "correlate= must be a plain function"),
        ({"event": "e", "correlate": lambda: ""}, "correlate= is called with one"),
    ],
)
def test_waits_that_cannot_be_right(arguments, message):
    with pytest.raises(WorkflowInvalid, match=f"^WaitFor.*: {message}") as caught:
        WaitFor(**arguments)
    str(caught.value).encode()


# --- pipelines and workflows -------------------------------------------------------------------


def test_stages_make_one_pipeline_of_the_workflows_name():
    (pipeline,) = Workflow("order", stages=[stage("s"), stage("t")]).pipelines
    assert (pipeline.name, names(pipeline.items)) == ("order", [["s"], ["t"]])


def test_stages_may_come_from_a_generator():
    (pipeline,) = Workflow("order", stages=(stage(f"s{i}") for i in range(3))).pipelines
    assert names(pipeline.items) == [["s0"], ["s1"], ["s2"]]


def test_pipelines_stay_in_order():
    pipelines = [Pipeline("second", [stage("s")]), Pipeline("first", [stage("s")])]
    assert Workflow("w", pipelines=pipelines).pipelines == tuple(pipelines)


def test_workflow_defaults():
    made = Workflow("w", stages=[stage("s")])
    assert (made.version, made.on_failure, made.compatible_versions) == (1, "compensate", ())
    assert (made.input, made.input_adapter) == (None, None)
    assert repr(made) == "<Workflow w v1>"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of stages= and pipelines=, and was given neither"),
        ({"stages": [stage("s")], "pipelines": [Pipeline("p", [stage("s")])]}, "was given both"),
        ({"stages": []}, "stages= is empty: at least one stage"),
        ({"pipelines": []}, "pipelines= is empty: at least one pipeline"),
        (
            {"stages": [a]},
            'stages= takes stages: "a" is an action; an action goes into the actions= of a stage',
        ),
        ({"stages": [Pipeline("p", [stage("s")])]}, '"p" is a pipeline; a pipeline goes into the pipelines='),
        ({"stages": ["s"]}, "stages= takes stages: 's' is no stage$"),
        (
            {"stages": [run]},
            r"stages= takes stages: run is a bare function; a stage that runs it is Stage\(name, run=",
        ),
        ({"stages": [WaitFor("e")]}, "<WaitFor e> is no stage; a WaitFor goes into wait_for= of a stage"),
        (
            {"pipelines": [WaitFor("e")]},
            "<WaitFor e> is no pipeline; a WaitFor goes into wait_for= of a stage",
        ),
        ({"pipelines": [run]}, "is no pipeline$"),
        ({"pipelines": [stage("s")]}, 'pipelines= takes pipelines: "s" is a stage'),
        ({"pipelines": [Workflow("x", stages=[stage("s")])]}, "a workflow can't be part of another"),
        ({"pipelines": parallel(stage("s"))}, "pipelines= run one after another"),
        ({"stages": [stage("s"), stage("s", b)]}, 'two stages are named "s"'),
        ({"stages": [stage("s"), parallel(stage("t"), stage("s"))]}, 'two stages are named "s"'),
        (
            {"pipelines": [Pipeline("p", [stage("s")]), Pipeline("p", [stage("t")])]},
            'two pipelines are named "p"',
        ),
        ({"stages": [stage("s")], "version": 0}, "version= must be a whole number"),
        ({"stages": [stage("s")], "version": True}, "version="),
        ({"stages": [stage("s")], "version": "1"}, "version="),
        ({"stages": [stage("s")], "version": 2**31}, "version="),
        (
            {"stages": [stage("s")], "on_failure": "Halt"},
            'on_failure= must be "compensate" or "halt".*did you mean',
        ),
        ({"stages": [stage("s")], "on_failure": None}, "on_failure="),
        ({"stages": [stage("s")], "input": 5}, "can't build a schema from input="),
        (
            {"stages": [stage("s")], "compatible_versions": 1},
            "compatible_versions= takes a list of versions, not 1",
        ),
        ({"stages": [stage("s")], "compatible_versions": "12"}, "compatible_versions= takes a list"),
        ({"stages": [stage("s")], "compatible_versions": [0]}, "compatible_versions="),
        ({"stages": [stage("s")], "compatible_versions": [1, True]}, "compatible_versions="),
        ({"stages": [stage("s")], "compatible_versions": ["1"]}, "compatible_versions="),
    ],
)
def test_workflows_that_cannot_be_right(options, message):
    with pytest.raises(WorkflowInvalid, match=f'^Workflow "w": .*{message}'):
        Workflow("w", **options)


@pytest.mark.parametrize(
    "make",
    [lambda n: stage(n), lambda n: Pipeline(n, [stage("s")]), lambda n: Workflow(n, stages=[stage("s")])],
)
@pytest.mark.parametrize("name", ["", "A", "a.b", "x" * 81, None])
def test_every_level_has_the_same_rule_for_names(make, name):
    with pytest.raises(WorkflowInvalid, match="name"):
        make(name)


def test_a_workflow_serves_its_own_and_the_compatible_versions():
    made = Workflow("w", version=3, compatible_versions=[1, 2], stages=[stage("s")])
    assert [made.serves(version) for version in (1, 2, 3, 4)] == [True, True, True, False]
    assert made.compatible_versions == (1, 2)


def test_a_stage_may_stand_in_two_pipelines_and_an_action_in_two_stages():
    shared = stage("s", a)
    made = Workflow("w", pipelines=[Pipeline("p", [shared]), Pipeline("q", [shared, stage("t", a)])])
    assert {"p.s.a", "q.s.a", "q.t.a"} <= made.tree.by_path.keys()


def test_a_pipeline_is_always_the_same_workflow():
    pipeline = Pipeline("p", [stage("s")])
    made = pipeline.as_workflow()
    assert (made.name, made.version, made.pipelines) == ("p", 1, (pipeline,))
    assert pipeline.as_workflow() is made


def test_a_tree_of_more_than_a_million_nodes_is_refused(monkeypatch):
    wide = [act(f"a{i}") for i in range(1_000)]
    shared = {"actions": wide}
    stages = [Stage(f"s{i}", **shared) for i in range(999)]
    with pytest.raises(
        WorkflowInvalid, match='Pipeline "w": has 1,001,001 nodes, at most 1,000,000 are allowed'
    ):
        Workflow("w", stages=[*stages, Stage("last", actions=wide)])
    halves = [Pipeline("p", stages[:600]), Pipeline("q", stages[:600])]
    with pytest.raises(WorkflowInvalid, match='Workflow "w": has 1,201,202 nodes'):
        Workflow("w", pipelines=halves)
    assert rules.MAX_NODES == 1_000_000


shapes = st.recursive(
    st.integers(0, 9).map(lambda i: ("one", i)),
    lambda inner: st.tuples(st.sampled_from(["list", "group"]), st.lists(inner, min_size=1, max_size=4)),
    max_leaves=20,
)


def build(shape, counter):
    """The shape as a user would write it, and its members in the order in which they are written."""
    kind, inside = shape
    if kind == "one":
        made = act(f"n{len(counter)}")
        counter.append(made)
        return made
    if kind == "list":
        return [build(item, counter) for item in inside]
    return parallel(*[build(("one", 0) if item[0] == "list" else item, counter) for item in inside])


@unhurried
@given(st.lists(shapes, min_size=1, max_size=5))
def test_whatever_the_nesting_no_action_is_lost_and_the_order_is_that_of_writing(some):
    written = []
    items = [build(shape, written) for shape in some]
    kept = [action for group in Stage("s", actions=items).items for action in group]
    assert kept == written


# --- whatever stands where it does not belong ------------------------------------------------------


class Unshowable:
    """Its own repr raises, and so does each attribute that is asked for."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __repr__(self):
        raise ValueError("no repr")


class Numbered:
    """It looks like a definition, but for its name."""

    name, kind = 5, "action"


STRANGERS = [
    stage("s"), Pipeline("p", [stage("s")]), Workflow("w", stages=[stage("s")]), WaitFor("e"), parallel(stage("s")), a,
    WaitFor, Stage, BaseModel, run, "text", b"bytes", 5, 1.5, None, True, {}, {1}, object(), Unshowable(), Numbered(),
]  # fmt: skip
PLACES = {
    "actions": lambda item: Stage("x", actions=[item]),
    "actions itself": lambda item: Stage("x", actions=item),
    "wait_for": lambda item: Stage("x", wait_for=item),
    "stages": lambda item: Workflow("x", stages=[item]),
    "stages itself": lambda item: Workflow("x", stages=item),
    "stages of a pipeline": lambda item: Pipeline("x", [item]),
    "pipelines": lambda item: Workflow("x", pipelines=[item]),
    "pipelines itself": lambda item: Workflow("x", pipelines=item),
    "parallel": lambda item: Stage("x", actions=parallel(b, item)),
    "parallel stages": lambda item: Workflow("x", stages=parallel(stage("b"), item)),
    "name": lambda item: Stage(item, actions=[b]),
    "run": lambda item: Stage("x", run=item),
    "event": lambda item: WaitFor(item),
    "correlate": lambda item: WaitFor("e", correlate=item),
    "pick": lambda item: WaitFor("e", pick=item),
    "decorator": action,
    "versions": lambda item: Workflow("x", stages=[stage("s")], compatible_versions=item),
}


def refusal(place, item):
    try:
        PLACES[place](item)
    except WorkflowInvalid as error:
        return str(error)
    return None


@pytest.mark.parametrize("place", PLACES)
def test_whatever_stands_in_a_wrong_place_is_a_fault_with_a_place_and_a_rule(place):
    said = [message for item in STRANGERS if (message := refusal(place, item)) is not None]
    assert len(said) > 10
    for message in said:
        assert re.match(r"(Stage|Pipeline|Workflow|WaitFor|parallel|@action)\b.*: .+", message)
