"""Following a run until it is over, or a list of runs until Ctrl-C.

Redrawn in place on a terminal, one line for each change elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn
from uuid import UUID

from django.utils import timezone
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from workflow import states, terminal, workflows
from workflow.management.output import Output
from workflow.management.waits import wait_lines
from workflow.overview import pause_of_run
from workflow.redact import redact_status
from workflow.results import RunInfo, RunPage, RunStatus
from workflow.store.workers import unserved_run

INTERVAL = 0.5
"""Seconds between two looks at a run."""
LIST_INTERVAL = 1.0
"""Seconds between two looks at a list."""

See = Callable[[RunStatus | None, RunStatus], None]
"""Told of each look: what was seen before (None at first), what is seen now."""


def unserved(status: RunStatus) -> str:
    """Why no live worker will go on with the run, in one line; empty when one will, or when it is over."""
    found = unserved_run(status.run.id) if status.run.status in states.RUN_LIVE else None
    return "" if found is None else found.reason


def paused(status: RunStatus) -> str:
    """That the run's queue is paused, in one line; empty when it is not, or when the run is over."""
    found = pause_of_run(status.run.id) if status.run.status in states.RUN_LIVE else None
    return "" if found is None else terminal.pause_line(found)


def show(status: RunStatus, output: Output, detail: bool = False) -> None:
    """Prints a RunStatus (already redacted); `detail` adds input, state, outputs and tracebacks."""
    now, reason, pause = timezone.now(), unserved(status), paused(status)
    output.show(
        lambda: terminal.run_view(status, now, ascii_only=output.ascii_only, unserved=reason, paused=pause),
        lambda: terminal.run_lines(status, now, unserved=reason, paused=pause),
    )
    if waits := wait_lines(status):
        output.lines(["", *waits])
    if detail:
        output.lines(terminal.detail_lines(status))


def follow(
    run_id: UUID | str, output: Output, *, timeout: float | None = None, as_json: bool = False
) -> RunStatus:
    """Shows a run until it is over; returns the last RunStatus (redacted), for the caller to print.

    With `as_json` each change is printed as one line of JSON. Raises TimeoutError after `timeout`
    seconds, RunNotFound when the run is not there, or no longer.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    if output.rich and not as_json:
        with Live(
            console=output.console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live:
            return _until_over(run_id, deadline, lambda _, status: _redraw(live, status, output))
    if as_json:
        return _until_over(run_id, deadline, lambda old, status: _print_json(old, status, output))
    return _until_over(run_id, deadline, _Changes(output).see)


def _until_over(run_id: UUID | str, deadline: float | None, see: See) -> RunStatus:
    seen: RunStatus | None = None
    while True:
        status = redact_status(workflows.status(run_id))
        see(seen, status)
        seen = status
        if status.run.status in states.RUN_TERMINAL:
            return status
        pause = INTERVAL if deadline is None else min(INTERVAL, deadline - time.monotonic())
        if pause <= 0:
            raise TimeoutError(f"run {status.run.id} is still {status.run.status}")
        time.sleep(pause)


def _redraw(live: Live, status: RunStatus, output: Output) -> None:
    # One line less than there are: the cursor stands below the picture.
    waits = [Text(line, overflow="ellipsis", no_wrap=True) for line in wait_lines(status)]
    below = [Text(), *waits] if waits else []
    rows = output.console.height - 1 - len(below)
    view = terminal.run_view(
        status,
        timezone.now(),
        rows=rows,
        ascii_only=output.ascii_only,
        unserved=unserved(status),
        paused=paused(status),
    )
    live.update(Group(view, *below), refresh=True)


def _print_json(old: RunStatus | None, status: RunStatus, output: Output) -> None:
    if old is None or old != status:
        output.json(status, indent=None)


class _Changes:
    """Prints what has changed, and why nobody works at the run as soon as that is so."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._reasons: list[str] = []

    def see(self, old: RunStatus | None, status: RunStatus) -> None:
        now = timezone.now()
        self._output.lines(terminal.changes(old, status, now))
        before, self._reasons = self._reasons, [unserved(status), paused(status)]
        for reason in self._reasons:
            if reason and reason not in before:
                self._output.line(f"{terminal.moment(now)[11:]}  {terminal.one_line(reason)}")


def follow_list(
    look: Callable[[int], RunPage], limit: int, output: Output, *, as_json: bool = False
) -> NoReturn:
    """Shows what `look(limit)` finds, again and again: as a picture on a terminal, elsewhere what has changed.

    The runs it gives are redacted already. A changed run is one line, of JSON with `as_json`.
    """
    if output.live and not as_json:
        output.redraw(lambda rows: _runs_view(look(max(min(limit, rows - 1), 1))), LIST_INTERVAL)
    seen: dict[UUID, RunInfo] = {}
    while True:
        runs = look(limit).items
        for run in reversed(runs):
            before = seen.get(run.id)
            if as_json and run != before:
                output.json(run, indent=None)
            elif not as_json and (before is None or before.status != run.status):
                output.line(terminal.run_line(run, timezone.now()))
        seen = {run.id: run for run in runs}
        time.sleep(LIST_INTERVAL)


def _runs_view(page: RunPage) -> RenderableType:
    return terminal.runs_view(page.items, timezone.now()) if page.items else Text("No runs.")
