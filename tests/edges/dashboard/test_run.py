"""The dashboard's pages of one run and of a definition."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.edges.dashboard.conftest import text, url
from tests.kitchen import workflows as kitchen
from tests.support.definitions import PHASES
from tests.support.web import ORDER, completed, failed, waiting
from workflow import Stage, Workflow, action, parallel, workflows
from workflow.dashboard import timelines
from workflow.models import Node, Run, Worker
from workflow.registry import registry
from workflow.testing import drain

pytestmark = [pytest.mark.django_db]


# --- one run --------------------------------------------------------------------------------------


def test_the_page_of_a_run_tells_all(viewer: Client) -> None:
    run_id = failed("p-1", correlation_id="customer-9", idempotency_key="key-9")
    said = text(viewer.get(url("run", run_id)))
    for words in (
        "web-order v1",
        "✗ failed",
        "customer-9",
        "key key-9",
        str(run_id),
        "Why it failed ACTION_FAILED in web-order.pay.charge RuntimeError p-1 refused, card=None",
        "Traceback",
        "action.failed",
        "log web-order.pay.charge charging",
    ):
        assert words in said, words


@pytest.mark.parametrize("name", ["run", "timeline"])
def test_a_run_that_is_pruned_while_its_page_is_read_is_not_found(
    name: str, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workflow.dashboard.views import run as view

    run_id = completed()
    snapshot = view.snapshot

    def and_pruned(asked: UUID) -> dict[str, Any] | None:
        found = snapshot(asked)
        workflows.prune(0)
        return found

    monkeypatch.setattr(view, "snapshot", and_pruned)
    assert viewer.get(url(name, run_id)).status_code == 404


def test_a_node_tells_its_attempts_output_error_and_history(viewer: Client) -> None:
    run_id = workflows.dispatch(kitchen.toast, {}).run_id
    drain(run_id)
    said = text(viewer.get(url("node", run_id), {"path": "kitchen-toast.again.again#run"}))
    assert "✗ failed kitchen-toast.again.again#run" in said
    assert "ACTION_FAILED in kitchen-toast.again.again#run ValueError burnt" in said
    assert re.search(r"Attempts # Began Ended Outcome Error 1 [\d: -]+ failed ACTION_FAILED: burnt", said)
    assert "1 attempt" in said
    done = text(viewer.get(url("node", run_id), {"path": "kitchen-toast.mix.weigh"}))
    assert '"grams": 500' in done
    assert "action.completed" in done
    on_page = text(viewer.get(url("run", run_id), {"node": "kitchen-toast.mix.weigh"}))
    assert '"grams": 500' in on_page


def test_what_runs_at_the_same_time_is_drawn_side_by_side(viewer: Client) -> None:
    run_id = workflows.dispatch(PHASES).run_id
    shown = viewer.get(url("run", run_id)).content.decode()
    assert shown.count('class="group together"') == 1
    left, right, after = (shown.index(f'data-path="second.{name}"') for name in ("left", "right", "after"))
    group = shown.index('class="group together"')
    assert group < left < right < shown.index('<li class="group', right) < after


def test_a_run_of_an_unknown_definition_is_drawn_one_after_another(viewer: Client) -> None:
    run_id = workflows.dispatch(PHASES).run_id
    Run.objects.filter(pk=run_id).update(fingerprint="another")
    shown = viewer.get(url("run", run_id)).content.decode()
    assert 'class="group together"' not in shown
    for node in Node.objects.filter(run_id=run_id):
        assert f'data-path="{node.path}"' in shown


def test_a_run_that_went_back_is_drawn_backwards(viewer: Client) -> None:
    run_id = workflows.dispatch(kitchen.toast, {}).run_id
    drain(run_id)
    response = viewer.get(url("run", run_id))
    assert 'class="tree backwards"' in response.content.decode()
    assert "What had completed is undone" in text(response)
    assert re.search(r's-compensated" data-path="kitchen-toast.serve.serve"', response.content.decode())


@pytest.mark.django_db(transaction=True)
def test_the_timeline_tells_waiting_from_running(viewer: Client) -> None:
    run_id = waiting("t-3")
    workflows.resume(run_id)
    drain(run_id)
    timeline = viewer.get(url("timeline", run_id)).json()
    rows = {path: (kind, segments) for path, kind, segments in timeline["rows"]}
    assert [kind for kind, _, _ in rows[""][1]] == ["wait", "run", "wait", "run"]
    assert [kind for kind, _, _ in rows["web-order.approve"][1]] == ["wait"]
    assert [kind for kind, _, _ in rows["web-order.pay.charge"][1]] == ["run"]
    for _, segments in rows.values():
        for _, begin, end in segments:
            assert begin <= end <= timeline["now"] + 1


def test_a_timeline_of_attempts_suspensions_and_of_going_back() -> None:
    node = {
        "path": "p.s.a",
        "kind": "action",
        "status": "compensated",
        "started_at": None,
        "finished_at": None,
    }
    run = {"created_at": "2026-01-01T00:00:00+00:00", "finished_at": "2026-01-01T00:01:00+00:00"}
    base = 1767225600.0
    names = [
        "started",
        "action.started",
        "action.retrying",
        "action.started",
        "waiting",
        "resumed",
        "action.completed",
        "compensating",
        "action.retrying",
        "action.compensated",
        "compensated",
    ]
    on_the_run = ("started", "compensating", "compensated")
    moves = [
        (name, None if name in on_the_run else "p.s.a", base + at, at == 9)
        for at, name in enumerate(names, 1)
    ]
    root, track = timelines.tracks(run, [node], moves)
    assert root.segments == [
        ("wait", base, base + 1),
        ("run", base + 1, base + 8),
        ("undo", base + 8, base + 11),
    ]
    assert track.segments == [
        ("retry", base + 2, base + 3),
        ("wait", base + 3, base + 4),
        ("run", base + 4, base + 5),
        ("wait", base + 5, base + 6),
        ("run", base + 6, base + 7),
        ("retry", base + 9, base + 9),
        ("undo", base + 10, base + 10),
    ]


def test_history_is_paged(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflow.dashboard.views.run.HISTORY_PAGE", 3)
    run_id = completed()
    first = viewer.get(url("history", run_id))
    assert re.findall(r'data-seq="(\d+)"', first.content.decode()) == ["1", "2", "3"]
    second = viewer.get(url("history", run_id), {"after": "3"})
    assert re.findall(r'data-seq="(\d+)"', second.content.decode())[0] == "4"


@pytest.mark.parametrize(
    "after",
    [
        *("", "x", "-1", "+1", "1_0", " 1", "1.0", "1e3", "0x1", "²", "٣", "1\0", "9" * 30, str(2**31)),
        *("0" * 5_000, "9" * 5_000, "0" * 11 + "9" * 12),
    ],
)
def test_a_place_in_the_history_that_can_be_none_is_refused(viewer: Client, after: str) -> None:
    response = viewer.get(url("history", completed()), {"after": after})
    assert "after must be a number" in text(response, 400)


def test_after_the_last_entry_that_can_be_there_is_nothing_more(viewer: Client) -> None:
    response = viewer.get(url("history", completed()), {"after": str(2**31 - 1)})
    assert "data-seq" not in response.content.decode()


def test_the_snapshot_is_what_the_socket_sends(viewer: Client) -> None:
    run_id = waiting("s-1")
    found = viewer.get(url("state", run_id)).json()
    assert found["type"] == "snapshot"
    assert found["seq"] == Run.objects.get(pk=run_id).seq
    assert found["run"]["status"] == "waiting"


# --- definitions ----------------------------------------------------------------------------------


def test_a_definition_shows_gates_timeouts_retries_and_compensations(viewer: Client) -> None:
    @action(attempts=5, backoff=2.0, timeout=90, when=lambda state: True, precheck=print, atomic=True)
    def careful(state: Any) -> None: ...

    @careful.compensate
    def undo_it(state: Any) -> None: ...

    @action(via="queue")
    def queued(state: Any) -> None: ...

    registry.register(
        Workflow(
            "drawn",
            on_failure="halt",
            stages=[
                Stage("both", actions=[parallel(careful, queued)]),
                kitchen.table.pipelines[0].items[0][0],
            ],
        )
    )
    said = text(viewer.get(url("definition", "drawn")))
    for words in (
        "5 attempts waits 2.0s more after each attempt",
        "1m 30s timeout of each attempt",
        "when skipped unless",
        "precheck fails at once if print raises",
        "atomic",
        "undone by",
        "undo_it",
        "queued runs in a job of its own",
        "waits for guest.came",
        "by name only an event of this correlation counts",
        "leave it standing",
        "served by 0 workers",
    ):
        assert words in said, words
    listed = text(viewer.get(url("definitions")))
    assert "drawn 1 2 2 its runs" in listed


# --- size -----------------------------------------------------------------------------------------


def thousand_nodes() -> UUID:
    @action
    def nothing(state: Any) -> None: ...

    wide = Workflow("wide", stages=[Stage(f"s{n}", actions=[nothing]) for n in range(500)])
    registry.register(wide)
    run_id = workflows.dispatch(wide).run_id
    assert Node.objects.filter(run_id=run_id).count() == 1_001
    return run_id


def test_a_run_of_a_thousand_nodes_takes_as_many_queries_as_a_small_one(viewer: Client) -> None:
    small, large = waiting(), thousand_nodes()
    for name in ("run", "state", "timeline", "data", "history"):
        with CaptureQueriesContext(connection) as few:
            viewer.get(url(name, small))
        with CaptureQueriesContext(connection) as many:
            assert viewer.get(url(name, large)).status_code == 200
        assert len(many) == len(few) <= 12, name


def test_a_run_that_no_live_worker_serves_says_so(viewer: Client) -> None:
    run_id = workflows.dispatch(ORDER, {"order_id": "u-1"}, queue="nightly").run_id
    said = "Nothing moves it on: no live worker serves web-order v1"
    assert f"{said}." in text(viewer.get(url("run", run_id)))
    row = Worker.objects.create(
        hostname="kitchen",
        pid=1,
        concurrency=1,
        threads=1,
        queues=["daily"],
        serves=[{"name": "web-order", "version": 1}],
    )
    assert f'{said} in the queue "nightly".' in text(viewer.get(url("run", run_id)))
    Worker.objects.filter(pk=row.pk).update(queues=[])
    assert "Nothing moves it on" not in text(viewer.get(url("run", run_id)))


def test_of_a_run_that_is_over_nobody_asks_who_serves_it(viewer: Client) -> None:
    assert not Worker.objects.exists()
    assert "Nothing moves it on" not in text(viewer.get(url("run", completed())))
