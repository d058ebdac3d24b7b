"""Where a command's output goes: lines and JSON for scripts, views in colours on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import IO, Any, NoReturn, cast

from django.core.management.base import OutputWrapper
from pydantic import BaseModel
from rich.console import Console, RenderableType
from rich.live import Live

from workflow.conf import conf
from workflow.times import zoned


class _Stream:
    """A command's stdout as `rich` and this module write to it: nothing appended, no character refused."""

    def __init__(self, wrapper: OutputWrapper) -> None:
        self._wrapper = wrapper
        self.encoding: str = getattr(wrapper, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        # What the stream's encoding lacks is shown as an escape; it must not end the command.
        shown = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
        self._wrapper.write(shown, ending="")
        return len(text)

    def flush(self) -> None:
        self._wrapper.flush()

    def isatty(self) -> bool:
        return bool(self._wrapper.isatty())

    def fileno(self) -> int:
        return int(self._wrapper.fileno())


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM leaves as an exception does, or else the terminal would be left as it was drawn on."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Output:
    """`rich` tells whether people get views in colours: on a terminal, or with --force-color."""

    def __init__(self, wrapper: OutputWrapper, *, force_color: bool = False, no_color: bool = False) -> None:
        self._stream = _Stream(wrapper)
        self.rich = force_color or self._stream.isatty()
        self.console = Console(
            file=cast("IO[str]", self._stream),
            force_terminal=True if force_color else None,
            no_color=True if no_color or os.environ.get("DJANGO_COLORS") == "nocolor" else None,
            markup=False,
            emoji=False,
            highlight=False,
        )

    @property
    def live(self) -> bool:
        """Whether there is a screen on which a picture can be drawn again and again."""
        return self._stream.isatty() and not self.console.is_dumb_terminal

    @property
    def ascii_only(self) -> bool:
        """Whether the terminal's encoding has no more than ASCII for certain."""
        return self.console.options.ascii_only

    def line(self, text: str = "") -> None:
        """One line of printable text; written at once."""
        self._stream.write(text + "\n")
        self._stream.flush()

    def lines(self, lines: Iterable[str]) -> None:
        self._stream.write("".join(line + "\n" for line in lines))
        self._stream.flush()

    def json(self, value: Any, indent: int | None = 2) -> None:
        """A JSON document in ASCII: no text in it can steer a terminal or fail to encode.

        Models are taken as well; their times are in UTC.
        """
        self.line(json.dumps(value, indent=indent, default=_plain))

    def show(self, view: Callable[[], RenderableType], lines: Callable[[], Iterable[str]]) -> None:
        """`view` in colours for people on a terminal, `lines` for everybody else."""
        if self.rich:
            self.console.print(view())
        else:
            self.lines(lines())

    def redraw(self, view: Callable[[int], RenderableType], interval: float) -> NoReturn:
        """Draws `view(rows)` on a screen of its own every `interval` seconds, until Ctrl-C (KeyboardInterrupt).

        `rows` is how many lines there are; what is longer is cut off. Afterwards the terminal shows what it did before.
        """
        with (
            _terminated(),
            Live(
                console=self.console,
                screen=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            ) as live,
        ):
            while True:
                live.update(view(self.console.height), refresh=True)
                time.sleep(interval)


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return zoned(value, conf.DATABASE).model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is no JSON")
