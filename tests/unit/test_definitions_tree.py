"""The compiled tree: order, paths, groups, units, and the fingerprint that tells two trees apart."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workflow import Action, Pipeline, Stage, WaitFor, Workflow, parallel
from workflow.definitions import placed

# A busy machine is no fault of the code.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run(state):
    return state


def act(name, **options):
    return Action(name, run, **options)


@pytest.fixture
def workflow():
    shipping = Stage("shipping", via="queue", actions=parallel(act("label"), act("mail", via="queue")))
    checkout = Pipeline(
        "checkout", [Stage("pay", actions=[act("charge")]), Stage("paid", wait_for=WaitFor("payment"))]
    )
    fulfil = Pipeline(
        "fulfil", [parallel(shipping, Stage("thank", run=run)), Stage("close", run=run, via="queue")]
    )
    return Workflow("order", pipelines=[checkout, fulfil])


def test_nodes_stand_in_tree_order_with_their_place(workflow):
    tree = workflow.tree
    rows = [(n.ordinal, n.path, n.kind, n.parent, n.groups, n.own_job, n.unit, n.end) for n in tree.nodes]
    assert rows == [
        (0, "", "run", -1, ((1,), (5,)), False, 0, 13),
        (1, "checkout", "pipeline", 0, ((2,), (4,)), True, 1, 5),
        (2, "checkout.pay", "stage", 1, ((3,),), False, 1, 4),
        (3, "checkout.pay.charge", "action", 2, (), False, 1, 4),
        (4, "checkout.paid", "stage", 1, (), False, 1, 5),
        (5, "fulfil", "pipeline", 0, ((6, 9), (11,)), True, 5, 13),
        (6, "fulfil.shipping", "stage", 5, ((7, 8),), True, 6, 9),
        (7, "fulfil.shipping.label", "action", 6, (), False, 6, 8),
        (8, "fulfil.shipping.mail", "action", 6, (), True, 8, 9),
        (9, "fulfil.thank", "stage", 5, ((10,),), False, 5, 11),
        (10, "fulfil.thank.thank#run", "action", 9, (), False, 5, 11),
        (11, "fulfil.close", "stage", 5, ((12,),), True, 11, 13),
        (12, "fulfil.close.close#run", "action", 11, (), False, 11, 13),
    ]


def test_nodes_know_their_definition_name_and_key(workflow):
    tree = workflow.tree
    assert tree.nodes[0].definition is workflow
    assert (tree.nodes[0].name, tree.nodes[0].key) == ("order", "order")
    assert tree.by_path["checkout"].definition is workflow.pipelines[0]
    assert tree.by_path["checkout.pay.charge"].definition.name == "charge"
    keys = {path: node.key for path, node in tree.by_path.items()}
    assert keys["checkout.pay.charge"] == "charge"
    assert keys["checkout.paid"] == "paid"
    assert keys["fulfil.thank.thank#run"] == "thank"


def test_paths_lead_to_nodes_and_none_to_the_root(workflow):
    tree = workflow.tree
    assert [node.ordinal for node in tree.by_path.values()] == list(range(1, 13))
    assert "" not in tree.by_path


def test_the_tree_is_compiled_once(workflow):
    assert workflow.tree is workflow.tree


@pytest.mark.parametrize(
    ("stages", "concurrent"),
    [
        ([Stage("s", run=run)], False),
        ([Stage("s", actions=[act("a"), act("b")])], False),
        ([Stage("s", actions=parallel(act("a")))], False),
        ([Stage("s", actions=parallel(act("a"), act("b")))], True),
        ([parallel(Stage("s", run=run), Stage("t", run=run))], True),
    ],
)
def test_the_tree_says_whether_anything_runs_side_by_side(stages, concurrent):
    assert Workflow("w", stages=stages).tree.has_groups is concurrent


def fingerprint(*stages, **options):
    return Workflow("w", stages=list(stages), **options).tree.fingerprint


def test_the_fingerprint_is_stable_and_knows_nothing_but_the_shape():
    plain = fingerprint(Stage("s", actions=[act("a")]))
    assert plain == fingerprint(
        Stage("s", actions=[act("a", attempts=9, timeout=1, compensate=run)]), version=2
    )
    assert plain == "49c83a60aee315511cf0fd65183ed99a"  # stored with runs, so a release must not change it
    assert len(plain) == 32


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([Stage("s", actions=[act("a"), act("c"), act("b")]), "w"], id="an action more"),
        pytest.param([Stage("s", actions=[act("b"), act("a")]), "w"], id="another order"),
        pytest.param([Stage("s", actions=parallel(act("a"), act("b"))), "w"], id="a group"),
        pytest.param([Stage("s", actions=[act("a", via="queue"), act("b")]), "w"], id="another placement"),
        pytest.param([Stage("s", via="queue", actions=[act("a"), act("b")]), "w"], id="a queued stage"),
        pytest.param([Stage("s", actions=[act("a"), act("x")]), "w"], id="another name"),
        pytest.param([Stage("s", actions=[act("a"), act("b")]), "other"], id="another event"),
    ],
)
def test_the_fingerprint_changes_with_the_shape(other):
    def of(stage, event):
        return fingerprint(stage, Stage("w", wait_for=WaitFor(event)))

    assert of(*other) != of(Stage("s", actions=[act("a"), act("b")]), "w")


def test_the_name_of_a_workflow_of_pipelines_is_not_part_of_its_shape():
    pipeline = Pipeline("p", [Stage("s", run=run)])
    one, two = Workflow("one", pipelines=[pipeline]), Workflow("two", pipelines=[pipeline])
    assert one.tree.fingerprint == two.tree.fingerprint


places = st.sampled_from(["inline", "queue"])


@st.composite
def workflows(draw):
    def grouped(items):
        groups = []
        while items:
            size = draw(st.integers(1, len(items)))
            groups.append(parallel(items[:size]) if size > 1 or draw(st.booleans()) else items[0])
            items = items[size:]
        return groups

    def stage(name):
        via = draw(places)
        kind = draw(st.sampled_from(["actions", "run", "wait"]))
        if kind == "run":
            return Stage(name, run=run, via=via)
        if kind == "wait":
            return Stage(name, wait_for=WaitFor("e"), via=via)
        actions = [act(f"a{i}", via=draw(places)) for i in range(draw(st.integers(1, 5)))]
        return Stage(name, actions=grouped(actions), via=via)

    def pipeline(name):
        return Pipeline(name, grouped([stage(f"s{i}") for i in range(draw(st.integers(1, 4)))]))

    return Workflow("w", pipelines=[pipeline(f"p{i}") for i in range(draw(st.integers(1, 3)))])


@unhurried
@given(workflows())
def test_every_tree_is_well_formed(workflow):
    tree = workflow.tree
    nodes = tree.nodes
    assert [node.ordinal for node in nodes] == list(range(len(nodes)))
    assert len(nodes) == workflow.size + 1
    for node in nodes:
        children = [ordinal for group in node.groups for ordinal in group]
        # The children tile the subtree: each begins where the one before it ends.
        assert [nodes[child].parent for child in children] == [node.ordinal] * len(children)
        starts = [node.ordinal + 1, *(nodes[child].end for child in children)]
        assert [*children, node.end] == starts
        if node.ordinal == 0:
            continue
        parent = nodes[node.parent]
        assert node.path == (f"{parent.path}.{node.name}" if parent.path else node.name)
        assert node.unit == (node.ordinal if node.own_job else parent.unit)
        assert tree.by_path[node.path] is node
    assert all(nodes[node.unit].own_job for node in nodes[1:])


@unhurried
@given(workflows(), st.data())
def test_a_tree_that_is_placed_as_another_one_has_the_units_of_that(workflow, data):
    tree = workflow.tree
    own_jobs = tuple(
        node.kind == "pipeline" or (node.ordinal > 0 and data.draw(st.booleans())) for node in tree.nodes
    )
    found = placed(tree, own_jobs)
    assert tuple(node.own_job for node in found.nodes) == own_jobs
    assert all(found.by_path[node.path] is node for node in found.nodes[1:])
    for node, was in zip(found.nodes[1:], tree.nodes[1:], strict=True):
        assert node.unit == (node.ordinal if node.own_job else found.nodes[node.parent].unit)
        assert (node.path, node.groups, node.definition) == (was.path, was.groups, was.definition)
    back = placed(found, tuple(node.own_job for node in tree.nodes))
    assert (back.nodes, back.fingerprint) == (tree.nodes, tree.fingerprint)
    assert placed(tree, tuple(node.own_job for node in tree.nodes)) is tree
