"""What may end a task of the worker's own, and what is only user code that has raised the like of it."""

from __future__ import annotations

import asyncio


def ends_task(error: BaseException) -> bool:
    """Whether the task in hand is to end by this: it was cancelled, its loop is closed, or the process is interrupted.

    Anything else has come out of code that the task has called: `SystemExit` too, which would end the event loop and
    with it the worker, and a `CancelledError` that nobody has asked for.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)
