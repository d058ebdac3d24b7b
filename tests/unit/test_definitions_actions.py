"""Actions: the decorator, names, numbers, schemas, compensation, and that they still are functions."""

import inspect
import math
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from workflow import Action, Stage, Workflow, action
from workflow.errors import WorkflowInvalid

# A busy machine is no fault of the code.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class OrderInput(BaseModel):
    order_id: str


def run(state):
    return {"ran": state}


async def run_async(state):
    return state


def undo(state, ctx): ...


def test_a_bare_decorator_takes_name_and_defaults():
    @action
    def reserve_stock(state):
        """Puts goods aside."""
        return state

    assert isinstance(reserve_stock, Action)
    assert reserve_stock.name == "reserve_stock"
    assert reserve_stock.__doc__ == "Puts goods aside."
    assert reserve_stock.__name__ == "reserve_stock"
    assert list(inspect.signature(reserve_stock).parameters) == ["state"]
    defaults = {
        "input": None,
        "input_adapter": None,
        "output": None,
        "output_adapter": None,
        "attempts": 3,
        "backoff": None,
        "timeout": 300.0,
        "via": "inline",
        "when": None,
        "precheck": None,
        "compensate_handler": None,
        "compensate_attempts": 3,
        "atomic": False,
        "implicit": False,
    }
    assert {name: getattr(reserve_stock, name) for name in defaults} == defaults


def test_a_decorator_with_options_keeps_them():
    @action(
        name="charge-card",
        input=OrderInput,
        attempts=5,
        backoff=timedelta(seconds=2),
        timeout=None,
        via="queue",
    )
    def charge(input, ctx):  # noqa: A002
        return {"charged": input.order_id}

    assert (charge.name, charge.attempts, charge.backoff, charge.timeout) == ("charge-card", 5, 2.0, None)
    assert (charge.via, charge.run_handler.wants_ctx) == ("queue", True)
    assert charge.input is OrderInput
    assert charge.input_adapter.validate_python({"order_id": "o-1"}) == OrderInput(order_id="o-1")


def test_an_action_is_called_like_the_plain_function():
    @action(input=OrderInput)
    def charge(input, ctx=None):  # noqa: A002
        return (input, ctx)

    assert charge("anything", ctx=5) == ("anything", 5)


async def test_an_async_action_is_awaited_like_the_plain_function():
    assert await action(run_async)(7) == 7


@pytest.mark.parametrize("name", ["a", "0", "charge-card", "a_b", "9to5", "a" * 80])
def test_good_names(name):
    assert Action(name, run).name == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", 'Action "": a name is made of'),
        ("Charge", 'Action "Charge": a name is made of lowercase'),
        ("a.b", "a name is made of"),
        ("a#run", "a name is made of"),
        ("-a", "starts with a letter or a digit"),
        ("_a", "starts with a letter or a digit"),
        ("a\n", "a name is made of"),
        ("größe", "a name is made of"),
        ("٣", "a name is made of"),
        ("a\x00", "a name is made of"),
        ("\ud800", "a name is made of"),
        ("a" * 81, "at most 80 characters, this has 81"),
        (None, "Action: the name must be a string, not None"),
        (b"a", "Action: the name must be a string"),
        (run, "Action: the name must be a string"),
    ],
)
def test_bad_names(name, message):
    with pytest.raises(WorkflowInvalid, match=message) as caught:
        Action(name, run)
    str(caught.value).encode()  # can be printed, whatever was in the name


@unhurried
@given(st.text(max_size=90))
def test_a_name_is_either_kept_or_refused_in_words_that_can_be_printed(name):
    letters = set("abcdefghijklmnopqrstuvwxyz0123456789_-")
    if 0 < len(name) <= 80 and set(name) <= letters and name[0] not in "_-":
        assert Action(name, run).name == name
        return
    with pytest.raises(WorkflowInvalid) as caught:
        Action(name, run)
    assert str(caught.value).encode()


@unhurried
@given(st.text("ab0_-", max_size=90))
def test_names_of_good_letters_fail_only_by_length_and_first_letter(name):
    if 0 < len(name) <= 80 and name[0] not in "_-":
        assert Action(name, run).name == name
    else:
        with pytest.raises(WorkflowInvalid):
            Action(name, run)


def test_a_function_whose_name_will_not_do_needs_one_given():
    def Charge(state): ...  # noqa: N802

    for fn in (Charge, lambda state: None):
        with pytest.raises(
            WorkflowInvalid, match=r"@action: can't take its name from the function.*give name="
        ):
            action(fn)
        assert action(name="charge")(fn).name == "charge"


def test_a_name_may_be_given_by_position_once():
    @action("take-money", attempts=5)
    def charge(state): ...

    assert (charge.name, charge.attempts) == ("take-money", 5)
    with pytest.raises(WorkflowInvalid, match="@action: is given two names, 'a' and 'b'"):
        action("a", name="b")
    with pytest.raises(WorkflowInvalid, match="lowercase"):
        action("Take money")(run)


@pytest.mark.parametrize("thing", ["charge", 5, Action("a", run), None])
def test_the_decorator_takes_functions_alone(thing):
    with pytest.raises(WorkflowInvalid, match="@action: decorates a function"):
        action()(thing)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attempts": 0}, "attempts= must be a whole number from 1 to 1,000,000, not 0"),
        ({"attempts": -1}, "attempts="),
        ({"attempts": True}, "attempts= .*not True"),
        ({"attempts": 1.5}, "attempts="),
        ({"attempts": 1_000_001}, "attempts="),
        ({"attempts": None}, "attempts="),
        ({"attempts": "3"}, "attempts="),
        ({"attempts": math.nan}, "attempts="),
        ({"compensate_attempts": 0}, "compensate_attempts= must be a whole number"),
        ({"compensate_attempts": False}, "compensate_attempts="),
        ({"timeout": 0}, "timeout= must be more than 0 seconds, not 0"),
        ({"timeout": -3}, "timeout="),
        ({"timeout": timedelta(0)}, "timeout= must be more than 0"),
        ({"timeout": timedelta(seconds=-1)}, "timeout="),
        ({"timeout": math.nan}, "timeout= must be more than 0 seconds, not nan"),
        ({"timeout": math.inf}, "timeout= must be below a hundred years"),
        ({"timeout": 10**400}, "timeout= must be below a hundred years"),
        ({"timeout": -(10**400)}, "timeout="),
        ({"timeout": timedelta.max}, "timeout= must be below a hundred years"),
        ({"timeout": True}, "timeout= must be a number of seconds or a timedelta, not True"),
        ({"timeout": "30"}, "timeout= must be a number"),
        ({"timeout": Decimal(3)}, "timeout= must be a number"),
        ({"backoff": -1}, "backoff= must be 0 or more seconds"),
        ({"backoff": math.nan}, "backoff="),
        ({"backoff": math.inf}, "backoff="),
        ({"backoff": True}, "backoff="),
        ({"backoff": "linear"}, "backoff= must be a number"),
        ({"via": "queued"}, 'via= must be "inline" or "queue", not .queued.; did you mean "queue"'),
        ({"via": None}, 'via= must be "inline" or "queue", not None'),
        ({"via": ["queue"]}, "via= must be"),
        ({"atomic": 1}, "atomic= must be True or False"),
        ({"compensate": 5}, "compensate= must be a function"),
        ({"compensate": lambda: None}, "compensate= is called with one or two"),
        ({"input": "OrderInput"}, "input= takes a type, not its name 'OrderInput'"),
        ({"input": object()}, "can't build a schema from input="),
        ({"input": OrderInput(order_id="1")}, "input= takes a model, not an instance of OrderInput"),
        ({"output": {"order_id": str}}, "output= takes a pydantic model or a type, not a dict"),
        ({"input": [int]}, "input= takes a pydantic model or a type, not a list"),
    ],
)
def test_options_that_cannot_be_right(options, message):
    with pytest.raises(WorkflowInvalid, match=f'^Action "a": .*{message}'):
        Action("a", run, **options)


@pytest.mark.parametrize(
    ("option", "given", "kept"),
    [
        ("timeout", 30, 30.0),
        ("timeout", 0.001, 0.001),
        ("timeout", timedelta(minutes=1), 60.0),
        ("timeout", None, None),
        ("backoff", 0, 0.0),
        ("backoff", 1.5, 1.5),
        ("backoff", timedelta(milliseconds=250), 0.25),
        ("attempts", 1_000_000, 1_000_000),
    ],
)
def test_numbers_are_kept_as_seconds_and_counts(option, given, kept):
    value = getattr(Action("a", run, **{option: given}), option)
    assert value == kept
    assert type(value) is type(kept)


def test_a_value_whose_repr_raises_is_still_refused_in_words():
    class Nasty:
        def __repr__(self):
            raise RuntimeError("no")

    with pytest.raises(WorkflowInvalid, match=r"attempts= .*Nasty"):
        Action("a", run, attempts=Nasty())


@pytest.mark.parametrize("schema", [OrderInput, dict[str, int], int | None, TypeAdapter(list[int])])
def test_schemas_are_whatever_pydantic_takes(schema):
    made = Action("a", run, input=schema, output=schema)
    assert isinstance(made.input_adapter, TypeAdapter)
    assert isinstance(made.output_adapter, TypeAdapter)
    assert made.input is made.output is schema


def test_a_model_may_name_one_that_is_defined_later():
    class Basket(BaseModel):
        item: "Item"

    made = Action("a", run, input=Basket)

    class Item(BaseModel):
        sku: str

    Basket.model_rebuild(_types_namespace={"Item": Item})
    _ = Workflow("w", stages=[Stage("s", actions=[made])]).tree
    assert made.input_adapter.validate_python({"item": {"sku": "x"}}).item.sku == "x"


def test_a_name_that_never_gets_defined_is_refused_when_the_workflow_is_used():
    made = Action("a", run, output=list["Nowhere"])  # noqa: F821
    workflow = Workflow("w", stages=[Stage("s", actions=[made])])
    with pytest.raises(WorkflowInvalid, match=r'Action "a": pydantic .* the schema of output=.*Nowhere'):
        _ = workflow.tree


def test_atomic_needs_a_plain_function():
    assert Action("a", run, atomic=True, compensate=run_async).atomic
    with pytest.raises(WorkflowInvalid, match='Action "a": atomic=True needs a plain function'):
        Action("a", run_async, atomic=True)


def test_the_compensation_is_set_by_decorator_and_stays_a_function():
    made = Action("a", run)
    assert made.compensate(undo) is undo
    assert made.compensate_handler.fn is undo
    assert made.compensate_handler.wants_ctx


def test_a_second_compensation_is_refused():
    by_option = Action("a", run, compensate=undo)
    by_decorator = Action("b", run)
    by_decorator.compensate(undo)
    for made in (by_option, by_decorator):
        with pytest.raises(WorkflowInvalid, match=f'Action "{made.name}": has a compensation already'):
            made.compensate(undo)


def test_a_compensation_may_follow_the_workflow_but_not_its_use():
    made = Action("a", run)
    other = Action("b", run)
    workflow = Workflow("w", stages=[Stage("s", actions=[made, other])])
    made.compensate(undo)
    _ = workflow.tree
    with pytest.raises(WorkflowInvalid, match='Action "b": is in use already'):
        other.compensate(undo)


def test_a_compensation_that_cannot_be_called_is_refused():
    with pytest.raises(WorkflowInvalid, match='Action "a": compensate= is called with'):
        Action("a", run).compensate(lambda a, b, c: None)


def test_definitions_do_not_change_once_made():
    made = Action("a", run)
    with pytest.raises(AttributeError, match="<Action a> does not change"):
        made.attempts = 9
    assert made.attempts == 3


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("retries", '; did you mean "attempts"?'),
        ("max_attempts", '; did you mean "attempts"?'),
        ("time_out", '; did you mean "timeout"?'),
        ("self", ""),
        ("zzz", ""),
    ],
)
def test_an_option_that_there_is_not_is_told_with_the_action_and_the_nearest(option, meant):
    with pytest.raises(TypeError) as caught:
        action(**{option: 3})(run)
    assert str(caught.value) == f'@action "run" has no option {option}={meant}'
