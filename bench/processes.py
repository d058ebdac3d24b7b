"""Processes and what they cost, read from /proc: CPU seconds, memory, trees; stopping and ending whole trees by pid.

Elsewhere than on Linux there is no /proc: costs are 0 there, and the tables leave them out.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the program's name; None for one that is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _everybody() -> dict[int, list[str]]:
    if not PROC.is_dir():
        return {}
    pids = [int(folder.name) for folder in PROC.iterdir() if folder.name.isdigit()]
    return {pid: stat for pid in pids if (stat := _stat(pid)) is not None}


def tree(roots: Iterable[int]) -> list[int]:
    """The processes and all that descends from them, parents first."""
    children: dict[int, list[int]] = {}
    for pid, stat in _everybody().items():
        children.setdefault(int(stat[1]), []).append(pid)
    found: list[int] = []
    left = list(roots)
    while left:
        pid = left.pop(0)
        found.append(pid)
        left += children.get(pid, [])
    return found


def cpu(roots: Iterable[int]) -> float:
    """CPU seconds so far of whole trees, children that have ended and been waited for included."""
    total = 0
    for pid in tree(roots):
        stat = _stat(pid)
        if stat is not None:
            total += sum(map(int, stat[11:15]))
    return total / TICK


def resident(roots: Iterable[int]) -> int:
    """Resident bytes of whole trees."""
    pages = 0
    for pid in tree(roots):
        with suppress(OSError):
            pages += int((PROC / str(pid) / "statm").read_text().split()[1])
    return pages * PAGE


def send(pids: Iterable[int], number: int) -> None:
    """A signal to each that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end(processes: Iterable[subprocess.Popen[str]], seconds: float = 15) -> None:
    """SIGTERM, and after so many seconds SIGKILL to each process and its children; waits for all of them."""
    processes = list(processes)
    family = tree([process.pid for process in processes if process.poll() is None])
    send(family, signal.SIGCONT)
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            send(reversed(tree([process.pid])), signal.SIGKILL)
            process.wait()
    # Children whose parent ended without them: still ours, and known by pid.
    send([pid for pid in family if _stat(pid) is not None and _orphan(pid)], signal.SIGKILL)


def _orphan(pid: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0] != "Z" and int(stat[1]) == 1


def parent_of(pid: int) -> int | None:
    """A process's parent; None for one that is not here."""
    stat = _stat(pid)
    return None if stat is None else int(stat[1])
