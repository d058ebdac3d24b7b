"""The commands beside a real worker: waiting for a run, watching it, lists that are redrawn."""

from __future__ import annotations

import itertools
import json
import re
import signal

import pytest
from django.db import transaction

from tests.edges.live.conftest import Screen, dispatched, finish, next_line
from workflow import states, workflows
from workflow.models import Run

pytestmark = [pytest.mark.django_db(transaction=True)]


# dispatch --wait


def test_waiting_for_a_run_that_completes(start, worker):
    code, out, err = finish(start("workflow:dispatch", "tearoom-happy", "--wait"))
    assert (code, err) == (0, "")
    run_id, *rest = out.splitlines()
    assert Run.objects.get(id=run_id).status == states.COMPLETED
    assert "status       completed" in rest
    assert re.search(r"^    weigh +completed ", out, re.MULTILINE)


def test_waiting_for_a_run_that_does_not_complete_exits_with_1(start, worker):
    code, out, err = finish(start("workflow:dispatch", "tearoom-sour", "--wait"))
    assert code == 1
    assert err.startswith(f"CommandError: run {out.splitlines()[0]} ended compensated: ACTION_FAILED: ")
    assert "the cup fell and broke \\x1b[31m" in err
    assert err.count("\n") == 1
    assert "status       compensated" in out


# status --watch


def test_watching_in_a_pipe_tells_each_change_and_shows_the_tree_at_the_end(start, worker, tmp_path):
    run_id = dispatched("tearoom-slow", file=str(tmp_path / "ready"))
    watching = start("workflow:status", str(run_id), "--watch")
    while "[##########----------]  50%" not in (line := next_line(watching)):
        pass
    assert "tearoom-slow.steep.steep  running" in line
    (tmp_path / "ready").touch()
    code, rest, err = finish(watching)
    assert (code, err) == (0, "")
    assert re.search(r"tearoom-slow\.steep\.steep  completed", rest)
    assert re.search(rf"run {run_id}  completed\n", rest)
    assert "status       completed" in rest


def test_watching_as_json_prints_a_status_for_each_change(start, worker, tmp_path):
    run_id = dispatched("tearoom-slow", file=str(tmp_path / "ready"))
    watching = start("workflow:status", str(run_id), "--watch", "--json")
    first = json.loads(next_line(watching))
    assert first["run"]["id"] == str(run_id)
    (tmp_path / "ready").touch()
    code, rest, err = finish(watching)
    assert (code, err) == (0, "")
    documents = [first, *(json.loads(line) for line in rest.splitlines())]
    assert documents[-1]["run"]["status"] == "completed"
    assert all(one != other for one, other in itertools.pairwise(documents))


def test_watching_on_a_terminal_redraws_the_tree_with_bars(start, worker, screen, tmp_path):
    run_id = dispatched("tearoom-slow", file=str(tmp_path / "ready"))
    watching = start("workflow:status", str(run_id), "--watch", stdout=screen.follower)
    screen.read_until("[##########----------]  50%")
    assert "1 of 2" in screen.text
    (tmp_path / "ready").touch()
    screen.read_rest(watching)
    assert watching.wait(30) == 0
    assert "\x1b[32m" in screen.text, "completed is green"
    assert screen.text.rstrip().endswith("\x1b[0m"), "colours are switched off"
    assert screen.text.count("\x1b[?25l") == screen.text.count("\x1b[?25h") == 1, "the cursor is back"
    last = screen.text[screen.text.rindex(str(run_id)) :]
    assert "completed" in last
    assert "50%" not in last


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_ctrl_c_leaves_quietly_and_the_run_goes_on(start, arguments):
    run_id = dispatched("tearoom-happy")
    watching = start("workflow:status", str(run_id), "--watch", *arguments)
    next_line(watching)
    watching.send_signal(signal.SIGINT)
    code, _, err = finish(watching)
    assert (code, err) == (130, "")
    assert Run.objects.get(id=run_id).status == states.PENDING


def test_ctrl_c_on_a_terminal_gives_the_cursor_back(start, screen):
    run_id = dispatched("tearoom-happy")
    watching = start("workflow:status", str(run_id), "--watch", stdout=screen.follower)
    screen.read_until("pending")
    watching.send_signal(signal.SIGINT)
    screen.read_rest(watching)
    assert watching.wait(30) == 130
    assert screen.text.count("\x1b[?25l") == screen.text.count("\x1b[?25h") == 1


def test_waiting_on_a_terminal_shows_the_tree(start, worker, screen):
    waiting = start("workflow:dispatch", "tearoom-happy", "--wait", stdout=screen.follower)
    screen.read_rest(waiting)
    assert waiting.wait(30) == 0
    assert "✓" in screen.text


def test_a_run_that_is_pruned_while_watched_is_one_line(start):
    run_id = dispatched("tearoom-happy")
    watching = start("workflow:status", str(run_id), "--watch")
    next_line(watching)
    Run.objects.all().delete()
    code, _, err = finish(watching)
    assert code == 1
    assert err.count("\n") == 1
    assert str(run_id) in err


# top, list --watch


def left_as_it_was(screen: Screen) -> bool:
    """The other screen and the hidden cursor were asked for once, and given back once."""
    return all(screen.text.count(on) == screen.text.count(off) == 1 for on, off in (
        ("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h"),
    ))  # fmt: skip


def test_top_on_a_terminal_is_redrawn_until_ctrl_c(start, screen):
    showing = start("workflow:top", "--interval", "0.1", stdout=screen.follower)
    screen.read_until("nothing is due")
    dispatched("tearoom-happy", queue="oolong")
    screen.read_until("oolong")
    screen.read_until("no live worker serves tearoom-happy v1, which has 1 live run")
    showing.send_signal(signal.SIGINT)
    screen.read_rest(showing)
    assert finish(showing)[0] == 130
    assert left_as_it_was(screen)
    assert "Traceback" not in screen.text


def test_top_shows_a_worker_and_what_it_does(start, worker, screen, tmp_path):
    dispatched("tearoom-slow", file=str(tmp_path / "ready"))
    showing = start("workflow:top", "--interval", "0.1", stdout=screen.follower)
    screen.read_until("1 worker alive, 1 of 4 slots busy")
    screen.read_until("1/4")
    showing.terminate()
    screen.read_rest(showing)
    assert showing.wait(30) == 143
    assert left_as_it_was(screen), "also when it is told to end"
    (tmp_path / "ready").touch()


def test_top_in_a_pipe_leaves_by_itself(start):
    code, out, err = finish(start("workflow:top", "--interval", "1000"))
    assert (code, err) == (0, "")
    assert out.startswith("20")
    assert "\x1b" not in out


def test_a_list_on_a_terminal_is_redrawn_until_ctrl_c(start, screen):
    listing = start("workflow:list", "--watch", stdout=screen.follower)
    screen.read_until("No runs.")
    with transaction.atomic():  # or the list might be drawn when there are few of them
        runs = [dispatched("tearoom-happy") for _ in range(60)]
    screen.read_until(str(runs[-1]))
    workflows.cancel(runs[-1])
    screen.read_until("cancelled")
    listing.send_signal(signal.SIGINT)
    screen.read_rest(listing)
    assert finish(listing)[0] == 130
    assert left_as_it_was(screen)
    assert str(runs[0]) not in screen.text, "no more than the screen has lines for"


def test_a_list_in_a_pipe_tells_each_change(start):
    first = dispatched("tearoom-happy")
    listing = start("workflow:list", "--watch", "--workflow", "tearoom-happy")
    assert next_line(listing).split()[1:] == ["run", str(first), "tearoom-happy", "v1", "pending"]
    second = dispatched("tearoom-happy")
    assert next_line(listing).split()[2] == str(second)
    dispatched("tearoom-slow")
    workflows.cancel(first)
    assert next_line(listing).split()[1:] == ["run", str(first), "tearoom-happy", "v1", "cancelled"]
    listing.send_signal(signal.SIGINT)
    assert finish(listing) == (130, "", "")


def test_a_list_as_json_prints_a_run_for_each_change(start):
    run_id = dispatched("tearoom-happy")
    listing = start("workflow:list", "--watch", "--json")
    assert json.loads(next_line(listing)) == workflows.status(run_id).run.model_dump(mode="json")
    workflows.cancel(run_id)
    assert json.loads(next_line(listing))["status"] == "cancelled"
    listing.send_signal(signal.SIGINT)
    assert finish(listing) == (130, "", "")
