"""The commands that change something: dispatch, retry, cancel, resume, publish, prune; options as Python gives them."""

from __future__ import annotations

import io
import json
import re
import sys
import uuid
from contextlib import suppress
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.db.models.functions import Now
from django.test import override_settings

from tests.edges.commands.conftest import call, end, park
from workflow import states, workflows
from workflow.management.base import json_argument, number
from workflow.models import Event, Node, Run, RunEvent

# dispatch


@pytest.mark.django_db
class TestDispatch:
    def test_the_id_is_printed_alone(self):
        out = call("workflow:dispatch", "commands-tea", "--input", '{"tea": "oolong", "grams": 50}')
        run = Run.objects.get(id=out.strip())
        assert out == f"{run.id}\n"
        assert run.state == {"tea": "oolong", "grams": 50, "api_token": None}

    def test_every_option_arrives(self):
        call(
            "workflow:dispatch", "commands-free", "--input", "[1, 2]", "--context", '{"tenant": 7}',
            "--correlation-id", "c-1", "--idempotency-key", "k-1", "--queue", "slow", "--priority", "-5",
            "--delay", "3600",
        )  # fmt: skip
        run = Run.objects.get()
        assert (run.context, run.correlation_id, run.idempotency_key) == ({"tenant": 7}, "c-1", "k-1")
        assert (run.queue, run.priority, run.input) == ("slow", -5, [1, 2])
        job = run.jobs.get()
        assert timedelta(minutes=59) < job.available_at - run.created_at < timedelta(minutes=61)

    def test_python_values_are_taken_as_they_are(self):
        call("workflow:dispatch", "commands-free", input={"a": [1, None]}, context=[1])
        assert Run.objects.get().state == {"a": [1, None]}

    def test_the_input_can_come_from_standard_input(self, monkeypatch):
        monkeypatch.setattr(sys, "stdin", io.StringIO('{"tea": "assam"}'))
        call("workflow:dispatch", "commands-tea", "--input", "-")
        assert Run.objects.get().state["tea"] == "assam"

    def test_a_key_used_before_gives_the_first_run(self):
        first = call("workflow:dispatch", "commands-free", "--idempotency-key", "k")
        err = io.StringIO()
        assert call("workflow:dispatch", "commands-free", "--idempotency-key", "k", stderr=err) == first
        assert "used before" in err.getvalue()

    def test_it_takes_part_in_the_callers_transaction(self):
        with suppress(RuntimeError), transaction.atomic():
            call("workflow:dispatch", "commands-free")
            raise RuntimeError
        assert not Run.objects.exists()

    def test_waiting_without_end_inside_a_transaction_is_refused(self):
        with pytest.raises(CommandError, match="transaction"):
            call("workflow:dispatch", "commands-free", "--wait")

    def test_waiting_ends_at_the_timeout(self):
        out = io.StringIO()
        with pytest.raises(CommandError, match=r"not over after 0\.1 seconds"):
            call_command("workflow:dispatch", "commands-free", "--wait", "--timeout", "0.1", stdout=out)
        assert out.getvalue().strip() == str(Run.objects.get().id)


# retry, cancel, resume, publish


def test_retry_lets_a_failed_run_go_on(manage):
    run_id = workflows.dispatch("commands-tea", {"tea": "sencha"}).run_id
    end(run_id, states.FAILED, error={"code": "ACTION_FAILED", "message": "m"})
    assert manage("workflow:retry", str(run_id)) == (0, f"Run {run_id} goes on from its failure.\n", "")
    run = Run.objects.get(id=run_id)
    assert (run.status, run.error) == (states.RUNNING, None)


def test_retry_from_a_node(manage):
    run_id = workflows.dispatch("commands-tea", {"tea": "sencha"}).run_id
    end(run_id, states.FAILED)
    result = manage("workflow:retry", str(run_id), "--from", "commands-tea.weigh")
    assert result == (0, f"Run {run_id} goes on from commands-tea.weigh.\n", "")
    resumed = RunEvent.objects.filter(run=run_id).last()
    assert resumed is not None
    assert (resumed.name, resumed.data["from_node"]) == ("resumed", "commands-tea.weigh")
    assert resumed.data["by"].startswith("cli")


WHO = [("ada", "cli:ada"), ("a\nd\udcffa", "cli:a d\\udcffa"), ("n" * 300, "cli:" + "n" * 197 + "...")]


@pytest.mark.parametrize(("name", "by"), WHO, ids=["plain", "odd", "long"])
def test_the_history_says_who_dispatched_retried_resumed_and_cancelled(tea, monkeypatch, name, by):
    monkeypatch.setattr("getpass.getuser", lambda: name)
    dispatched = uuid.UUID(call("workflow:dispatch", "commands-tea", input={"tea": "sencha"}).strip())
    park(tea)
    call("workflow:resume", str(tea))
    call("workflow:cancel", str(tea))
    other = workflows.dispatch("commands-free").run_id
    end(other, states.FAILED)
    call("workflow:retry", str(other))
    entries = {
        (entry.run_id, entry.name): entry.data["by"] for entry in RunEvent.objects.exclude(name="waiting")
    }
    assert entries == {
        (dispatched, "log"): by, (tea, "resumed"): by, (tea, "cancelled"): by, (other, "resumed"): by,
    }  # fmt: skip


def test_a_user_whom_the_system_has_no_name_for_may_steer_too(tea, monkeypatch):
    def nameless() -> str:
        raise OSError("no username set in the environment")

    monkeypatch.setattr("getpass.getuser", nameless)
    call("workflow:cancel", str(tea))
    assert RunEvent.objects.get(run=tea).data["by"] == "cli"


def test_cancel_says_why_in_the_history(manage):
    run_id = workflows.dispatch("commands-tea", {"tea": "sencha"}).run_id
    assert manage("workflow:cancel", str(run_id), "--reason", "sold out") == (
        0,
        f"Run {run_id} is cancelled.\n",
        "",
    )
    run = Run.objects.get(id=run_id)
    assert run.status == states.CANCELLED
    assert not run.jobs.exists()
    cancelled = RunEvent.objects.get(run=run_id, name="cancelled")
    assert cancelled.data["reason"] == "sold out"
    assert cancelled.data["by"].startswith("cli")


def test_cancel_says_whether_what_the_run_has_done_is_undone(manage):
    begun, fresh = (workflows.dispatch("commands-tea", {"tea": "sencha"}).run_id for _ in range(2))
    park(begun)
    told = f"Run {begun} is compensating: what it has done is undone.\n"
    assert manage("workflow:cancel", str(begun), "--compensate") == (0, told, "")
    assert Run.objects.get(id=begun).status == states.COMPENSATING
    told = f"Run {fresh} is cancelled.\n"
    assert manage("workflow:cancel", str(fresh), "--compensate") == (0, told, "")
    assert Run.objects.get(id=fresh).status == states.CANCELLED


@pytest.mark.parametrize("payload", [None, {"amount": 7}, False])
def test_resume_satisfies_the_wait(manage, payload):
    run_id = workflows.dispatch("commands-tea", {"tea": "sencha"}).run_id
    park(run_id)
    arguments = [] if payload is None else ["--payload", json.dumps(payload)]
    assert manage("workflow:resume", str(run_id), *arguments) == (0, f"Run {run_id} goes on.\n", "")
    assert Node.objects.get(run=run_id, path="commands-tea.paid").wait_outcome == {"payload": payload}


def test_publish_adds_an_event_once(manage):
    arguments = (
        "workflow:publish",
        "tea.paid",
        "--payload",
        "[1]",
        "--correlation",
        "o-1",
        "--event-id",
        "e-1",
    )
    assert manage(*arguments) == (0, "Published tea.paid.\n", "")
    assert manage(*arguments) == (0, "Event id e-1 was published before.\n", "")
    event = Event.objects.get()
    assert (event.type, event.payload, event.correlation, event.event_id) == ("tea.paid", [1], "o-1", "e-1")


# prune


@pytest.fixture
def old_and_new(db: None) -> dict[str, uuid.UUID]:
    """Two old finished runs, one that finished just now, one old that lives, and events of each kind."""
    handles = workflows.dispatch_many("commands-free", [None] * 4)
    ids = dict(zip(("old", "older", "new", "living"), (handle.run_id for handle in handles), strict=True))
    for name in ("old", "older", "new"):
        end(ids[name], states.FAILED)
    Run.objects.filter(id=ids["new"]).update(finished_at=Now() - timedelta(seconds=1))
    Run.objects.filter(id=ids["old"]).update(finished_at=Now() - timedelta(days=10))
    Run.objects.filter(id=ids["older"]).update(finished_at=Now() - timedelta(days=40))
    for name, age, correlation in (("a", 10, None), ("b", 40, None), ("c", 0, None), ("d", 40, "o-1")):
        workflows.publish(name, correlation=correlation)
        Event.objects.filter(type=name).update(at=Now() - timedelta(days=age))
    Run.objects.filter(id=ids["living"]).update(created_at=Now() - timedelta(days=50))
    return ids


def s(count: int) -> str:
    return "" if count == 1 else "s"


class TestPrune:
    def test_the_default_is_the_setting(self, old_and_new):
        with override_settings(WORKFLOW={"RETENTION_DAYS": 20}):
            assert call("workflow:prune") == "Dropped 1 run and 1 event.\n"
        assert call("workflow:prune") == "Dropped 1 run and 1 event.\n", "seven days, when nothing is set"
        assert set(Run.objects.values_list("id", flat=True)) == {old_and_new["new"], old_and_new["living"]}

    def test_days_can_be_given(self, old_and_new):
        assert call("workflow:prune", "--days", "30") == "Dropped 1 run and 1 event.\n"
        assert call("workflow:prune", days=0.5, batch_size=1) == "Dropped 1 run and 1 event.\n"
        assert call("workflow:prune", "--days", "0") == "Dropped 1 run and 1 event.\n"
        assert list(Run.objects.values_list("id", flat=True)) == [old_and_new["living"]]

    @pytest.mark.parametrize(("days", "runs", "events"), [(30, 1, 1), (5, 2, 2), (50, 0, 0)])
    def test_a_dry_run_counts_what_would_go_and_drops_nothing(self, old_and_new, days, runs, events):
        before = (Run.objects.count(), Event.objects.count())
        counted = call("workflow:prune", "--days", str(days), "--dry-run")
        assert re.findall(r"\d+ \w+", counted) == [f"{runs} run{s(runs)}", f"{events} event{s(events)}"]
        assert (Run.objects.count(), Event.objects.count()) == before
        assert call("workflow:prune", "--days", str(days)) == counted.replace("Would drop", "Dropped")
        assert (Run.objects.count(), Event.objects.count()) == (before[0] - runs, before[1] - events)

    def test_a_dry_run_leaves_out_what_still_waits_for_delivery(self, old_and_new, tea):
        park(tea)
        workflows.publish("tea.paid", correlation=None)
        Event.objects.filter(type="tea.paid").update(at=Now() - timedelta(days=40))
        assert call("workflow:prune", "--days", "30", "--dry-run") == "Would drop 1 run and 1 event.\n"
        call("workflow:prune", "--days", "30")
        assert Event.objects.filter(type="tea.paid").exists()


# Options, as Python gives them


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [("5", int, 5), (5, int, 5), (5.0, int, 5), (" 7 ", int, 7), ("0.5", float, 0.5), (None, int, None)],
)
def test_numbers_are_read(value, kind, expected):
    assert number(value, "--n", kind, 0, 10) == expected


@pytest.mark.parametrize("value", ["", "x", "5.5", 5.5, True, "11", -1, "inf", float("nan"), [], "1" * 5000])
def test_what_is_no_such_number_is_refused(value):
    with pytest.raises(CommandError, match="--n must be a whole number from 0 to 10"):
        number(value, "--n", int, 0, 10)


def test_json_is_read_once_and_python_values_are_not():
    assert json_argument('"text"', "--x") == "text"
    assert json_argument({"a": 1}, "--x") == {"a": 1}
    assert json_argument(None, "--x") is None
