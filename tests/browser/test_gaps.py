"""What a page shows of entries that reach it twice: over its socket, and in the history that it fetches for a gap."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect

from tests.browser.conftest import PATIENCE, OpenPage, Site, event, page_of
from tests.kitchen import workflows as kitchen
from workflow import workflows
from workflow.models import Run

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]


@pytest.mark.parametrize("told", ["before the gap is filled", "after the gap was filled"])
def test_an_entry_that_filling_a_gap_brings_too_is_shown_once(
    open_page: OpenPage, site: Site, told: str
) -> None:
    """The page lacks an entry and asks for it; a later one is written before the answer is read, which so has both.
    That one's own frame comes before the answer, or after it.
    """
    run_id = workflows.dispatch(kitchen.bread, {"file": "never"}).run_id
    path, known = "kitchen-bread.mix.weigh", Run.objects.get(pk=run_id).seq
    line = Line()
    page = open_page()
    page.route_web_socket(re.compile(f"/ws/.*{run_id}"), line.open)
    page.route(re.compile(rf"/history/\?after={known}$"), line.ask)
    page.goto(site.address + page_of(run_id))
    until(page, lambda: line.began)
    event(run_id, path, known + 1)
    until(page, lambda: known + 1 in line.held)
    line.to_server({"type": "refresh"})
    until(page, lambda: line.asked)
    event(run_id, path, known + 2)
    until(page, lambda: known + 2 in line.held)
    if told.startswith("before"):
        line.to_page(known + 2)
        expect(page.locator("#history tr")).to_have_count(known + 1)
        line.asked[0].continue_()
        expect(page.locator("#history tr")).to_have_count(known + 2)
    else:
        line.asked[0].continue_()
        expect(page.locator("#history tr")).to_have_count(known + 2)
        line.to_page(known + 2)
    event(run_id, path, known + 3)
    until(page, lambda: known + 3 in line.held)
    line.to_page(known + 3)  # shown later than all that came before it
    expect(page.locator(f'#history tr[data-seq="{known + 3}"]')).to_have_count(1)
    assert page.locator("#history tr td:first-child").all_inner_texts() == [
        str(n) for n in range(known + 3, 0, -1)
    ]


class Line:
    """Between a page's socket and the server: keeps back the entries' frames, lets all else through."""

    def __init__(self) -> None:
        self.began = False
        """Whether a snapshot has gone to the page, which goes on from what that has: "Live" it is before."""
        self.held: dict[int, str] = {}
        """The frames by the entry's number."""
        self.asked: list[Route] = []
        """Requests of the page that nobody has let go on yet."""

    def open(self, socket: WebSocketRoute) -> None:
        self._page, self._server = socket, socket.connect_to_server()
        self._server.on_message(self._came)

    def ask(self, route: Route) -> None:
        self.asked.append(route)

    def to_page(self, seq: int) -> None:
        self._page.send(self.held.pop(seq))

    def to_server(self, message: dict[str, Any]) -> None:
        self._server.send(json.dumps(message))

    def _came(self, text: str | bytes) -> None:
        assert isinstance(text, str)
        frame = json.loads(text)
        if frame["type"] == "workflow.event":
            self.held[frame["seq"]] = text
        else:
            self._page.send(text)
            self.began = True


def until(page: Page, condition: Callable[[], object]) -> None:
    """Waits for what this side of the browser gets to see; the page goes on meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        page.wait_for_timeout(20)
