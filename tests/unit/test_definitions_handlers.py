"""Which callables may be handlers, how many arguments they get, and whether they are async."""

import functools
from unittest.mock import AsyncMock, Mock

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from workflow import Action, Stage, WaitFor
from workflow.errors import WorkflowInvalid


def one(state):
    return state


def two(state, ctx):
    return state


async def one_async(state):
    return state


async def two_async(state, ctx):
    return state


def passing_on(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


def of_one_argument(fn):
    @functools.wraps(fn)
    def wrapper(state):
        return fn(state, None)

    return wrapper


class Methods:
    def one(self, state): ...

    def two(self, state, ctx): ...

    @passing_on
    def decorated(self, state): ...

    async def two_async(self, state, ctx): ...

    @classmethod
    def of_class(cls, state): ...

    @staticmethod
    async def static(state, ctx): ...


class Callable:
    def __call__(self, state, ctx): ...


class AsyncCallable:
    async def __call__(self, state): ...


class GeneratorCallable:
    def __call__(self, state):
        yield state


def generator(state):
    yield state


async def async_generator(state):
    yield state


@pytest.mark.parametrize(
    ("fn", "is_async", "wants_ctx"),
    [
        pytest.param(one, False, False, id="one argument"),
        pytest.param(two, False, True, id="two arguments"),
        pytest.param(one_async, True, False, id="async, one"),
        pytest.param(two_async, True, True, id="async, two"),
        pytest.param(lambda state: None, False, False, id="lambda"),
        pytest.param(lambda *args: None, False, True, id="star args"),
        pytest.param(lambda state, *rest: None, False, True, id="one and star args"),
        pytest.param(lambda state, **options: None, False, False, id="keywords"),
        pytest.param(lambda state, *, limit=3: None, False, False, id="optional keyword"),
        pytest.param(lambda state, ctx=None: None, False, True, id="optional ctx"),
        pytest.param(lambda state, _ctx=0: None, False, True, id="ctx by name"),
        pytest.param(lambda state, i=7: None, False, False, id="value bound as a default"),
        pytest.param(lambda state, i=7, j=8: None, False, False, id="two values bound"),
        pytest.param(lambda state, ctx, i=7: None, False, True, id="ctx, then a value bound"),
        pytest.param(Methods().one, False, False, id="bound method"),
        pytest.param(Methods().two, False, True, id="bound method of two"),
        pytest.param(Methods().decorated, False, False, id="decorated method"),
        pytest.param(Methods().two_async, True, True, id="async bound method"),
        pytest.param(Methods.of_class, False, False, id="classmethod"),
        pytest.param(Methods.static, True, True, id="async staticmethod"),
        pytest.param(Callable(), False, True, id="callable object"),
        pytest.param(AsyncCallable(), True, False, id="async callable object"),
        pytest.param(functools.partial(two, ctx=1), False, False, id="partial by keyword"),
        pytest.param(functools.partial(two, {}), False, False, id="partial by position"),
        pytest.param(functools.partial(two_async), True, True, id="partial of async"),
        pytest.param(functools.partial(AsyncCallable()), True, False, id="partial of async object"),
        pytest.param(functools.partial(functools.partial(one_async)), True, False, id="partial of partial"),
        pytest.param(passing_on(one), False, False, id="decorator that passes on, one"),
        pytest.param(passing_on(passing_on(two)), False, True, id="decorators that pass on, two"),
        pytest.param(of_one_argument(two), False, False, id="decorator with a signature of its own"),
        pytest.param(async_to_sync(two_async), False, True, id="async_to_sync"),
        pytest.param(sync_to_async(one), True, False, id="sync_to_async"),
        pytest.param(Mock(), False, True, id="mock"),
        pytest.param(AsyncMock(), True, True, id="async mock"),
        pytest.param(dict, False, False, id="builtin without a signature"),
        pytest.param(len, False, False, id="builtin"),
    ],
)
def test_a_handler_is_described_as_it_must_be_called(fn, is_async, wants_ctx):
    handler = Action("a", fn).run_handler
    assert (handler.fn, handler.is_async, handler.wants_ctx) == (fn, is_async, wants_ctx)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        pytest.param(lambda: None, "one or two positional arguments, .*takes none", id="none"),
        pytest.param(lambda a, b, c: None, r"requires 3 \(a, b, c\)", id="three"),
        pytest.param(lambda **options: None, "takes none", id="keywords alone"),
        pytest.param(lambda state, *, limit: None, "requires the keyword limit=", id="required keyword"),
        pytest.param(
            functools.partial(two, state=1), "requires the keyword ctx=", id="partial that hides one"
        ),
        pytest.param(generator, "generator is a generator function", id="generator"),
        pytest.param(async_generator, "is a generator function", id="async generator"),
        pytest.param(GeneratorCallable(), "GeneratorCallable is a generator function", id="generator object"),
        pytest.param(5, "run= must be a function, not 5", id="no function"),
        pytest.param("module.fn", "run= must be a function, not 'module.fn'", id="dotted path"),
        pytest.param(None, "run= must be a function, not None", id="nothing"),
        pytest.param(Action("b", one), "takes a function, not <Action b>", id="an action"),
        pytest.param(Methods, "takes none", id="a class that takes no argument"),
    ],
)
def test_what_cannot_be_called_by_position_is_refused(fn, message):
    with pytest.raises(WorkflowInvalid, match=f'^Action "a": run= .*{message.removeprefix("run= ")}'):
        Action("a", fn)


def test_a_called_coroutine_is_refused_and_leaves_no_warning_behind():
    with pytest.raises(WorkflowInvalid, match="takes the function itself"):
        Action("a", one_async({}))


@pytest.mark.parametrize("option", ["when", "precheck"])
@pytest.mark.parametrize("make", [lambda **o: Action("x", one, **o), lambda **o: Stage("x", run=one, **o)])
def test_gates_take_the_state_alone_and_may_be_async(make, option):
    definition = make(**{option: one_async})
    handler = getattr(definition, f"{option}_handler")
    assert getattr(definition, option) is handler.fn is one_async
    assert (handler.is_async, handler.wants_ctx) == (True, False)
    assert not getattr(make(**{option: lambda *args: True}), f"{option}_handler").wants_ctx
    with pytest.raises(WorkflowInvalid, match=rf'"x": {option}= is called with one positional argument, two'):
        make(**{option: two})
    assert getattr(make(), f"{option}_handler") is None


def test_pick_takes_the_event_alone_and_may_be_async():
    assert WaitFor("e").pick_handler is None
    assert WaitFor("e", pick=one_async).pick_handler.is_async
    with pytest.raises(WorkflowInvalid, match='WaitFor "e": pick= is called with one'):
        WaitFor("e", pick=two)


@pytest.mark.parametrize(
    ("backoff", "message"),
    [
        (one_async, "plain function: one_async is async"),
        (two, "called with one positional argument"),
        (lambda: 1, "takes none"),
    ],
)
def test_a_backoff_function_takes_the_attempt_and_is_not_async(backoff, message):
    with pytest.raises(WorkflowInvalid, match=f'Action "a": backoff= .*{message}'):
        Action("a", one, backoff=backoff)
    assert Action("a", one, backoff=one).backoff is one


def test_a_method_whose_self_nobody_would_give_is_refused():
    rule = r'^Action "one": run= takes a function, Methods\.one is a method: nothing is there to be its self$'
    with pytest.raises(WorkflowInvalid, match=rule):
        Action("one", Methods.one)
    with pytest.raises(WorkflowInvalid, match=r"when= takes a function, Methods\.one is a method"):
        Action("a", one, when=Methods.one)
    assert Action("one", Methods().one).run_handler.wants_ctx is False
    assert Action("one", lambda self: None).run_handler.wants_ctx is False

    @functools.wraps(Methods.one)
    def brings_its_own(*arguments):
        return Methods.one(Methods(), *arguments)

    assert Action("one", brings_its_own).run_handler


def test_a_value_that_is_bound_is_no_second_argument():
    assert Action("a", lambda ctx, flag=False: None).run_handler.wants_ctx is False


def test_a_handler_that_has_the_context_first_is_refused():
    def reversed_order(ctx, state): ...

    with pytest.raises(
        WorkflowInvalid, match=r"run= is called with the context second: .*reversed_order has ctx first"
    ):
        Action("a", reversed_order)
