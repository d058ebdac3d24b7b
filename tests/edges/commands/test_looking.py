"""The commands that look: the list of runs, and the status of one."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from tests.edges.commands.conftest import FREE, call, end, park
from workflow import Stage, WaitFor, Workflow, parallel, states, workflows
from workflow.models import Job, Node
from workflow.registry import registry
from workflow.results import RunHandle, RunStatus
from workflow.testing import drain

# list


@pytest.mark.django_db
class TestList:
    def test_newest_first_in_lines(self, tea):
        other = workflows.dispatch("commands-free", correlation_id="c-1").run_id
        lines = call("workflow:list").splitlines()
        assert lines[0].split() == ["RUN", "WORKFLOW", "STATUS", "CREATED", "TOOK", "CORRELATION", "ERROR"]
        assert [line.split()[0] for line in lines[1:]] == [str(other), str(tea)]
        assert "commands-free v1" in lines[1]
        assert "c-1" in lines[1]

    def test_nothing_is_said_to_be_nothing(self):
        assert call("workflow:list") == "No runs.\n"
        assert json.loads(call("workflow:list", "--json")) == {"items": [], "next": None}

    def test_filters(self, tea):
        free = workflows.dispatch("commands-free", correlation_id="c-1").run_id
        end(free, states.FAILED, error={"code": "ACTION_FAILED", "message": "m"})

        def found(*arguments: str) -> list[str]:
            return [item["id"] for item in json.loads(call("workflow:list", "--json", *arguments))["items"]]

        assert found() == [str(free), str(tea)]
        assert found("--workflow", "commands-tea") == [str(tea)]
        assert found("--workflow", "nothing") == []
        assert found("--status", "failed") == [str(free)]
        assert found("--correlation", "c-1") == [str(free)]
        assert found("--correlation", "c-1", "--status", "pending") == []

    def test_pages_follow_each_other(self):
        ids = [str(handle.run_id) for handle in workflows.dispatch_many("commands-free", [None] * 5)][::-1]
        seen: list[str] = []
        cursor: list[str] = []
        for size in (2, 2, 1):
            page = json.loads(call("workflow:list", "--json", "--limit", "2", *cursor))
            assert len(page["items"]) == size
            seen += [item["id"] for item in page["items"]]
            cursor = ["--after", page["next"]]
        assert page["next"] is None
        assert seen == sorted(ids, reverse=True)

    def test_a_page_that_is_not_the_last_names_its_cursor(self):
        workflows.dispatch_many("commands-free", [None] * 3)
        last = call("workflow:list", limit=2).splitlines()[-1]
        assert last.startswith("More: --after ")
        assert len(call("workflow:list", "--after", last.split()[-1]).splitlines()) == 2

    def test_an_item_is_a_run(self, tea):
        [item] = json.loads(call("workflow:list", json=True))["items"]
        assert {
            "id", "workflow", "version", "status", "state", "input", "error", "correlation_id",
            "created_at", "started_at", "finished_at",
        } <= set(item)  # fmt: skip
        assert item["input"] == {"tea": "sencha", "grams": 100, "api_token": None}


# status


def suspended(event: str) -> RunHandle:
    """A run whose handler waits for that event without an end."""

    def pour(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.wait_event("cooled", event, timeout=None)

    with registry.isolated():
        handle = workflows.dispatch(Workflow("commands-pour", stages=[Stage("pour", run=pour)]))
        drain(handle.run_id)
    return handle


@pytest.mark.django_db
class TestStatus:
    def test_the_tree_in_lines(self, tea):
        lines = call("workflow:status", tea).splitlines()
        assert lines[0] == f"run          {tea}"
        assert "status       pending" in lines
        assert [line.split()[0] for line in lines if line.endswith("pending")][1:] == [
            "commands-tea", "weigh", "weigh", "paid", "pack", "pack",
        ]  # fmt: skip

    def test_json_is_a_run_status(self, tea):
        text = call("workflow:status", str(tea), "--json")
        assert RunStatus.model_validate_json(text) == workflows.status(tea)
        assert text.isascii()

    def test_more_is_said_when_asked(self, tea):
        assert '"tea": "sencha"' not in call("workflow:status", tea)
        assert '"tea": "sencha"' in call("workflow:status", tea, verbosity=2)

    @pytest.mark.parametrize("arguments", [(), ("--force-color",)])
    def test_what_a_run_waits_for_is_said(self, tea, arguments):
        assert "waits for" not in call("workflow:status", tea, *arguments)
        park(tea)
        Node.objects.filter(run=tea, wait_event="tea.paid").update(
            wait_until=datetime(2026, 3, 5, 11, 59, 50, tzinfo=UTC)
        )
        shown = call("workflow:status", tea, *arguments)
        assert "waits for    tea.paid about sencha, until 2026-03-05 11:59:50 (commands-tea.paid)\n" in shown
        with override_settings(WORKFLOW={"REDACT": ["tea"]}):
            shown = call("workflow:status", tea, *arguments)
        assert "sencha" not in shown
        assert "tea.paid about ********" in shown

    def test_the_event_that_a_durable_step_waits_for_is_said(self):
        handle = suspended("tea.cooled\x1b")
        shown = call("workflow:status", handle.run_id)
        assert "waits for    tea.cooled\\x1b (commands-pour.pour.pour#run, step cooled)\n" in shown
        workflows.cancel(handle.run_id)
        assert "waits for" not in call("workflow:status", handle.run_id)

    def test_when_a_run_goes_on_by_itself_is_said_while_nothing_of_it_is_at_work(self):
        handle = workflows.dispatch("commands-free", None, delay=3600)
        job = Job.objects.get(run_id=handle.run_id)
        line = f"goes on      {timezone.localtime(job.available_at):%Y-%m-%d %H:%M:%S}"
        assert line in call("workflow:status", handle.run_id).splitlines()
        Job.objects.filter(pk=job.pk).update(available_at=timezone.now() - timedelta(hours=1))
        assert "goes on" not in call("workflow:status", handle.run_id)
        drain(handle.run_id)
        assert "goes on" not in call("workflow:status", handle.run_id)

    def test_a_step_without_an_end_goes_on_at_no_time_of_its_own(self):
        assert "goes on" not in call("workflow:status", suspended("tea.cooled").run_id)

    def test_of_many_waits_the_first_are_shown(self):
        waits = [Stage(f"w{number}", wait_for=WaitFor(f"tea.{number}")) for number in range(12)]
        with registry.isolated():
            handle = workflows.dispatch(Workflow("commands-many", stages=[parallel(waits)]))
            drain(handle.run_id)
        lines = call("workflow:status", handle.run_id).splitlines()
        assert sum(line.startswith("waits for") for line in lines) == 10
        assert lines[-1].strip() == "and for more"

    def test_any_way_of_writing_the_id_is_understood(self, tea):
        assert str(tea) in call("workflow:status", tea.hex.upper())

    def test_watching_a_run_that_is_over_shows_it_and_leaves(self, tea):
        end(tea, states.FAILED)
        out = call("workflow:status", tea, "--watch")
        assert "status       failed" in out
        lines = call("workflow:status", tea, "--watch", "--json").splitlines()
        assert len(lines) == 1
        assert json.loads(lines[0])["run"]["status"] == "failed"


SECRET = "S3CR3T-hunter2"


@pytest.mark.django_db
@pytest.mark.parametrize("arguments", [(), ("--json",), ("--force-color",)])
def test_secrets_are_masked_in_every_output(arguments):
    run_id = workflows.dispatch("commands-tea", {"tea": "sencha", "api_token": SECRET}).run_id
    end(
        run_id,
        states.FAILED,
        error={"code": "ACTION_FAILED", "message": f"refused {SECRET}", "traceback": f"x {SECRET}"},
    )
    Node.objects.filter(run=run_id).update(output={"API_TOKEN": SECRET, "note": f"with {SECRET}"})
    with override_settings(WORKFLOW={"REDACT": ["*token*"]}):
        shown = call("workflow:list", *arguments) + call("workflow:status", run_id, *arguments, verbosity=2)
    assert SECRET not in shown
    assert "sencha" in shown
    assert SECRET in call("workflow:status", run_id, "--json"), "what is stored is as it was"


@pytest.mark.django_db
def test_hostile_text_reaches_no_terminal():
    bad = "\x1b]0;owned\x07 [red]x[/red]\u202e\x9b"
    run_id = workflows.dispatch("commands-free", {"text": bad}, correlation_id=bad).run_id
    end(run_id, states.FAILED, error={"code": "ACTION_FAILED", "message": bad, "traceback": bad})
    for arguments in ((), ("--json",)):
        shown = call("workflow:list", *arguments) + call("workflow:status", run_id, *arguments, verbosity=2)
        assert all(character == "\n" or character.isprintable() for character in shown)
    coloured = call("workflow:status", run_id, "--force-color", verbosity=2)
    assert "\x1b]" not in coloured
    assert "[red]x[/red]" in coloured


@pytest.mark.django_db
@override_settings(USE_TZ=False, TIME_ZONE="America/New_York")
def test_times_in_json_have_an_offset_without_use_tz_too() -> None:
    workflows.pause_queue("q", until=60)
    run_id = workflows.dispatch(FREE).run_id
    drain(run_id)
    times = []
    for command in (["status", str(run_id), "-v", "2"], ["list"], ["top"], ["pause", "--list"]):
        assert call(f"workflow:{command[0]}", *command[1:])
    asked = (["status", str(run_id)], ["list"], ["top"], ["pause", "--list"])
    for command, *arguments in asked:
        said = call(f"workflow:{command}", *arguments, "--json")
        found = re.findall(r'"(?:[a-z]+_)?(?:at|until)": "([^"]+)"', said)
        assert found, said
        times += found
    for time in times:
        moment = datetime.fromisoformat(time)
        assert moment.utcoffset() == timedelta(0)
        assert abs(datetime.now(UTC) - moment) < timedelta(minutes=3)
