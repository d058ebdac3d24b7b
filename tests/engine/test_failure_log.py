"""What the log says of runs that fail: one line each, and nothing of runs that do not."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.core.management import call_command

from tests.support.runs import PATIENCE, run_through, staged
from workflow import Action, Fatal, Stage, Workflow, workflows
from workflow.executor import jobs
from workflow.models import Job
from workflow.registry import registry
from workflow.testing import drain


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="workflow")
    return caplog


def fail(message: str) -> Any:
    def run(state: dict[str, Any]) -> None:
        raise Fatal(message)

    return run


def test_a_run_that_fails_says_so_once(log: pytest.LogCaptureFixture) -> None:
    status = run_through(staged(Action("pay", fail("declined\nby the bank")), on_failure="halt"))
    assert log.messages == [f"run {status.run.id} of w failed: w.s.pay: ACTION_FAILED: declined"]


def test_a_key_that_is_missing_is_more_than_a_word_in_quotes(log: pytest.LogCaptureFixture) -> None:
    status = run_through(staged(Action("pay", lambda state: state["cents"], attempts=1), on_failure="halt"))
    assert status.run.error is not None
    assert status.run.error["message"] == "'cents'"
    assert log.messages == [f"run {status.run.id} of w failed: w.s.pay: ACTION_FAILED: KeyError: 'cents'"]


def test_a_run_that_turns_back_says_so_once(log: pytest.LogCaptureFixture) -> None:
    done = Action("reserve", lambda state: None, compensate=lambda state: None)
    status = run_through(staged(done, Action("pay", fail("declined"))))
    assert status.run.status == "compensated"
    assert log.messages == [f"run {status.run.id} of w turns back: w.s.pay: ACTION_FAILED: declined"]


def test_attempts_that_are_followed_by_another_are_no_news(log: pytest.LogCaptureFixture) -> None:
    def flaky(state: dict[str, Any], ctx: Any) -> None:
        if ctx.attempt < 3:
            raise RuntimeError("not yet")

    assert run_through(staged(Action("act", flaky, backoff=0))).run.status == "completed"
    assert log.messages == []


def test_a_compensation_that_failed_for_good_says_so(log: pytest.LogCaptureFixture) -> None:
    done = Action("reserve", lambda state: None, compensate=fail("still in use"))
    status = run_through(staged(done, Action("pay", fail("declined"))))
    assert log.messages[1:] == [
        f"run {status.run.id} of w cannot undo w.s.reserve: COMPENSATION_FAILED: still in use"
    ]


def test_that_of_a_step_says_which(log: pytest.LogCaptureFixture) -> None:
    def book(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.run("seat", lambda: 7, compensate=fail("sold"))

    status = run_through(staged(Action("book", book), Action("pay", fail("declined"))))
    assert log.messages[1:] == [
        f"run {status.run.id} of w cannot undo w.s.book, step 'seat': COMPENSATION_FAILED: sold"
    ]


def test_a_gate_that_raises_is_told_of_too(log: pytest.LogCaptureFixture) -> None:
    definition = Workflow(
        "gated", stages=[Stage("s", run=lambda state: None, precheck=fail("closed"))], on_failure="halt"
    )
    status = run_through(definition)
    assert log.messages == [f"run {status.run.id} of gated failed: gated.s: PRECHECK_FAILED: closed"]


def test_what_is_secret_is_masked_and_nothing_forges_a_line(
    log: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.WORKFLOW = {**settings.WORKFLOW, "REDACT": ["card"]}

    def tokens(state: dict[str, Any]) -> dict[str, Any]:
        return {"card": "tok_made_in_this_claim"}

    def pay(state: dict[str, Any]) -> None:
        raise Fatal(f"no \x1b[2J{state['input']['card']} {state['card']}\rERROR forged\nERROR forged")

    data = {"input": {"card": "4111-1111-1111-1111"}}
    run_through(staged(Action("tokens", tokens), Action("pay", pay), on_failure="halt"), data)
    (line,) = log.messages
    assert line.endswith(": ACTION_FAILED: no  [2J******** ********")


def test_a_failure_that_did_not_count_is_not_told(log: pytest.LogCaptureFixture) -> None:
    """Its run was cancelled while it was at work: the boundary is refused."""

    def act(state: dict[str, Any], ctx: Any) -> None:
        workflows.cancel(ctx.run_id)
        raise Fatal("too late")

    handle = workflows.dispatch(staged(Action("act", act)), {})
    drain(handle.run_id, timeout=PATIENCE)
    assert handle.status().run.status == "cancelled"
    assert not Job.objects.exists()
    assert log.messages == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [RuntimeError, Fatal, BaseException])
def test_in_a_workers_log_an_error_is_one_line(
    error: type[BaseException], log: pytest.LogCaptureFixture
) -> None:
    def forge(state: dict[str, Any]) -> None:
        raise error("a\nERROR forged\r\u2028\x85ERROR forged")

    definition = staged(
        Action("reserve", lambda state: None, compensate=forge, compensate_attempts=1),
        Action("pay", forge, attempts=2, backoff=0),
    )
    with registry.isolated():
        workflows.dispatch(definition, {})
        call_command("workflow:worker", "--burst")
    assert [message.partition(" of w ")[2] for message in log.messages] == [
        "turns back: w.s.pay: ACTION_FAILED: a",
        "cannot undo w.s.reserve: COMPENSATION_FAILED: a",
    ]
    assert all(len(logging.Formatter().format(record).splitlines()) == 1 for record in log.records)


def test_what_the_engine_fails_with_is_one_line_that_steers_nothing(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise ValueError("odd\n2026-01-01 ERROR all is lost\x1b[31m")

    monkeypatch.setattr(jobs, "Execution", broken)
    monkeypatch.setattr(jobs, "MAX_FAILURES", 1)
    status = run_through(staged(Action("act", lambda state: None)))
    assert status.run.error is not None
    assert status.run.error["code"] == "STUCK_RUN_REAPED"
    assert log.messages[-1].startswith(
        f"run {status.run.id} of w fails: STUCK_RUN_REAPED: the engine failed 1 "
    )
    assert log.messages[-1].endswith(r"(ValueError: odd 2026-01-01 ERROR all is lost\x1b[31m)")
