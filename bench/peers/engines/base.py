"""What the harness asks of an engine."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import psycopg


@dataclass(slots=True)
class Options:
    """`steps` of a workflow; `index` of a worker; `extra`: the engine's own, from `--set name=value`."""

    dsn: str
    steps: int = 5
    workers: int = 1
    index: int = 0
    extra: dict[str, str] = field(default_factory=dict)


class Engine:
    """One engine under test. Everything but `work` is called in the client's process."""

    scale = 1
    """How many times as many workflows it gets: a phase has to last some seconds to tell anything."""
    pausable = True
    """Whether workers are processes of their own, which can be stopped while a backlog is made."""
    unfinished_query = ""
    """Counts the workflows that are not over, by the engine's own tables."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.dsn = options.dsn
        self.steps = options.steps

    def describe(self) -> str:
        """How it is set up, for the table."""
        return ""

    def environment(self) -> dict[str, str]:
        """What its processes find in their environment."""
        return {}

    def prepare(self) -> None:
        """Makes its schema in an empty database, and starts what else it needs."""

    def worker_command(self, index: int) -> list[str]:
        """The command of one worker process."""
        extra = [f"--set={name}={value}" for name, value in self.options.extra.items()]
        return [
            sys.executable,
            "-m",
            "bench.peers.drive",
            self.name,
            f"--dsn={self.dsn}",
            f"--steps={self.steps}",
            f"--worker={index}",
            *extra,
        ]

    def work(self) -> None:
        """A worker's life, until it is told to end."""
        raise NotImplementedError

    def connect(self) -> None:
        """Readies the client; returns once workers can be given work."""

    def start(self, timed: int) -> None:
        """Starts one workflow whose steps call `mark(timed, ...)`."""
        raise NotImplementedError

    def unfinished(self, connection: psycopg.Connection[Any]) -> int:
        row = connection.execute(self.unfinished_query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def helpers(self) -> list[int]:
        """Other processes whose CPU time is the engine's."""
        return []

    def close(self) -> None:
        """Ends what `prepare` and `connect` have started."""

    @property
    def name(self) -> str:
        return type(self).__module__.rsplit(".", 1)[-1]
