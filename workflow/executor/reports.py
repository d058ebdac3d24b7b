"""What a handler reports while it is at work: its progress and its log, until somebody writes them down."""

from __future__ import annotations

import threading
from typing import Any

from workflow.plan import HistoryEntry, Notes, compact


class Reports:
    """The reports of one attempt. Safe to use from any thread."""

    def __init__(self, path: str, attempt: int) -> None:
        self.any = False
        """Whether there ever was one."""
        self._path = path
        self._attempt = attempt
        self._lock = threading.Lock()
        self._notes: Notes | None = None
        self._last_progress: HistoryEntry | None = None

    def add(self, name: str, progress: float | None, data: dict[str, Any]) -> None:
        """One more entry. Progress is coalesced: the latest value stands for all that were not taken yet."""
        if progress is not None:
            data = {"attempt": self._attempt, "progress": progress, **data}
        entry = HistoryEntry(name, self._path, compact(data))
        with self._lock:
            if self._notes is None:
                self._notes = Notes()
            if progress is not None:
                self._notes.entries = [
                    known for known in self._notes.entries if known is not self._last_progress
                ]
                self._last_progress = entry
                self._notes.progress = progress
            self._notes.entries.append(entry)
        self.any = True

    def put_back(self, notes: Notes | None) -> None:
        """What was taken, and is not written after all: it comes before what was reported since."""
        if notes is None:
            return
        with self._lock:
            if self._notes is not None:
                notes.entries = notes.entries + self._notes.entries
                notes.progress = notes.progress if self._notes.progress is None else self._notes.progress
            self._notes = notes

    @property
    def waiting(self) -> bool:
        """Whether there are some that nobody has taken."""
        return self._notes is not None

    def take(self) -> Notes | None:
        """What was reported since it was last taken, or None."""
        with self._lock:
            notes, self._notes, self._last_progress = self._notes, None, None
        return notes
