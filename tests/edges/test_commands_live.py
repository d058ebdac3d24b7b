"""The commands beside a real worker: waiting for a run, watching it, sweeping, stopping."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from workflow import states, workflows
from workflow.models import Job, Node, Run, Worker

pytestmark = [pytest.mark.django_db(transaction=True)]

REPOSITORY = Path(__file__).resolve().parents[2]
SETTINGS = """
from example_project.settings import *
INSTALLED_APPS = [*INSTALLED_APPS, "tearoom"]
"""
DEFINITIONS = '''
import time
from pathlib import Path
from workflow import Fatal, Stage, WaitFor, Workflow, action

@action
def weigh(state):
    return {"weighed": True}

@action(timeout=60)
def steep(state, ctx):
    """Is half done until the file that the input names is there."""
    ctx.progress(50)
    while not Path(state["file"]).exists():
        if ctx.signal.wait(0.02):
            ctx.signal.raise_if_aborted()
    return {"steeped": True}

@action
def spill(state):
    raise Fatal("the cup fell\\nand broke \\x1b[31m")

happy = Workflow("tearoom-happy", stages=[Stage("weigh", actions=[weigh])])
slow = Workflow("tearoom-slow", stages=[Stage("weigh", actions=[weigh]), Stage("steep", actions=[steep])])
sour = Workflow("tearoom-sour", stages=[Stage("weigh", actions=[weigh]), Stage("spill", actions=[spill])])
parked = Workflow("tearoom-parked", stages=[Stage("paid", wait_for=WaitFor("tea.paid"))])
'''

Start = Callable[..., "subprocess.Popen[str]"]


def database_url() -> str:
    """The database of this test run, as a URL that another process can be given."""
    database = connection.settings_dict
    options = {
        name.lower(): database[name] for name in ("HOST", "PORT", "USER", "PASSWORD") if database[name]
    }
    return f"postgresql:///{quote(database['NAME'], safe='')}?{urlencode(options)}"


@pytest.fixture(scope="session")
def tearoom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the app `tearoom` and settings; its workflows are known in this process, too."""
    folder = tmp_path_factory.mktemp("tearoom")
    (folder / "tearoom_settings.py").write_text(SETTINGS)
    (folder / "tearoom").mkdir()
    (folder / "tearoom" / "__init__.py").touch()
    definitions = folder / "tearoom" / "workflows.py"
    definitions.write_text(DEFINITIONS)
    spec = importlib.util.spec_from_file_location("tearoom_workflows", definitions)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for definition in (module.happy, module.slow, module.sour, module.parked):
        workflows.register(definition)
    return folder


@pytest.fixture
def environment(tearoom: Path) -> dict[str, str]:
    """That of a project with the app, on the test's database."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tearoom_settings",
        "PYTHONPATH": os.pathsep.join([str(tearoom), str(REPOSITORY)]),
        "DATABASE_URL": database_url(),
        "WORKFLOW_SETTINGS": json.dumps({"SWEEP_INTERVAL": 0.1, "POLL_INTERVAL": 0.2}),
        "LOG_LEVEL": "WARNING",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    """`start("workflow:worker")`: a process of manage.py; ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **options: object) -> subprocess.Popen[str]:
        streams = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "django", *arguments], env=environment, text=True, **streams
        )  # type: ignore[call-overload]
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()


@pytest.fixture
def worker(start: Start) -> subprocess.Popen[str]:
    return start("workflow:worker", "--concurrency", "4", stdout=None, stderr=None)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"it ended with {process.wait(30)}: {process.stderr and process.stderr.read()}"
    return line


def eventually(holds: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def dispatched(name: str, queue: str = "default", **state: str) -> uuid.UUID:
    return workflows.dispatch(name, state, queue=queue).run_id


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


class Screen:
    """What a process wrote to a pseudo-terminal."""

    def __init__(self) -> None:
        self.leader, self.follower = pty.openpty()
        self.text = ""

    def read_until(self, wanted: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while wanted not in self.text:
            ready, _, _ = select.select([self.leader], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{wanted!r} did not appear in {self.text!r}"
            self.text += os.read(self.leader, 65536).decode(errors="replace")

    def read_rest(self, process: subprocess.Popen[str]) -> None:
        while True:
            ready, _, _ = select.select([self.leader], [], [], 0.05)
            if ready:
                self.text += os.read(self.leader, 65536).decode(errors="replace")
            elif process.poll() is not None:
                return


@pytest.fixture
def screen(environment: dict[str, str]) -> Iterator[Screen]:
    environment.update(TERM="xterm-256color", COLUMNS="100", LINES="40")
    environment.pop("NO_COLOR", None)
    found = Screen()
    yield found
    os.close(found.leader)
    os.close(found.follower)


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


# worker


def test_a_burst_takes_the_given_queues_and_leaves(start):
    queues = {name: dispatched("tearoom-happy", queue=name) for name in ("a", "b", "c", "d")}
    code, _, err = finish(start("workflow:worker", "--burst", "--queue", "a", "b", "--queue", "c"))
    assert code == 0, err
    done = {name: Run.objects.get(id=run_id).status for name, run_id in queues.items()}
    assert done == {"a": "completed", "b": "completed", "c": "completed", "d": "pending"}


def test_a_worker_with_a_faulty_setting_does_not_start(start, environment):
    environment["WORKFLOW_SETTINGS"] = '{"CONCURENCY": 5}'
    code, _, err = finish(start("workflow:worker", "--burst"))
    assert code == 1
    assert "did you mean CONCURRENCY?" in err
    assert "Traceback" not in err
    assert finish(start("workflow:list"))[0] == 0, "looking is still possible"


@pytest.mark.parametrize(
    "arguments",
    [
        ("workflow:worker",),
        ("workflow:worker", "--processes", "2"),
        ("workflow:sweep", "--once"),
    ],
)
def test_without_the_tables_one_line_says_what_to_do(start, environment, arguments):
    environment["PGOPTIONS"] = "-c search_path=pg_catalog"  # a database that nobody has migrated
    assert finish(start(*arguments)) == (
        1,
        "",
        "CommandError: the workflow tables are missing from the database: run manage.py migrate\n",
    )


@pytest.fixture
def bare(tearoom: Path, environment: dict[str, str]) -> None:
    """A project whose apps define no workflow."""
    (tearoom / "bare_settings.py").write_text(
        "from example_project.settings import *\n"
        'INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "pgtrigger", "workflow"]\n'
        "ROOT_URLCONF, urlpatterns = __name__, []\n"
    )
    environment["DJANGO_SETTINGS_MODULE"] = "bare_settings"


@pytest.mark.usefixtures("bare")
def test_a_worker_and_a_dispatch_without_any_workflow_say_where_to_look(start):
    hint = "No workflow is registered at all: are the apps with your workflows.py in INSTALLED_APPS?"
    code, _, err = finish(start("workflow:worker", "--burst"))
    assert (code, err) == (0, f"{hint}\n")
    code, _, err = finish(start("workflow:dispatch", "signup"))
    assert (code, err) == (1, f"CommandError: no workflow is registered as 'signup'. {hint}\n")


def test_a_worker_says_on_a_terminal_what_it_takes(start, screen):
    worker = start("workflow:worker", "--burst", "--queue", "a", "b", stdout=screen.follower)
    screen.read_rest(worker)
    assert worker.wait(30) == 0
    assert screen.text.startswith("Takes the jobs of a, b: ")
    assert "tearoom-happy v1" in screen.text
    assert "more. Ctrl-C stops it." in screen.text or "v1. Ctrl-C stops it." in screen.text
    assert finish(start("workflow:worker", "--burst"))[1] == "", "in a pipe nothing is printed"


# sweep


@pytest.fixture
def served() -> None:
    """Some worker elsewhere is alive and serves the runs that wait."""
    serves = [{"name": "tearoom-parked", "version": 1}]
    Worker.objects.create(hostname="elsewhere", pid=1, concurrency=1, threads=1, serves=serves)


def overdue() -> uuid.UUID:
    """A run that waits for an event since longer than it may."""
    run_id = dispatched("tearoom-parked")
    run = Run.objects.filter(id=run_id)
    run.update(status=states.RUNNING, started_at=Now())
    run.update(status=states.WAITING)
    Node.objects.filter(run=run_id, path="tearoom-parked").update(status=states.RUNNING)
    Node.objects.filter(run=run_id, path="tearoom-parked.paid").update(
        status=states.WAITING, wait_event="tea.paid", wait_until=Now() - timedelta(seconds=1)
    )
    Job.objects.filter(run=run_id).delete()
    return run_id


def timed_out(run_id: uuid.UUID) -> bool:
    return Node.objects.get(run=run_id, path="tearoom-parked.paid").wait_outcome == {"timeout": True}


def test_one_pass_does_what_is_due_and_says_so(start, served):
    run_id = overdue()
    assert finish(start("workflow:sweep", "--once")) == (0, "waits: 1\n", "")
    assert timed_out(run_id)
    assert finish(start("workflow:sweep", "--once")) == (0, "Nothing to do.\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sweeping_goes_on_until_a_signal(start, served, number):
    sweeping = start("workflow:sweep")
    for _ in range(2):
        run_id = overdue()
        eventually(lambda run_id=run_id: timed_out(run_id))
    sweeping.send_signal(number)
    assert finish(sweeping) == (0, "waits: 1\nwaits: 1\n", "")


def test_runs_that_no_live_worker_serves_are_named_in_the_log(start):
    run_id = overdue()
    code, out, err = finish(start("workflow:sweep", "--once"))
    assert (code, out) == (0, "waits: 1\n")
    assert err.count("\n") == 1
    assert f"no live worker serves tearoom-parked v1, which has 1 live run (the oldest: {run_id})" in err


def test_sweeping_survives_the_loss_of_its_connection(start):
    sweeping = start("workflow:sweep")
    first = overdue()
    eventually(lambda: timed_out(first))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert cursor.fetchone()[0] >= 1
    second = overdue()
    eventually(lambda: timed_out(second))
    assert sweeping.poll() is None
