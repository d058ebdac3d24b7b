"""A process that starts workers: everything is imported once, each worker is a fork and takes no time.

    python -m tests.support.launcher

Reads one JSON object a line,

    {"log": PATH, "failpoints": TEXT, "settings": {...}, "django": {...}, "conn_max_age": SECONDS, "skew": SECONDS,
     "options": {...}, "celery": [ARGUMENT, ...]}

(`settings` is WORKFLOW, `django` other settings, `skew` how wrong this process's own clock is)

and answers `{"started": PID}`; whenever a worker ends it writes `{"ended": PID, "code": CODE}` (negative: the
signal). A worker is a session leader of its own and calls what `workflow:worker` calls, or what `celery worker` calls
with these arguments where there are any. At the end of its
input it leaves; the workers that still run are its reader's to end.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
import traceback
from typing import Any

PAUSE = 0.02
"""Seconds between two looks for workers that have ended."""


def main() -> None:
    import django

    django.setup()
    from django.conf import settings
    from django.db import connections

    from workflow import failpoints, worker
    from workflow.worker import process

    assert process  # imported before the first fork, with all that it needs

    def start(order: dict[str, Any]) -> None:
        os.setsid()
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        settings.WORKFLOW = order["settings"]
        for name, value in order["django"].items():
            setattr(settings, name, value)
        if zone := order["django"].get("TIME_ZONE"):
            os.environ["TZ"] = zone
            time.tzset()
        _set_clock(order["skew"])
        failpoints.arm(order["failpoints"])
        connections["default"].settings_dict["CONN_MAX_AGE"] = order["conn_max_age"]
        if order["celery"]:
            _become_celery(order["celery"])
        os._exit(worker.run(**order["options"]))

    children: set[int] = set()
    waiting = b""
    while True:
        readable, _, _ = select.select([0], [], [], PAUSE)
        if readable:
            read = os.read(0, 65_536)
            if not read:
                return
            *lines, waiting = (waiting + read).split(b"\n")
            for line in lines:
                order = json.loads(line)
                if order["celery"]:
                    _load_celery()  # once, for this one and those to come
                children.add(_fork(start, order))
        for pid in list(children):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                children.remove(pid)
                _say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _load_celery() -> None:
    from tests.crash_app.celery import app

    app.loader.import_default_modules()


def _become_celery(arguments: list[str]) -> None:
    from tests.crash_app.celery import app

    broker, *arguments = arguments
    os.environ["CELERY_BROKER_URL"] = broker
    try:
        app.worker_main(["worker", "--loglevel", "INFO", *arguments])
    except SystemExit as error:
        sys.stdout.flush()
        os._exit(error.code if isinstance(error.code, int) else int(bool(error.code)))
    os._exit(0)


def _set_clock(seconds: float) -> None:
    """This process's own clock is wrong from here on, as far as Python code can tell."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)


def _fork(start: Any, order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        _say({"started": pid})
        return pid
    try:
        start(order)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(70)


def _say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
