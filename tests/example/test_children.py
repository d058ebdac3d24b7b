"""Worker processes of the demo end with it, whatever happens."""

import json
import sys
import time
from collections.abc import Callable

import pytest

from example_project.shop import children
from example_project.shop.children import Workers

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def pretend(workers: Workers, program: str) -> None:
    """Lets `start` run this program in the worker's stead."""
    workers.command = [sys.executable, "-c", program]


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_the_command_is_the_one_that_a_person_would_type() -> None:
    with Workers("--queue", "demo") as workers:
        python, manage, *rest = workers.command
        assert python == sys.executable
        assert manage.endswith("/manage.py")
        assert rest == ["workflow:worker", "--queue", "demo"]


def test_leaving_the_block_ends_all_workers() -> None:
    with Workers() as workers:
        pretend(workers, "import time; print('ready', flush=True); time.sleep(600)")
        workers.start()
        workers.start()
        until(lambda: workers.said().count("ready") == 2)
        started = list(workers.running)
    assert [child.poll() for child in started] == [-15, -15]


def test_a_worker_that_will_not_leave_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "STOP_PATIENCE", 0.2)
    with Workers() as workers:
        pretend(workers, STUBBORN)
        workers.start()
        until(lambda: "ready" in workers.said())
        [child] = workers.running
    assert child.poll() == -9


def test_workers_end_when_the_block_is_left_by_an_error() -> None:
    started = []

    def interrupted() -> None:
        with Workers() as workers:
            pretend(workers, STUBBORN)
            workers.start()
            started.extend(workers.running)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started[0].poll() is not None


def test_a_killed_worker_is_no_lost_one_but_one_that_ends_by_itself_is() -> None:
    with Workers() as workers:
        pretend(workers, "import time; time.sleep(600)")
        killed = workers.start()
        workers.kill(killed)
        pretend(workers, "import sys; print('no database', flush=True); sys.exit(3)")
        workers.start()
        until(workers.lost)
        [lost] = workers.lost()
        assert lost.pid != killed
        assert lost.returncode == 3
        assert workers.said() == "no database"


def test_settings_reach_the_workers() -> None:
    with Workers(workflow_settings={"SWEEP_INTERVAL": 1}) as workers:
        pretend(workers, "import os; print(os.environ['WORKFLOW_SETTINGS'])")
        workers.start()
        until(workers.lost)
        assert json.loads(workers.said()) == {"SWEEP_INTERVAL": 1}
