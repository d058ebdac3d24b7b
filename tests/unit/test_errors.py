import inspect
import math
import pickle
from datetime import timedelta

import pytest
from pydantic import BaseModel, ValidationError

import workflow
from workflow import errors

CODES = {
    "WorkflowInvalid": "WORKFLOW_INVALID",
    "InputInvalid": "WORKFLOW_INPUT_INVALID",
    "WorkflowUnknown": "WORKFLOW_UNKNOWN",
    "VersionConflict": "WORKFLOW_VERSION_CONFLICT",
    "RunNotFound": "RUN_NOT_FOUND",
    "RunConflict": "RUN_STATE_CONFLICT",
    "NodeUnknown": "NODE_UNKNOWN",
    "StepKeyReused": "STEP_KEY_REUSED",
    "PayloadInvalid": "PAYLOAD_INVALID",
    "WaitTimeout": "WAIT_TIMEOUT",
}


class Order(BaseModel):
    order_id: str
    amount: int = 1


def invalid(**values: object) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Order.model_validate(values)
    return caught.value


def test_every_error_has_its_documented_code_and_one_base() -> None:
    leaves = {
        name: error.code
        for name, error in vars(errors).items()
        if inspect.isclass(error)
        and issubclass(error, errors.WorkflowError)
        and error is not errors.WorkflowError
    }
    assert leaves == CODES


@pytest.mark.parametrize("name", [*CODES, "WorkflowError", "Fatal", "Retry", "Aborted"])
def test_errors_are_re_exported_by_the_package(name: str) -> None:
    assert getattr(workflow, name) is getattr(errors, name)


def test_outcomes_that_handlers_raise_are_not_caught_as_workflow_errors() -> None:
    for outcome in (errors.Fatal, errors.Retry, errors.Aborted):
        assert not issubclass(outcome, errors.WorkflowError)


def test_input_invalid_gives_the_list_of_pydantic_without_the_values() -> None:
    error = errors.InputInvalid.of("order-fulfillment", invalid(amount="hunter2"))
    assert [(entry["loc"], entry["type"]) for entry in error.errors()] == [
        (("order_id",), "missing"),
        (("amount",), "int_parsing"),
    ]
    assert str(error).startswith("order-fulfillment: order_id: Field required; amount: ")
    assert "hunter2" not in str(error) + repr(error.errors())


def test_a_long_list_of_validation_errors_is_cut_in_the_message_only() -> None:
    class Many(BaseModel):
        numbers: list[int]

    with pytest.raises(ValidationError) as caught:
        Many.model_validate({"numbers": ["x"] * 50})
    error = errors.InputInvalid.of("w", caught.value)
    assert len(error.errors()) == 50
    assert "numbers.9: " in str(error)
    assert "numbers.10: " not in str(error)
    assert str(error).endswith("and 40 more")


def test_the_list_of_an_input_error_cannot_be_changed_from_outside() -> None:
    error = errors.InputInvalid("w: bad", [{"type": "missing"}])
    error.errors().clear()
    assert error.errors() == [{"type": "missing"}]


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(None, None), (3, 3.0), (0, 0.0), (0.25, 0.25), (timedelta(minutes=2), 120.0)],
)
def test_retry_takes_seconds_or_a_timedelta(delay: float | timedelta | None, seconds: float | None) -> None:
    assert errors.Retry(delay=delay).delay == seconds


@pytest.mark.parametrize(
    "delay", [-1, math.nan, math.inf, timedelta(seconds=-1), pytest.param(10**400, id="beyond floats")]
)
def test_retry_refuses_a_delay_that_is_no_time(delay: float | timedelta) -> None:
    with pytest.raises(ValueError, match="finite number of seconds, 0 or more"):
        errors.Retry(delay)


@pytest.mark.parametrize("delay", ["5", True, object()])
def test_retry_refuses_what_is_no_number(delay: object) -> None:
    with pytest.raises(TypeError, match="number of seconds or a timedelta"):
        errors.Retry(delay)  # type: ignore[arg-type]


def test_retry_says_what_it_asks_for() -> None:
    assert str(errors.Retry()) == "asked for a retry"
    assert str(errors.Retry(2.5)) == "asked for a retry in 2.5 s"
    assert str(errors.Retry(2.5, "the carrier is busy")) == "the carrier is busy"


@pytest.mark.parametrize(
    "error",
    [
        errors.RunConflict("no"),
        errors.InputInvalid("w: bad", [{"type": "missing"}]),
        errors.Retry(timedelta(seconds=3), "busy"),
        errors.Aborted("timeout"),
        errors.Fatal("never again"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
