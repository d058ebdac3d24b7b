"""Queues that are paused, as people see and steer them: commands, and what other commands and pages say of a pause."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from unittest import mock

import pytest
from django.contrib.admin.utils import quote
from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper
from django.test import Client, override_settings
from django.urls import reverse
from rich.console import Console

from tests.support import web
from workflow import Stage, Workflow, action, workflows
from workflow.dashboard import reading
from workflow.dashboard.views.runs import MOST_PAUSED
from workflow.management import base, top, watch
from workflow.management.output import Output
from workflow.manager import Workflows
from workflow.models import Worker
from workflow.overview import Overview, overview
from workflow.registry import registry
from workflow.results import RunHandle
from workflow.testing import advance, drain

pytestmark = pytest.mark.django_db


@action
def stir(state: dict[str, Any]) -> None: ...


SOUP = Workflow("pausing-soup", stages=[Stage("stir", actions=[stir])])
LATER = datetime(2100, 1, 1, 12, tzinfo=UTC)
PAUSED = 'the queue "slow" is paused until 2100-01-01 12:00:00 by ada: upstream is down'


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with registry.isolated(), override_settings(TIME_ZONE="UTC"):
        workflows.register(SOUP)
        yield


def call(*arguments: Any, **options: Any) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out, **options)
    return out.getvalue()


def soup(queue: str = "slow") -> RunHandle:
    return workflows.dispatch(SOUP, {}, queue=queue)


def pause() -> None:
    workflows.pause_queue("slow", until=LATER, reason="upstream is down", by="ada")


# Commands


def test_a_queue_is_paused_and_resumed() -> None:
    with mock.patch.object(base.getpass, "getuser", return_value="ada"):
        said = call("workflow:pause", "slow", "--reason", "upstream is down")
    assert said == "Queue slow is paused until it is resumed. What is in hand goes on.\n"
    [found] = workflows.paused_queues()
    assert (found.until, found.reason, found.by) == (None, "upstream is down", "cli:ada")
    assert call("workflow:unpause", "slow") == "Queue slow is resumed.\n"
    assert call("workflow:unpause", "slow") == "Queue slow was not paused.\n"
    assert workflows.paused_queues() == []


def test_for_some_seconds() -> None:
    call("workflow:pause", "slow", "--for", "90.5")
    [found] = workflows.paused_queues()
    assert found.until == found.paused_at + timedelta(seconds=90.5)


@pytest.mark.parametrize(
    ("until", "moment"),
    [
        ("2100-01-01T12:00", LATER - timedelta(hours=9)),
        ("2100-01-01 12:00:00", LATER - timedelta(hours=9)),
        ("2100-01-01T12:00Z", LATER),
        ("2100-01-01T13:00+01:00", LATER),
        ("2100-01-02T11:59+23:59", LATER),
        ("2099-12-31T12:01-23:59", LATER),
    ],
)
def test_until_a_moment_which_without_an_offset_is_in_the_time_zone_of_the_project(
    until: str, moment: datetime
) -> None:
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        said = call("workflow:pause", "slow", "--until", until)
        assert said.startswith(
            f"Queue slow is paused until {moment + timedelta(hours=9):%Y-%m-%d %H:%M:%S}. "
        )
    assert workflows.paused_queues()[0].until == moment


def test_options_may_be_given_in_python() -> None:
    call("workflow:pause", "slow", until=LATER)
    assert workflows.paused_queues()[0].until == LATER
    call("workflow:pause", "slow", seconds=5)
    with pytest.raises(CommandError):
        call("workflow:pause", "slow", seconds=5, until=LATER)
    with pytest.raises(CommandError):
        call("workflow:pause", "slow", until=LATER.replace(tzinfo=None))
    with pytest.raises(CommandError):
        call("workflow:pause", "slow", until=7)


def test_what_is_paused_is_listed() -> None:
    assert call("workflow:pause", "--list") == "No queue is paused.\n"
    pause()
    workflows.pause_queue("fast")
    head, fast, slow = call("workflow:pause", "--list").splitlines()
    assert head.split() == ["QUEUE", "SINCE", "UNTIL", "BY", "REASON"]
    assert fast.split()[0] == "fast"
    assert fast.split()[3:] == ["-", "-", "-"]
    assert slow.endswith("2100-01-01 12:00:00  ada  upstream is down")


def test_json() -> None:
    assert json.loads(call("workflow:pause", "--list", "--json")) == []
    printed = json.loads(call("workflow:pause", "slow", "--until", "2100-01-01T12:00Z", "--json"))
    assert set(printed) == {"queue", "until", "reason", "by", "paused_at"}
    assert (printed["queue"], printed["until"]) == ("slow", "2100-01-01T12:00:00Z")
    assert json.loads(call("workflow:pause", "--list", "--json")) == [printed]


def test_what_a_pause_says_steers_no_terminal() -> None:
    workflows.pause_queue("a\x1b[31m\nb", reason="\x1b[2J\nwhy", by="\x1b]0;who")
    handle = soup("a\x1b[31m\nb")
    for command in (["pause", "--list"], ["top"], ["top", "--force-color"], ["status", str(handle.run_id)]):
        shown = call(f"workflow:{command[0]}", *command[1:])
        assert not {"\x1b[2J", "\x1b]0;", "a\x1b[31m"} & set(shown.split())
        assert "\x1b[2J" not in shown
        assert "\\x1b[2J why" in shown


# What others say


def test_the_status_of_a_live_run_says_that_its_queue_is_paused() -> None:
    handle, other = soup(), soup("fast")
    pause()
    assert 'the queue "slow" is paused until' in call("workflow:status", str(handle.run_id), "--force-color")
    assert f"\nqueue        {PAUSED}\n" in call("workflow:status", str(handle.run_id))
    assert "paused" not in call("workflow:status", str(other.run_id))
    assert json.loads(call("workflow:status", str(handle.run_id), "--json")) == handle.status().model_dump(
        mode="json"
    )
    workflows.resume_queue("slow")
    assert "paused" not in call("workflow:status", str(handle.run_id))
    drain()
    pause()
    assert "paused" not in call("workflow:status", str(handle.run_id)), "it is over"


def test_watching_in_a_pipe_says_it_once() -> None:
    Worker.objects.create(
        hostname="h", pid=1, concurrency=1, threads=1,
        serves=[{"name": SOUP.name, "version": 1, "fingerprint": SOUP.tree.fingerprint}],
    )  # fmt: skip
    out = io.StringIO()
    changes = watch._Changes(Output(OutputWrapper(out)))
    handle = soup()
    seen = None
    for step in (pause, lambda: None, lambda: workflows.resume_queue("slow"), pause):
        step()
        now = handle.status()
        changes.see(seen, now)
        seen = now
    assert out.getvalue().count(PAUSED) == 2


def test_top_names_what_is_paused() -> None:
    assert overview().paused == []
    pause()
    workflows.pause_queue("fast")
    printed = json.loads(call("workflow:top", "--json"))
    assert Overview.model_validate(printed).paused == workflows.paused_queues()
    assert call("workflow:top").splitlines()[-2:] == ['the queue "fast" is paused', PAUSED]


def test_on_a_terminal_top_names_some_and_counts_the_others() -> None:
    for number in range(8):
        workflows.pause_queue(f"q{number}")
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system="standard")
    console.print(top.view(overview()))
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert 'the queue "q4" is paused' in drawn
    assert "q5" not in drawn
    assert "and 3 more queues are paused" in drawn


# The admin

LIST = "/admin/workflow/pausedqueue/"
NOTHING = {"until_0": "", "until_1": "", "reason": ""}


@pytest.fixture
def operator() -> Client:
    everything = (f"{verb}_pausedqueue" for verb in ("view", "add", "change", "delete"))
    return web.client_of(web.person("olga", "view_run", *everything))


def html(response: Any) -> str:
    assert response.status_code == 200, response
    return unescape(response.content.decode())


def test_a_queue_is_paused_changed_and_resumed_in_the_admin(operator: Client) -> None:
    added = {"queue": "slow", "until_0": "2100-01-01", "until_1": "12:00:00", "reason": "upstream\nis down"}
    assert "was added successfully" in html(operator.post(f"{LIST}add/", added, follow=True))
    [first] = workflows.paused_queues()
    assert (first.queue, first.until, first.by) == ("slow", LATER, "olga")
    assert first.reason.split() == ["upstream", "is", "down"]
    body = html(operator.get(LIST))
    assert all(text in body for text in ("slow", "upstream is down", "olga", 'alt="True"'))
    assert "was changed successfully" in html(operator.post(f"{LIST}slow/change/", NOTHING, follow=True))
    [changed] = workflows.paused_queues()
    assert (changed.until, changed.reason, changed.paused_at) == (None, "", first.paused_at)
    assert "was deleted successfully" in html(
        operator.post(f"{LIST}slow/delete/", {"post": "yes"}, follow=True)
    )
    assert workflows.paused_queues() == []


def test_the_admin_goes_through_the_manager_so_workers_are_woken(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    for name in ("pause_queue", "resume_queue"):
        real = getattr(Workflows, name)

        def call(self: Any, queue: str, *, _real: Any = real, _name: str = name, **options: Any) -> Any:
            asked.append((_name, queue, options["by"]))
            return _real(self, queue, **options)

        monkeypatch.setattr(Workflows, name, call)
    for queue in ("a", "b", "c"):
        operator.post(f"{LIST}add/", {**NOTHING, "queue": queue})
    operator.post(f"{LIST}a/change/", NOTHING)
    operator.post(f"{LIST}a/delete/", {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": ["b", "c"], "post": "yes"}
    operator.post(LIST, chosen)
    assert asked == [
        *(("pause_queue", queue, "olga") for queue in ("a", "b", "c", "a")),
        *(("resume_queue", queue, "olga") for queue in ("a", "b", "c")),
    ]
    assert workflows.paused_queues() == []


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"queue": ""}, "This field is required."),
        ({"queue": "#events"}, "the engine's own queue #events"),
        ({"queue": "q" * 101}, "at most 100 characters"),
        ({"queue": "fast"}, "already exists"),
        ({"queue": "slow", "until_0": "2020-01-01", "until_1": "12:00"}, "This has passed"),
        ({"queue": "slow", "until_0": "9999-12-31", "until_1": "12:00"}, "must not be after the year 9000"),
        ({"queue": "slow", "until_0": "soon", "until_1": "12:00"}, "Enter a valid date."),
        ({"queue": "slow", "reason": "r" * 10_001}, "at most 10000 characters"),
    ],
)
def test_what_the_manager_would_refuse_the_form_refuses(
    operator: Client, form: dict[str, str], message: str
) -> None:
    workflows.pause_queue("fast")
    assert message in html(operator.post(f"{LIST}add/", {**NOTHING, **form}))
    assert [pause.queue for pause in workflows.paused_queues()] == ["fast"]


@override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo")
def test_without_time_zones_a_form_means_the_projects_own(operator: Client) -> None:
    operator.post(f"{LIST}add/", {**NOTHING, "queue": "slow", "until_0": "2100-01-01", "until_1": "21:00"})
    [found] = workflows.paused_queues()
    assert found.until == datetime(2100, 1, 1, 21, tzinfo=UTC).replace(tzinfo=None)


def test_what_may_be_done_in_the_admin_is_what_there_are_permissions_for() -> None:
    pause()
    nobody, viewer = (
        web.client_of(web.person("nobody")),
        web.client_of(web.person("vera", "view_pausedqueue")),
    )
    assert nobody.get(LIST).status_code == 403
    assert viewer.get(LIST).status_code == viewer.get(f"{LIST}slow/change/").status_code == 200
    for client in (nobody, viewer):
        assert client.post(f"{LIST}add/", {**NOTHING, "queue": "fast"}).status_code == 403
        assert client.post(f"{LIST}slow/change/", NOTHING).status_code == 403
        assert client.post(f"{LIST}slow/delete/", {"post": "yes"}).status_code == 403
        client.post(LIST, {"action": "delete_selected", "_selected_action": ["slow"], "post": "yes"})
    assert [(found.queue, found.until) for found in workflows.paused_queues()] == [("slow", LATER)]


def test_hostile_texts_are_shown_as_the_texts_they_are(operator: Client) -> None:
    hostile = "</td><img src=x onerror=alert(1)>\u202egnp\x1b/_'\""
    workflows.pause_queue(hostile, reason=hostile, by=hostile)
    address = reverse("admin:workflow_pausedqueue_change", args=[quote(hostile)])
    pages = [address[: -len("change/")] + part for part in ("change/", "history/", "delete/")]
    for page in (LIST, *pages):
        body = web.shown(operator.get(page))
        assert "<img src=x" not in body
        assert "\u202e" not in body
        assert "\\u202e" in body
    chosen = {"action": "delete_selected", "_selected_action": [hostile]}
    for body in (
        web.shown(operator.post(LIST, chosen)),
        web.shown(operator.post(address, {**NOTHING, "reason": "x"}, follow=True)),
        web.shown(operator.get(reverse("admin:index"))),
        web.shown(operator.post(pages[2], {"post": "yes"}, follow=True)),
    ):
        assert "\u202e" not in body
        assert "\\u202e" in body
    assert operator.get(f"{LIST}nothing/change/").status_code == 302
    assert operator.get(f"{LIST}a%00b/change/").status_code == 302
    chosen = {"action": "delete_selected", "_selected_action": ["a\0b"], "post": "yes"}
    assert operator.post(LIST, chosen).status_code == 400


@pytest.mark.parametrize(
    "query",
    [{"queue__exact": "a\0b"}, {"queue": "slow"}, {"until__year": "9" * 5_000}, {"reason__contains": "x"}],
)
def test_a_list_of_pauses_is_asked_for_nothing_in_its_address(
    operator: Client, query: dict[str, str]
) -> None:
    assert operator.get(LIST, query).status_code == 400


def test_a_pause_that_is_over_is_shown_as_such(operator: Client) -> None:
    workflows.pause_queue("slow", until=10)
    advance(10)
    assert 'alt="False"' in html(operator.get(LIST))


def test_a_queue_whose_pause_is_over_is_paused_again_in_the_admin(operator: Client) -> None:
    workflows.pause_queue("slow", until=10)
    twice = {"queue": "slow", **NOTHING}
    assert "already exists" in html(operator.post(f"{LIST}add/", twice))
    advance(10)
    assert "was added successfully" in html(operator.post(f"{LIST}add/", twice, follow=True))
    assert [pause.queue for pause in workflows.paused_queues()] == ["slow"]


def test_a_name_with_outer_spaces_is_that_queues_name_in_the_admin_too(operator: Client) -> None:
    operator.post(f"{LIST}add/", {"queue": " slow ", **NOTHING})
    assert [pause.queue for pause in workflows.paused_queues()] == [" slow "]


def test_the_admins_page_of_a_live_run_says_that_its_queue_is_paused(operator: Client) -> None:
    handle, other = soup(), soup("fast")
    pause()
    assert PAUSED in html(operator.get(f"/admin/workflow/run/{handle.run_id}/change/"))
    assert "is paused" not in html(operator.get(f"/admin/workflow/run/{other.run_id}/change/"))


# The dashboard


@pytest.fixture
def viewer() -> Iterator[Client]:
    reading.forget()
    yield web.client_of(web.person("vera", "view_run"))
    reading.forget()


def test_the_dashboards_list_names_what_is_paused(viewer: Client) -> None:
    assert "is paused" not in html(viewer.get("/dashboard/"))
    reading.forget()
    pause()
    for number in range(MOST_PAUSED + 3):
        workflows.pause_queue(f"a{number}")
    body = html(viewer.get("/dashboard/"))
    assert body.count("is paused") == MOST_PAUSED
    assert "and 4 more" in body
    for number in range(MOST_PAUSED + 3):
        workflows.resume_queue(f"a{number}")
    reading.forget()
    assert PAUSED in html(viewer.get("/dashboard/?fragment"))


def test_the_dashboards_page_of_a_live_run_says_that_its_queue_is_paused(viewer: Client) -> None:
    handle, other, over = soup(), soup("fast"), soup()
    workflows.cancel(over.run_id)
    workflows.pause_queue("slow", until=LATER, reason="<img src=x>", by="ada")
    body = viewer.get(f"/dashboard/{handle.run_id}/").content.decode()
    assert "is paused until 2100-01-01 12:00:00 by ada: &lt;img src=x&gt;" in body
    for run_id in (other.run_id, over.run_id):
        assert "is paused" not in html(viewer.get(f"/dashboard/{run_id}/"))
