"""A plain handler that sees in its signal that it is to stop, and ends by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def heeding(how: str, heard: list[str | None]) -> Callable[[dict[str, Any], Any], None]:
    """One that `waits` for its signal, or `looks` at it; what it has heard is added to the list."""

    def heeds(state: dict[str, Any], ctx: Any) -> None:
        while not (ctx.signal.wait(0.05) if how == "waits" else ctx.signal.aborted):
            time.sleep(0.01)
        heard.append(ctx.signal.reason)

    return heeds
