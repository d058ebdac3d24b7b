"""`make serve`: a web server, a worker and a stream of orders, until Ctrl-C.

    python -m example_project.serve HOST PORT

Each is a process group of its own. A terminal sends Ctrl-C to every process in front, and a worker takes a second
signal for "at once": so only this process hears of it, and passes on one SIGTERM. A second Ctrl-C is a second signal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

MANAGE: Final = str(Path(__file__).resolve().parents[1] / "manage.py")
STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Serving:
    """The processes, and what they were told."""

    def __init__(self) -> None:
        self.living: dict[int, str] = {}
        self.told = 0

    def over(self) -> bool:
        """Whether they were told to leave."""
        return self.told > 0

    def start(self, name: str, *arguments: str, quiet: bool = False, **environment: str) -> None:
        """Starts one more, unless it is over already."""
        if self.over():
            return
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if quiet else None,
            env={**os.environ, **environment},
            process_group=0,
        )
        self.living[process.pid] = name
        process.returncode = 0  # `wait_for_all` waits for it, and nobody else is to
        if self.over():  # while it was being started, so that nobody has told it
            self.end(process.pid)

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Tells all of them to leave; a signal handler, too."""
        self.told += 1
        for pid in list(self.living):
            self.end(pid)

    def end(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    def wait_for_all(self) -> int:
        """0 when they were told to leave, 1 when one of them has ended by itself: the others are told then."""
        worst = 0
        while self.living:
            pid, status = os.wait()
            name = self.living.pop(pid, None)
            if name is not None and not self.over():
                worst = 1
                code = os.waitstatus_to_exitcode(status)
                how = f"ended with status {code}" if code >= 0 else f"was killed by signal {-code}"
                print(f"The {name} {how}; so the others are told to leave.", file=sys.stderr)
                self.stop()
        return worst


def main(host: str, port: str) -> int:
    serving = Serving()
    for number in STOPS:
        signal.signal(number, serving.stop)
    serving.start("worker", MANAGE, "workflow:worker")
    serving.start("stream of orders", MANAGE, "shop_stream", quiet=True)
    # Debugging makes it serve the static files.
    web = ("-m", "daphne", "-v", "0", "-b", host, "-p", port, "example_project.asgi:application")
    serving.start("web server", *web, DEBUG="1")
    return serving.wait_for_all()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
