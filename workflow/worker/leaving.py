"""How a worker leaves: in a few seconds, whatever handlers still do on its event loop or in threads.

`asyncio.run` waits without bound for tasks that swallow their cancellation and for what `asyncio.to_thread` has begun,
and so does the interpreter for threads, asgiref's for `sync_to_async` among them. Their units were given back by then.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

logger = logging.getLogger("workflow")

T = TypeVar("T")

PATIENCE: Final = 1.5
"""Seconds that tasks get to end once they are cancelled, and after them the threads of the loop."""
LAST_PATIENCE: Final = 3.0
"""Seconds that threads get once the interpreter is to end."""
MOST_NAMES: Final = 5


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, but what does not end in time is named in the log and left behind, and what other tasks and
    callbacks raise ends nothing but themselves.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    executor = ThreadPoolExecutor(thread_name_prefix="asyncio")  # as asyncio's own would be, but known here
    loop.set_default_executor(executor)
    try:
        return _complete(loop, main)
    finally:
        try:
            left = _complete(loop, _cancel_all())
            if not _has_ended(executor):
                left.append("what asyncio.to_thread has begun")
            if left:
                logger.warning("left behind: %s", ", ".join(left))
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _complete(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Runs the loop until the work is done. A `SystemExit` in any task or callback makes asyncio stop the loop at once;
    whoever waits for such a task hears of it all the same, so the loop goes on. So it does where user code stops it.
    """
    task = loop.create_task(work)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done() or (isinstance(error, KeyboardInterrupt) and _is_interruptible()):
                raise
            logger.error(
                "%s was raised on the event loop, which goes on", type(error).__name__, exc_info=error
            )
        except RuntimeError:
            if task.done():
                raise
            logger.error("somebody has stopped the event loop, which goes on")


def _is_interruptible() -> bool:
    """Whether a `KeyboardInterrupt` may come from the terminal, for nobody takes the signal for himself."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


async def _cancel_all() -> list[str]:
    """Cancels the loop's tasks until they are over, and closes its generators; names of what is not over in time."""
    loop = asyncio.get_running_loop()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for _ in range(3):
        for task in left:
            task.cancel()
        if left:
            done, left = await asyncio.wait(left, timeout=PATIENCE / 3)
            _tell(loop, done)
    generators = loop.create_task(loop.shutdown_asyncgens())
    await asyncio.wait([generators], timeout=PATIENCE / 3)
    names = sorted(task.get_name() for task in left)
    more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return names[:MOST_NAMES] + more


def _tell(loop: asyncio.AbstractEventLoop, tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            loop.call_exception_handler(
                {"message": "a task failed as it was cancelled", "exception": error, "task": task}
            )


def _has_ended(executor: ThreadPoolExecutor) -> bool:
    """Shuts it down; whether its threads have ended in time."""
    executor.shutdown(wait=False, cancel_futures=True)
    waiting = threading.Thread(target=executor.shutdown, name="workflow-leaving", daemon=True)
    try:
        waiting.start()
    except RuntimeError:  # the system starts no more threads
        return False
    waiting.join(PATIENCE)
    return not waiting.is_alive()


def leave_in_time(code: int) -> None:
    """Once the interpreter ends, with this status, a thread may not hold that up for long: the process ends without it.

    Whatever the program does before its end may take its time.
    """
    over = threading.Event()
    atexit.register(over.set)  # called once no thread is waited for any more

    def watch() -> None:
        since: float | None = None
        while not over.wait(LAST_PATIENCE / 10):
            if not _is_ending():
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since > LAST_PATIENCE:
                # Python waits for a pool's threads too, which are daemons where a daemon has started them.
                left = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
                names = [thread.name for thread in left if not thread.daemon or "PoolExecutor" in thread.name]
                logger.warning("the process ends without waiting for threads: %s", ", ".join(names))
                with suppress(Exception):
                    logging.shutdown()
                end(code)

    with suppress(RuntimeError):  # the system starts no more threads
        threading.Thread(target=watch, name="workflow-leaving", daemon=True).start()


def _is_ending() -> bool:
    """Whether the program is over and the interpreter waits for threads: nothing else is on the main thread then."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame is None or frame.f_globals.get("__name__") == "threading"


def end(code: int) -> None:
    """Ends the process at once, with what it has printed."""
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # it may be closed, or nobody reads it
                stream.flush()
    finally:
        os._exit(code)
