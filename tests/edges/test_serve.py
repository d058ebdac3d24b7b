"""What `make serve` starts: the account that it prints opens the pages, and one Ctrl-C ends all in good order."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from urllib.error import URLError

import psutil
import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from example_project.serve import trouble_with
from tests.kitchen import workflows as kitchen
from tests.support.workers import PATIENCE, REPOSITORY, database_url, eventually
from workflow import RunHandle, states, workflows
from workflow.models import Node, Run
from workflow.registry import registry

pytestmark = pytest.mark.django_db


def printed(*arguments: str) -> str:
    out = StringIO()
    call_command("shop_login", *arguments, stdout=out)
    return out.getvalue()


def test_the_printed_account_opens_the_dashboard() -> None:
    said = printed("--address", "http://127.0.0.1:8000/dashboard/")
    assert said.startswith("The dashboard: http://127.0.0.1:8000/dashboard/\n")
    found = re.search(r"Log in as (\w+) with the password (\S+)\n", said)
    assert found
    client = Client()
    assert client.login(username=found[1], password=found[2])
    assert client.get("/", follow=True).redirect_chain == [("/dashboard/", 302)]
    assert client.get("/dashboard/").status_code == 200
    assert client.get("/admin/workflow/run/").status_code == 200


def test_every_start_has_a_password_of_its_own() -> None:
    first, second = printed(), printed()
    assert first != second
    assert User.objects.count() == 1


# --- its processes --------------------------------------------------------------------------------


class Terminal:
    """`example_project.serve` in front of a terminal of its own, on the test's database."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self._leader, follower = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "example_project.serve", "127.0.0.1", str(self.port)],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.kitchen.settings",
                "DATABASE_URL": database_url(),
                "REDIS_URL": "",
                "LOG_LEVEL": "INFO",
                "WORKFLOW_SETTINGS": json.dumps({"POLL_INTERVAL": 0.2, "SHUTDOWN_GRACE": 600}),
            },
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(follower)
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # nobody holds the other end any more
            while read := os.read(self._leader, 65_536):
                self.text += read.decode(errors="replace")

    def family(self) -> list[psutil.Process]:
        """What it has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def ctrl_c(self) -> None:
        os.write(self._leader, b"\x03")

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            for one in [*self.family(), psutil.Process(self.process.pid)]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        os.close(self._leader)


@pytest.fixture
def terminal(transactional_db: None) -> Iterator[Terminal]:
    with registry.isolated():
        registry.register(kitchen.bread)
        one = Terminal()
        try:
            yield one
        finally:
            one.close()


def baking(terminal: Terminal, file: Path) -> tuple[RunHandle, list[psutil.Process]]:
    """A run whose handler goes on until there is such a file, and the processes, when it is in the oven."""
    handle = workflows.dispatch(kitchen.bread, {"file": str(file)})
    oven = Node.objects.filter(run_id=handle.run_id, path="kitchen-bread.bake.oven")
    eventually(lambda: oven.filter(progress=40).exists(), what=lambda: terminal.text)
    return handle, terminal.family()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/admin/login/", timeout=30) as response:
            return bool(response.status == 200)
    except URLError:
        return False


def gone(processes: list[psutil.Process]) -> bool:
    return not [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_one_ctrl_c_ends_all_of_it_and_handlers_may_finish(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "baked"
    handle, processes = baking(terminal, file)
    eventually(lambda: answers(terminal.port), what=lambda: terminal.text)
    eventually(Run.objects.filter(workflow="order-fulfillment").exists, what=lambda: terminal.text)
    assert len(processes) == 3
    found = re.search(r"The dashboard: (\S+)\s+Log in as (\w+) with the password (\S+)", terminal.text)
    assert found, terminal.text
    assert found[1] == f"http://127.0.0.1:{terminal.port}/dashboard/"
    assert Client().login(username=found[2], password=found[3])
    terminal.ctrl_c()
    eventually(lambda: "it claims nothing more" in terminal.text, what=lambda: terminal.text)
    file.touch()
    assert terminal.wait() == 0, terminal.text
    assert handle.status().run.status == states.COMPLETED, terminal.text
    assert terminal.text.count("it claims nothing more") == 1
    assert "stopped; it settled" in terminal.text
    assert "Traceback" not in terminal.text
    assert gone(processes)


def test_a_second_ctrl_c_does_not_wait_for_handlers(terminal: Terminal, tmp_path: Path) -> None:
    handle, processes = baking(terminal, tmp_path / "never")
    terminal.ctrl_c()
    eventually(lambda: "it claims nothing more" in terminal.text, what=lambda: terminal.text)
    terminal.ctrl_c()
    assert terminal.wait() == 0, terminal.text
    oven = Node.objects.get(run_id=handle.run_id, path="kitchen-bread.bake.oven")
    assert (oven.status, oven.attempt) == (states.PENDING, 0)
    assert gone(processes)


def test_when_one_of_them_ends_so_do_the_others(terminal: Terminal, tmp_path: Path) -> None:
    _, processes = baking(terminal, tmp_path / "never")
    eventually(lambda: answers(terminal.port), what=lambda: terminal.text)
    (web,) = [one for one in processes if "daphne" in one.cmdline()]
    web.send_signal(signal.SIGKILL)
    eventually(lambda: "The web server was killed by signal 9;" in terminal.text, what=lambda: terminal.text)
    # Two signals of one number that are pending together count as one: the first is to be taken before.
    eventually(lambda: "it claims nothing more" in terminal.text, what=lambda: terminal.text)
    terminal.ctrl_c()
    assert terminal.wait() == 1
    assert gone(processes)


@pytest.mark.django_db(transaction=True)
def test_where_another_one_serves_nothing_is_changed() -> None:
    printed()
    before = User.objects.values().get()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = subprocess.run(
            [sys.executable, "-m", "example_project.serve", "127.0.0.1", str(port)],
            cwd=REPOSITORY,
            env={**os.environ, "DATABASE_URL": database_url()},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert said.returncode == 1
    assert said.stdout == ""
    assert said.stderr == (
        f"Cannot serve on 127.0.0.1:{port}: Address already in use. Another port: make serve PORT=8001\n"
    )
    assert User.objects.values().get() == before


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", "99999"), ("127.0.0.1", "http"), ("no.such.host.invalid", "8000")]
)
def test_where_nobody_can_serve_is_said(host: str, port: str) -> None:
    assert trouble_with(host, port)


def test_the_printed_account_is_made_where_the_port_is_known_to_be_free() -> None:
    """`make serve` itself makes none before."""
    said = subprocess.run(
        ["make", "--no-print-directory", "-n", "serve"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "shop_login" not in said.stdout


def test_make_serve_does_just_that() -> None:
    said = subprocess.run(
        ["make", "--no-print-directory", "-n", "serve", "PORT=8123"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines()[-1].endswith("-m example_project.serve 127.0.0.1 8123")
