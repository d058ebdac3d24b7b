"""How the demo looks: a live table in a terminal, plain lines when the output goes elsewhere."""

from __future__ import annotations

from collections import Counter
from textwrap import wrap
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .books import Check
from .demo import ENDED, Sight
from .orders import KINDS

STATUSES = (
    "pending",
    "running",
    "waiting",
    "compensating",
    "completed",
    "compensated",
    "failed",
    "cancelled",
)
STYLES = {
    "running": "cyan",
    "waiting": "yellow",
    "compensating": "magenta",
    "completed": "green",
    "compensated": "blue",
    "failed": "bold red",
    "cancelled": "red",
}
LINE_EVERY = 2.0  # seconds between two plain lines


def runs_by_kind(statuses: Counter[tuple[str, str]], width: int) -> Table:
    """One row for each kind of order, a column for each status. Fits a terminal of 80 columns."""
    wide = width >= 118  # room to say what the kinds mean
    shown = [s for s in STATUSES if s not in ("failed", "cancelled") or any(s == key[1] for key in statuses)]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("orders", justify="right")
    table.add_column("kind")
    if wide:
        table.add_column("what they meet", style="dim")
    for status in shown:
        table.add_column(status, justify="right", style=STYLES.get(status, ""))
    for kind in KINDS:
        cells = [statuses[kind, status] for status in shown]
        name = [kind, KINDS[kind].text] if wide else [kind]
        table.add_row(str(sum(cells)), *name, *(str(cell) if cell else "·" for cell in cells))
    totals = [sum(statuses[kind, status] for kind in KINDS) for status in shown]
    name = ["all", ""] if wide else ["all"]
    table.add_row(str(sum(totals)), *name, *(str(total) for total in totals), style="bold")
    return table


class LiveScreen:
    """For a terminal. What happens is printed above a table that is drawn anew several times a second."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False)

    def note(self, seconds: float, text: str) -> None:
        self.console.print(Text(f"{seconds:6.1f} s  {text}"))

    def show(self, sight: Sight) -> None:
        total = max(sum(sight.statuses.values()), 1)
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(
            f"{sight.seconds:6.1f} s",
            ProgressBar(total=total, completed=sight.number(*ENDED), width=40),
            Text(f"{sight.number(*ENDED)} of {total} ended"),
        )
        workers = Text("   ".join(f"worker {pid} {what}" for pid, what in sight.workers.items()), style="dim")
        self.live.update(
            Group("", runs_by_kind(sight.statuses, self.console.width), "", line, workers), refresh=True
        )

    def __enter__(self) -> LiveScreen:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.live.stop()


class PlainScreen:
    """For a pipe or a file: a line for whatever happens, and one for how far it all is whenever that has
    changed, every two seconds at most.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last = 0.0
        self.told = ""

    def note(self, seconds: float, text: str) -> None:
        self.console.print(Text(f"{seconds:6.1f} s  {text}"))

    def show(self, sight: Sight) -> None:
        if sight.seconds - self.last >= LINE_EVERY:
            counts = [(status, sight.number(status)) for status in STATUSES]
            text = ", ".join(f"{number} {status}" for status, number in counts if number)
            if {key for key in +sight.statuses if key[1] not in ENDED} == {("never-pays", "waiting")}:
                # Nothing moves for a while then, and it should not look as if it hung.
                text += "; the payments that are waited for never come"
            if text != self.told:
                self.last, self.told = sight.seconds, text
                self.note(sight.seconds, text)

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


def print_checks(console: Console, checks: list[Check]) -> None:
    for check in checks:
        mark = Text("  ok    ", style="green") if check.holds else Text("  WRONG ", style="bold red")
        lines = wrap(check.text, max(console.width - len(mark), 20))
        console.print(mark + Text(f"\n{' ' * len(mark)}".join(lines)))
        for fault in check.faults[:5]:
            console.print(Text(f"          {fault}"))
        if len(check.faults) > 5:
            console.print(Text(f"          ... and {len(check.faults) - 5} more"))
