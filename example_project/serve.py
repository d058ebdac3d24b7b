"""`make serve`: a web server, a worker and a stream of orders, until Ctrl-C.

    python -m example_project.serve HOST PORT

First it looks whether the port is free, so that a second one changes nothing for the first, and makes a log-in.
Each is a process group of its own. A terminal sends Ctrl-C to every process in front, and a worker takes a second
signal for "at once": so only this process hears of it, and passes on one SIGTERM. A second Ctrl-C is a second signal.
"""

from __future__ import annotations

import os
import signal
import socket
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


def trouble_with(host: str, port: str) -> str | None:
    """Why nothing can listen there, or None."""
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        return "that is no port"
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.create_server(address[:2], family=family):
            return None
    except socket.gaierror as error:
        return error.strerror or str(error)
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)


def log_in(address: str) -> int:
    """Makes and prints the log-in, in a process of its own, which Ctrl-C does not reach; its exit status."""
    command = [sys.executable, MANAGE, "shop_login", "--address", address]
    return subprocess.run(command, stdin=subprocess.DEVNULL, process_group=0).returncode


def main(host: str, port: str) -> int:
    if (why := trouble_with(host, port)) is not None:
        print(f"Cannot serve on {host}:{port}: {why}. Another port: make serve PORT=8001", file=sys.stderr)
        return 1
    serving = Serving()
    for number in STOPS:
        signal.signal(number, serving.stop)
    shown = f"[{host}]" if ":" in host else host
    if (status := log_in(f"http://{shown}:{port}/dashboard/")) != 0:
        return status
    serving.start("worker", MANAGE, "workflow:worker")
    serving.start("stream of orders", MANAGE, "shop_stream", quiet=True)
    # Debugging makes it serve the static files.
    web = ("-m", "daphne", "-v", "0", "-b", host, "-p", port, "example_project.asgi:application")
    serving.start("web server", *web, DEBUG="1")
    return serving.wait_for_all()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
