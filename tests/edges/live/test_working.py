"""The commands that do the work, as processes: a worker, and the sweeps."""

from __future__ import annotations

import signal
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.db.models.functions import Now

from tests.edges.live.conftest import dispatched, finish
from tests.support.workers import eventually
from workflow import states
from workflow.models import Job, Node, Run, Worker

pytestmark = [pytest.mark.django_db(transaction=True)]


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
        (
            "CommandError: migrations of workflow are not applied "
            "(0001_initial, 0002_storage, 0003_dispatch_function, ...): run manage.py migrate\n"
        ),
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
