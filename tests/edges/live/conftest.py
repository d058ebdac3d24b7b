"""The commands as processes, beside a real worker: an app of theirs, and terminals."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.workers import REPOSITORY, database_url
from workflow import workflows

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


def dispatched(name: str, queue: str = "default", **state: str) -> uuid.UUID:
    return workflows.dispatch(name, state, queue=queue).run_id


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
