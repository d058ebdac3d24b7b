"""Debian's Chromium, a web server and workers: processes as in earnest, on the test's database."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.kitchen import workflows as kitchen
from tests.support.workers import PATIENCE, REPOSITORY, database_url, end
from workflow import progress
from workflow.models import Run, RunEvent
from workflow.registry import registry

expect.set_options(timeout=PATIENCE * 1000)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAME, PASSWORD = "ada", "a password of the test"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one module: while it is open, no event loop of another test may run in this thread."""
    program = shutil.which("chromium")
    assert program, "the tests need chromium (Debian: apt-get install chromium)"
    # Playwright keeps a loop of its own in this thread; Django takes that for async code of ours.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield started
        started.close()
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
    else:
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = before


class Site:
    """The web server, and workers. `address` stays the same over a restart."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._workers: list[subprocess.Popen[bytes]] = []
        self._web: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the web server, unless it runs."""
        if self._web is not None:
            return
        self._web = self._begin(
            "-m", "daphne", "-v", "0", "-b", "127.0.0.1", "-p", str(self.port), "example_project.asgi:application"
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self._web.poll() is None, "the web server has ended"
            try:
                with urllib.request.urlopen(f"{self.address}/admin/login/", timeout=5) as response:
                    assert response.status == 200
                    return
            except (URLError, ConnectionError, TimeoutError):
                assert time.monotonic() < deadline, "the web server does not answer"
                time.sleep(0.05)

    def stop(self) -> None:
        if self._web is not None:
            web, self._web = self._web, None
            assert end([web]) == []

    def start_worker(self) -> None:
        self._workers.append(self._begin("manage.py", "workflow:worker", "--concurrency", "10"))

    def end_workers(self) -> None:
        workers, self._workers = self._workers, []
        assert end(workers) == [], "it has not stopped when it was told to"

    def end(self) -> None:
        self.end_workers()
        self.stop()

    def _begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.kitchen.settings",
            "DATABASE_URL": database_url(),
            "REDIS_URL": "",
            "DEBUG": "1",  # serves the static files
            "LOG_LEVEL": "WARNING",
            # A test that is over leaves handlers that wait for what never comes: they are not waited for.
            "WORKFLOW_SETTINGS": json.dumps(
                {"POLL_INTERVAL": 0.2, "HEARTBEAT_INTERVAL": 1, "SHUTDOWN_GRACE": 0.5}
            ),
        }
        return subprocess.Popen(
            [sys.executable, *arguments], cwd=REPOSITORY, env=environment, stdin=subprocess.DEVNULL
        )


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[Site]:
    """Started once: it holds nothing of a test between two of them."""
    one = Site()
    try:
        one.start()
        yield one
    finally:
        one.end()


@pytest.fixture
def site(web: Site, transactional_db: None) -> Iterator[Site]:
    yield web
    web.end_workers()
    web.start()


@pytest.fixture(autouse=True)
def _one_way_to_hear(settings: Any) -> None:
    """The web server of these tests has no layer that reaches it: what is told from here goes by notification."""
    settings.CHANNEL_LAYERS = {}


@pytest.fixture(autouse=True)
def known_workflows() -> Iterator[None]:
    with registry.isolated():
        for definition in (kitchen.bread, kitchen.soup, kitchen.sauce, kitchen.table, kitchen.toast):
            registry.register(definition)
        yield


@pytest.fixture
def ada(transactional_db: None) -> User:
    """Somebody who may do everything here."""
    return User.objects.create_superuser(NAME, password=PASSWORD)


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, site: Site, ada: User) -> Iterator[OpenPage]:
    """`open_page("/dashboard/", width=390)`: a page of its own window, logged in as ada.

    At the end nothing may have been wrong in any of them: no script failed, none was refused, nothing popped up.
    """
    contexts = []
    wrong: list[str] = []

    def watch(page: Page) -> None:
        page.on("pageerror", lambda error: wrong.append(f"a script failed: {error}"))
        page.on("dialog", lambda dialog: (wrong.append(f"it popped up: {dialog.message}"), dialog.dismiss()))
        page.on(
            "console",
            lambda message: wrong.append(message.text) if "Content Security Policy" in message.text else None,
        )

    def begin(path: str = "/dashboard/", width: int = 1280, height: int = 860, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        watch(page)
        page.goto(site.address + path)
        page.fill("#id_username", NAME)
        page.fill("#id_password", PASSWORD)
        page.click("[type=submit]")
        page.wait_for_selector("#main")
        return page

    yield begin
    for context in contexts:
        context.close()
    assert wrong == []


def page_of(run_id: UUID) -> str:
    return f"/dashboard/{run_id}/"


def is_live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_text("Live")


def node(page: Page, path: str) -> Locator:
    return page.locator(f'#tree [data-path="{path}"]')


def event(run_id: UUID, path: str, seq: int) -> None:
    """An action begins, as far as a page can see."""
    Run.objects.filter(pk=run_id).update(seq=seq)
    entry = RunEvent.objects.create(
        run_id=run_id, seq=seq, name="action.started", node=path, data={"attempt": 1}
    )
    entry.refresh_from_db(fields=["at"])
    progress.announce([(run_id, seq, entry.name, path, entry.at, entry.data)], "default")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: with SCREENSHOTS=1 to the documentation."""
    return (
        REPOSITORY / "docs" / "images"
        if os.environ.get("SCREENSHOTS")
        else tmp_path_factory.mktemp("pictures")
    )
